"""What a turn has used, as AG-UI counts it.

AG-UI's run reaches from its START to its END, and the model calls of its sub-agents are in it; of a
turn that goes on after a question it holds only the calls since. A row's ``usage`` counts for ever,
so what was told before is taken off again: it stands in the log.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .models import Event, Question, Run

NAMES = {"inputTokens": "input_tokens", "outputTokens": "output_tokens"}

Used = dict[tuple[str, str], Counter[str]]  # provider and model → tokens


def of_turn(root: Run, below: Iterable[Run]) -> list[dict[str, Any]]:
    """What ``root`` and all below it have used since the turn last began: one entry a model."""
    used: Used = {}
    for run in (root, *below):
        if run.usage:
            model = run.usage["provider"], run.usage["model"]
            _count(used, model).update({name: run.usage[ours] for name, ours in NAMES.items()})
    for entry in _told_before(root):
        tokens = _count(used, (entry["provider"], entry["model"]))
        tokens.subtract({name: entry[name] for name in NAMES})
    return [
        {"provider": provider, "model": model, **tokens, "totalTokens": tokens.total()}
        for (provider, model), tokens in used.items()
        if tokens.total()
    ]


def _count(used: Used, model: tuple[str, str]) -> Counter[str]:
    return used.setdefault(model, Counter())


def _told_before(root: Run) -> list[dict[str, Any]]:
    """Only a question ends a turn's stream before the turn."""
    if not Question.objects.filter(run__root_id=root.pk).exists():
        return []
    ends = Event.objects.filter(session_id=root.session_id, run_id=root.pk, type="RUN_FINISHED")
    return [
        entry
        for data in ends.values_list("data", flat=True)
        for entry in json.loads(data).get("usage", ())
    ]
