"""Translations without GNU gettext: compile each catalogue, or check that it is up to date.

    python scripts/messages.py            compile locale/*/LC_MESSAGES/django.po to django.mo
    python scripts/messages.py --check    exit 1 where a .mo is not what its .po says

The compiled catalogues are part of the repository, because a machine that only runs the site has
no msgfmt. Collecting new words needs gettext: ``manage.py makemessages -l zh_Hans``.
"""

from __future__ import annotations

import ast
import struct
import sys
from pathlib import Path

LOCALE = Path(__file__).resolve().parent.parent / "locale"
MAGIC = 0x950412DE
CONTEXT = "\x04"  # between a word's context and the word
PLURAL = "\x00"  # between the forms of a word

Entry = dict[str, str]


def entries(text: str) -> list[tuple[Entry, bool]]:
    """The entries of a .po file, each with whether it is only a guess (``fuzzy``)."""
    found: list[tuple[Entry, bool]] = []
    for block in text.split("\n\n"):
        entry: Entry = {}
        keyword = ""
        fuzzy = False
        for line in block.splitlines():
            if line.startswith("#,"):
                fuzzy = fuzzy or "fuzzy" in line
            elif line.startswith('"'):
                entry[keyword] += ast.literal_eval(line)
            elif line and not line.startswith("#"):
                keyword, _, value = line.partition(" ")
                entry[keyword] = ast.literal_eval(value)
        if "msgid" in entry:
            found.append((entry, fuzzy))
    return found


def translated(text: str) -> dict[str, str]:
    """Key to translation, as a .mo holds them; what is untranslated or a guess is left out."""
    words = {}
    for entry, fuzzy in entries(text):
        key = entry["msgid"]
        if "msgid_plural" in entry:
            key += PLURAL + entry["msgid_plural"]
            forms = [entry[name] for name in sorted(entry) if name.startswith("msgstr[")]
            value = PLURAL.join(forms) if all(forms) else ""
        else:
            value = entry["msgstr"]
        if "msgctxt" in entry:
            key = entry["msgctxt"] + CONTEXT + key
        if value and (not fuzzy or key == ""):
            words[key] = value
    return words


def compiled(text: str) -> bytes:
    """The .mo of a .po. Its keys are sorted, so the same text gives the same bytes."""
    pairs = sorted((key.encode(), value.encode()) for key, value in translated(text).items())
    tables = 7 * 4
    strings = tables + 2 * 8 * len(pairs)
    blob = b""
    index: list[list[int]] = [[], []]
    for side in (0, 1):
        for pair in pairs:
            index[side] += [len(pair[side]), strings + len(blob)]
            blob += pair[side] + b"\0"
    second = tables + 8 * len(pairs)
    head = struct.pack("<7I", MAGIC, 0, len(pairs), tables, second, 0, strings)
    numbers = index[0] + index[1]
    return head + struct.pack(f"<{len(numbers)}I", *numbers) + blob


def outdated() -> list[Path]:
    """The catalogues whose .mo is not what the .po says."""
    return [
        po
        for po in sorted(LOCALE.glob("*/LC_MESSAGES/*.po"))
        if not po.with_suffix(".mo").exists()
        or po.with_suffix(".mo").read_bytes() != compiled(po.read_text(encoding="utf-8"))
    ]


def main() -> int:
    """Compile or check, and say what was done."""
    stale = outdated()
    for po in stale:
        if "--check" in sys.argv[1:]:
            print(f"{po.with_suffix('.mo')} is not what {po.name} says: run scripts/messages.py")
        else:
            po.with_suffix(".mo").write_bytes(compiled(po.read_text(encoding="utf-8")))
            print(f"compiled {po}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
