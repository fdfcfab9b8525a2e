"""What happened in a round, in order: what people did and were told, what broke and was mended.

One list for all threads. A failed check is explained by the lines of its conversation and by the
faults between them; the seed makes the same choices again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

FAULT = "fault"
LONGEST_EXCERPT = 60  # lines


@dataclass(frozen=True)
class Entry:
    """One line: ``who`` is a session's id, or ``fault``."""

    at: float
    who: str
    what: str
    detail: str = ""


@dataclass
class History:
    """Appended to by everybody, read at the end."""

    begun: float = field(default_factory=time.time)
    entries: list[Entry] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, who: str, what: str, detail: object = "") -> None:
        with self._lock:
            self.entries.append(Entry(time.time(), who, what, str(detail)))

    def counts(self, *, faults: bool) -> Counter[str]:
        """How often each thing was done, or broken."""
        return Counter(e.what for e in self.entries if (e.who == FAULT) is faults)

    def excerpt(self, session_id: str) -> str:
        """The lines of one session, and the faults."""
        mine = [e for e in self.entries if e.who in (session_id, FAULT)]
        lines = [
            f"  {e.at - self.begun:7.3f}  {'** ' if e.who == FAULT else ''}{e.what}  {e.detail}"
            for e in mine[-LONGEST_EXCERPT:]
        ]
        return "\n".join([f"session {session_id}, 0 = {self.begun:.3f}", *lines])
