"""The suite on everything that the site runs on. Arguments go to pytest.

    sqlite    SQLite, Valkey: what `serve` runs on
    mariadb   MariaDB, Redis: what a cluster runs on
    cluster   real nodes, started and killed; one after the other, because times are measured
    browser   the page in a real browser, against `serve`

`ON=sqlite` runs one of them. The servers are private: in a temporary folder, on free loopback
ports, gone when this ends, however it ends.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from agentsite.services import MariaDB  # noqa: E402

PARALLEL = ["-n", os.environ.get("TEST_PROCESSES", "2"), "--dist", "loadgroup"]
NOTHING_COLLECTED = 5  # pytest's exit code; right for a form that the arguments leave nothing for

# They bring their own servers, or touch no row: a second database would show nothing new.
WITHOUT_ROWS = [
    f"--ignore=tests/test_{name}.py"
    for name in ("serve", "services", "imports", "dialogue", "openapi")
]
WITHOUT_ROWS += ["--ignore-glob=tests/test_llm_*.py"]

FORMS: dict[str, list[str]] = {
    "sqlite": [*PARALLEL, "-m", "not cluster and not browser"],
    "mariadb": [*PARALLEL, "-m", "not cluster and not browser", *WITHOUT_ROWS],
    "cluster": ["-m", "cluster"],
    "browser": ["-m", "browser"],
}


def main(arguments: list[str]) -> int:
    wanted = os.environ.get("ON", "").split() or list(FORMS)
    if unknown := set(wanted) - set(FORMS):
        print(f"ON={' '.join(unknown)}: known are {', '.join(FORMS)}", file=sys.stderr)
        return 2
    codes: dict[str, int] = {}
    for form in wanted:
        print(f"\n=== {form}", flush=True)
        started = time.monotonic()
        with environment(form) as env:
            codes[form] = pytest([*FORMS[form], *arguments], env)
        print(f"=== {form}: {verdict(codes[form])}, {time.monotonic() - started:.0f} s", flush=True)
    if all(code == NOTHING_COLLECTED for code in codes.values()):
        print("no test was run", file=sys.stderr)
        return NOTHING_COLLECTED
    return int(any(code not in {0, NOTHING_COLLECTED} for code in codes.values()))


@contextmanager
def environment(form: str) -> Iterator[Mapping[str, str]]:
    """The variables that a form's tests run with, and behind them its servers."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in {"DATABASE_URL", "REDIS_URL"}
    }
    if form != "mariadb":
        yield env
        return
    with (
        tempfile.TemporaryDirectory(prefix="agentsite-") as folder,
        MariaDB(Path(folder)) as mariadb,
    ):
        yield {**env, "DATABASE_URL": mariadb.url, "AGENTSITE_TEST_REDIS": "redis-server"}


def pytest(arguments: list[str], env: Mapping[str, str]) -> int:
    argv = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=dict(env), check=False).returncode


def verdict(code: int) -> str:
    return {0: "passed", NOTHING_COLLECTED: "nothing to run"}.get(code, f"failed ({code})")


if __name__ == "__main__":
    # As an exception, so that the servers and their folder are gone when we are.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
