"""A fixed part of ``make chaos``: people talk, everything breaks, nothing is lost or doubled."""

from tests.cluster.conftest import IN_FULL
from tests.faults.rounds import play_round


def test_nothing_is_lost_or_doubled_whatever_breaks(site):
    report = play_round(site, seed="fixed", seconds=60 if IN_FULL else 12)
    assert report.faults.total() > 3
    assert not report.violations, report
