"""One line per fact, with the session, run and agent that it is about.

Whoever works for a run binds them once (``structlog.contextvars.bind_contextvars(session=…, run=…,
agent=…)``); from then on every line of that task carries them, those of libraries too, because the
standard library's logging goes through the same processors. Lines are JSON unless a person looks:
a terminal gets colours. They go to stderr: stdout belongs to what a command was asked for.
"""

import logging.config
import sys
from typing import Any

import structlog
from structlog.typing import Processor


def _shared() -> list[Processor]:
    """What happens to a line, whoever wrote it."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _renderers() -> list[Processor]:
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer()]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(ensure_ascii=False),
    ]


def configuration(level: str) -> dict[str, Any]:
    """For Django's LOGGING."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _shared(),
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    *_renderers(),
                ],
            }
        },
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "structured"},
        },
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django gives this one handlers and mails of its own; ours are enough.
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            # One line per request of every library's client is noise beside our own events.
            "daphne": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            "httpcore": {"level": "WARNING"},
            "httpx2": {"level": "WARNING"},  # and its lines hold whole addresses
            "httpcore2": {"level": "WARNING"},
            # What goes wrong with an MCP server is told by chat.tools.mcp, without its words.
            "mcp": {"level": "CRITICAL"},
            "client": {"level": "CRITICAL"},  # the library's name for its session
            "asyncio": {"level": "WARNING"},
        },
    }


def configure() -> None:
    """Called by the settings, so that every process of the site logs alike."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.captureWarnings(True)
