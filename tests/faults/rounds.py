"""One round: people talk, everything breaks, everything is healed, and then it is looked at.

    report = play_round(site, seed="7", seconds=30)
    assert not report.violations, report

The seed makes the same people do and the adversary break the same things in the same order; when
exactly each meets the other is the machine's business.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.cluster.client import PATIENCE
from tests.cluster.site import Site
from tests.faults.adversary import trouble
from tests.faults.checks import Evidence, violations
from tests.faults.history import History
from tests.faults.people import PROGRAMS, Conversation

PEOPLE = 6


@dataclass
class Report:
    """What a round did, and what it found."""

    seed: str
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    excerpts: list[str] = field(default_factory=list)
    healing: float = 0.0  # seconds until every node was useful again
    resting: float = 0.0  # seconds from there until nothing ran any more

    def __str__(self) -> str:
        figures = (
            f"seed {self.seed}: {self.operations.total()} operations, "
            f"{self.faults.total()} faults, {len(self.violations)} violations, "
            f"healed in {self.healing:.1f} s, at rest {self.resting:.1f} s later"
        )
        return "\n".join([figures, *self.violations, *self.excerpts])


def play_round(site: Site, *, seed: str, seconds: float, people: int = PEOPLE) -> Report:
    """Talk and break for so long, heal, wait, check. Call it from the main thread."""
    history = History()
    programs = {kind: site.play(**agents) for kind, agents in PROGRAMS.items()}
    names = [f"{seed}.{number}" for number in range(people)]
    talks = [Conversation(site, name, programs, history) for name in names]
    for talk in talks:
        talk.start()
    trouble(site, random.Random(seed), seconds, history)
    begun = time.monotonic()
    for talk in talks:
        talk.over.set()
    site.heal()
    healed = time.monotonic()
    report = Report(seed, healing=healed - begun)
    for talk in talks:
        if not talk.join(PATIENCE):
            report.violations.append(f"{talk.chat.id} has no answer, though everything is healed")
    if stuck := _wait_for_rest(site, talks):
        report.violations.append(f"not at rest: {stuck}")
    report.resting = time.monotonic() - healed
    _look(site, talks, report, history)
    report.operations = history.counts(faults=False)
    report.faults = history.counts(faults=True)
    del report.faults["mended"]
    return report


def _wait_for_rest(site: Site, talks: list[Conversation]) -> list[str]:
    """Who is still at work when patience ends; a conversation with an open question is at rest."""
    give_up = time.monotonic() + 2 * PATIENCE
    while True:
        busy = [
            f"{talk.chat.id} is {snapshot['status']}"
            for talk in talks
            if (snapshot := talk.chat.snapshot())["status"] != "idle" and not snapshot["questions"]
        ]
        if not busy or time.monotonic() > give_up:
            return busy
        time.sleep(0.1)


def _look(site: Site, talks: list[Conversation], report: Report, history: History) -> None:
    asked = site.provider.log(containing=report.seed)
    for talk in talks:
        found = list(violations(Evidence(site, talk, asked)))
        report.violations += [f"{talk.chat.id}: {what}" for what in found]
        if found:
            report.excerpts.append(history.excerpt(talk.chat.id))
    report.violations += [f"a lease is open: {lease}" for lease in site.open_leases()]
