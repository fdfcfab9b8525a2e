"""The site's settings for one process of the test suite.

Each process (pytest-xdist has several) has a Redis of its own, so that a test may flush or kill it.
Only its address is chosen here; ``conftest.py`` starts it. The database is what DATABASE_URL says,
else SQLite in a file: in memory it would have neither WAL nor real locks.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from agentsite.services import Valkey

TEST_DIR = Path(tempfile.mkdtemp(prefix="agentsite-test-"))
atexit.register(shutil.rmtree, TEST_DIR, ignore_errors=True)

os.environ["DJANGO_SECRET_KEY"] = "only-for-tests-" + "0123456789" * 4
os.environ["AGENTSITE_VAR"] = str(TEST_DIR / "var")
os.environ["REDIS_URL"] = Valkey(TEST_DIR / "redis").url
os.environ["AGENT_MODEL"] = "demo"

from agentsite.settings import *  # noqa: E402, F403
from agentsite.settings import DATABASES  # noqa: E402

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["TEST"] = {"NAME": str(TEST_DIR / "test.sqlite3")}
else:
    # A table that somebody forgot to let go of is an error that says so, not a day of silence.
    DATABASES["default"]["OPTIONS"]["init_command"] += ", lock_wait_timeout = 40"

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick is enough
