"""What one machine makes for itself in ``var/``: a secret key, and the embedded Valkey.

Run by ``manage.py`` before the settings are read, and only for commands that belong to the one
machine. A node of a cluster never comes here: a key that it made up alone would fit no other node.
"""

import os
import secrets
import socket
from pathlib import Path

from agentsite.environment import BASE_DIR
from agentsite.services import Valkey


def var_dir() -> Path:
    return Path(os.environ.get("AGENTSITE_VAR") or BASE_DIR / "var").absolute()


def embedded_valkey() -> Valkey:
    return Valkey(var_dir() / "valkey")


def prepare() -> None:
    """For ``serve``: whatever is not given from outside is made and kept."""
    var_dir().mkdir(parents=True, exist_ok=True)
    os.environ["DJANGO_SECRET_KEY"] = os.environ.get("DJANGO_SECRET_KEY") or _kept_secret()
    os.environ["REDIS_URL"] = os.environ.get("REDIS_URL") or embedded_valkey().url


def adopt() -> None:
    """For the operator's commands: use what a ``serve`` on this machine has made, if it has."""
    if not os.environ.get("DJANGO_SECRET_KEY") and _secret_file().exists():
        os.environ["DJANGO_SECRET_KEY"] = _secret_file().read_text().strip()
    if not os.environ.get("REDIS_URL") and _answers(embedded_valkey().socket):
        os.environ["REDIS_URL"] = embedded_valkey().url


def stand_apart() -> None:
    """For ``cluster``, whose own process touches none of the rows: its nodes have their own key."""
    os.environ["DJANGO_SECRET_KEY"] = secrets.token_urlsafe(50)
    os.environ["DATABASE_URL"] = "sqlite://:memory:"
    os.environ.pop("REDIS_URL", None)


def _secret_file() -> Path:
    return var_dir() / "secret_key"


def _kept_secret() -> str:
    """The same after each start, or every start would sign everybody out. Of two that start at
    the same time, the one who links the file first decides.
    """
    if not _secret_file().exists():
        fresh = _secret_file().with_suffix(f".{os.getpid()}")
        with open(fresh, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secrets.token_urlsafe(50))
        try:
            os.link(fresh, _secret_file())
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return _secret_file().read_text().strip()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
