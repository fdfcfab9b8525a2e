"""The site's settings for the nodes of the shared cluster: its agents have ``fakes/tools.py``."""

from agentsite.settings import *  # noqa: F403
from agentsite.settings import INSTALLED_APPS as OURS

INSTALLED_APPS = [*OURS, "tests.cluster.apps.MoreTools"]
