"""``manage.py doctor``: is this node fit?"""

import dataclasses
import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from agentsite.doctor import Finding, examine


class Command(BaseCommand):
    help = (
        "Check database, isolation level, Redis, channel layer, worker nodes, model and clock. "
        "Exit 1 on a fault."
    )
    requires_system_checks = []  # what they would say in a traceback, we say in a line

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="for programs")

    def handle(self, **options: Any) -> None:
        findings = examine()
        if options["json"]:
            rows = [dataclasses.asdict(finding) for finding in findings]
            self.stdout.write(json.dumps(rows, ensure_ascii=False, indent=2))
        else:
            for finding in findings:
                self.stdout.write(self._line(finding))
        if any(finding.status == "fault" for finding in findings):
            sys.exit(1)

    def _line(self, finding: Finding) -> str:
        style = {
            "ok": self.style.SUCCESS,
            "warning": self.style.WARNING,
            "fault": self.style.ERROR,
        }[finding.status]
        return style(f"{finding.status:8}{finding.check:16}{finding.text}")
