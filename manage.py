#!/usr/bin/env python
"""Django's command line, after the process has been told what it is.

``serve`` and ``cluster`` make their own secrets; the operator's commands beside a running ``serve``
find them in ``var/``. A node (``agent_worker``, daphne, uvicorn) gets everything from outside, or
refuses to start.
"""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

from agentsite import local


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentsite.settings")
    match sys.argv[1:2]:
        case ["agent_worker"]:
            os.environ.setdefault("AGENTSITE_ROLE", "worker")
        case ["serve"]:
            local.prepare()
        case ["cluster"]:
            local.stand_apart()
        case _:
            local.adopt()
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as fault:
        sys.exit(f"agentsite: {fault}")


if __name__ == "__main__":
    main()
