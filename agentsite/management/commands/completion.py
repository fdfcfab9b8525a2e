"""``manage.py completion``: Tab completes commands, options and ids of sessions, in bash.

    source <(.venv/bin/python manage.py completion)

Then both ``./manage.py agents 3f<Tab>`` and ``.venv/bin/python manage.py agents 3f<Tab>`` do.
"""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser
from typing import Any

from agentsite.environment import BASE_DIR
from chat import terminal
from chat.management.completing import candidates

SCRIPT = """\
# agentsite: commands, options, and the ids of sessions, messages and users.
_agentsite_complete() {{
    local at=1
    if [[ ${{COMP_WORDS[0]##*/}} == python* ]]; then
        [[ ${{COMP_WORDS[1]##*/}} == manage.py ]] || return 0
        at=2
    fi
    (( COMP_CWORD >= at )) || return 0
    mapfile -t COMPREPLY < <(printf '%s\\n' "${{COMP_WORDS[@]:at:COMP_CWORD-at+1}}" |
        {python} {manage} completion --words 2>/dev/null)
}}
complete -F _agentsite_complete manage.py
complete -o default -F _agentsite_complete python python3
"""


class Command(terminal.TerminalCommand):
    help = "Print what bash needs to complete with Tab: source <(manage.py completion)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--words",
            action="store_true",
            help="what bash asks: the words so far on standard input, the last unfinished",
        )

    def handle(self, *, words: bool, **options: Any) -> None:
        if words:
            for word in candidates(sys.stdin.read().split("\n")[:-1]):
                self.stdout.write(word)
        else:
            python, manage = shlex.quote(sys.executable), shlex.quote(str(BASE_DIR / "manage.py"))
            self.stdout.write(SCRIPT.format(python=python, manage=manage))
