"""From DATABASE_URL to a connection on which the rules of this system hold.

SQLite: WAL, so that readers never wait; every transaction takes the write lock when it begins
(IMMEDIATE), because one that finds out later that it cannot write fails at once instead of waiting.

MySQL and MariaDB: READ COMMITTED, or a poll inside a transaction would never see the row that it
waits for; UTC, because the database's clock judges leases; strict, because a value cut short is a
wrong value. MariaDB from 11.6 has ``innodb_snapshot_isolation`` on, which answers a lost race with
an error instead of "0 rows": it is switched off where it exists, by a comment that only those
servers execute.
"""

from typing import Any

import dj_database_url

from agentsite.environment import SiteEnvironment

SQLITE_BUSY_SECONDS = 20  # longer than any honest transaction, shorter than a person's patience
WORKER_CONNECTION_SECONDS = 60

SQLITE_SETUP = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    PRAGMA foreign_keys = ON;
"""
MYSQL_SETUP = (
    "SET time_zone = '+00:00',"
    " sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
    " /*M!110602 , innodb_snapshot_isolation = OFF */"
)


def database(env: SiteEnvironment) -> dict[str, Any]:
    """One entry for Django's DATABASES."""
    if not env.database_url:
        env.agentsite_var.mkdir(parents=True, exist_ok=True)
    url = env.database_url or f"sqlite:///{env.agentsite_var / 'db.sqlite3'}"
    config: dict[str, Any] = dict(dj_database_url.parse(url))
    is_sqlite = config["ENGINE"].endswith("sqlite3")
    config["OPTIONS"] = {**config.get("OPTIONS", {}), **(_sqlite() if is_sqlite else _mysql())}
    if env.agentsite_role == "worker":
        # A worker has few threads, for life. A web node has one per request, so that a connection
        # kept is a connection leaked: there Django's default of 0 stays.
        config["CONN_MAX_AGE"] = WORKER_CONNECTION_SECONDS
        config["CONN_HEALTH_CHECKS"] = True
    return config


def _sqlite() -> dict[str, Any]:
    return {
        "timeout": SQLITE_BUSY_SECONDS,
        "transaction_mode": "IMMEDIATE",
        "init_command": SQLITE_SETUP,
    }


def _mysql() -> dict[str, Any]:
    return {
        "charset": "utf8mb4",
        "isolation_level": "read committed",
        "init_command": MYSQL_SETUP,
    }
