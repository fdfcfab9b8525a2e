"""What an agent is: a name, instructions, tools. Its memory and its runs are rows, not objects."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Agent:
    """One kind of agent. ``researcher-2`` is a second one of the kind ``researcher``."""

    name: str
    instructions: str
    tools: tuple[str, ...]
    description: str = ""  # what the master reads when it chooses whom to ask
    # Nothing it does harms when it is done twice: a task whose worker is lost begins again from its
    # last saved step. By default it fails, and the master decides.
    repeatable: bool = False


_INSTANCE = re.compile(r"^(?P<kind>[a-z][a-z0-9_]*)(?:-(?P<number>[2-9]|[1-9][0-9]))?$")


def kind_of(agent_id: str) -> str | None:
    """The kind behind an agent id, or None where it is no agent id at all."""
    match = _INSTANCE.match(agent_id)
    return match["kind"] if match else None
