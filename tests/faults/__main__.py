"""``make chaos MINUTES=10``: rounds of trouble on a whole cluster, and figures at the end.

Each round has a seed of its own, made of the one that is printed first and its number; ``--seed``
with that begins the same rounds again. Ends with 1 where anything was violated.
"""

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.cluster.site import Site
from tests.faults.rounds import Report, play_round

ROUND = 30.0  # seconds of trouble before it is looked at


def main() -> int:
    parser = argparse.ArgumentParser(description="break a cluster at random and check what is left")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    reports: list[Report] = []
    print(f"seed {options.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="agentsite-chaos-") as folder,
        Site(Path(folder)) as site,
    ):
        while time.monotonic() < end:
            site.provider.reset()
            report = play_round(site, seed=f"{options.seed}.{len(reports)}", seconds=ROUND)
            print(report, flush=True)
            reports.append(report)
    print(figures(reports))
    return int(any(report.violations for report in reports))


def figures(reports: list[Report]) -> str:
    """All rounds as one."""
    operations = sum((report.operations for report in reports), Counter())
    faults = sum((report.faults for report in reports), Counter())
    found = sum(len(report.violations) for report in reports)
    healing = max(report.healing for report in reports)
    resting = max(report.resting for report in reports)
    totals = f"{len(reports)} rounds, {operations.total()} operations, {faults.total()} faults"
    lines = [
        f"{totals}, {found} violations",
        f"longest: healed {healing:.1f} s, rest {resting:.1f} s",
    ]
    lines += [f"{count:6}  {what}" for what, count in sorted((operations + faults).items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
