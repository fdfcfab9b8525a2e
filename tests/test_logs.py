"""A line says which session, run and agent it is about, whoever wrote it."""

import io
import json
import logging
import logging.config

import pytest
import structlog

from agentsite import logs


@pytest.fixture
def lines(monkeypatch):
    """What a process of the site would write to stderr, each line as a program reads it."""
    output = io.StringIO()
    monkeypatch.setattr("sys.stderr", output)
    config = logs.configuration("INFO")
    formatter = config["formatters"]["structured"]
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=formatter["foreign_pre_chain"], processors=formatter["processors"]
        )
    )
    logger = logging.getLogger("somebody")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    monkeypatch.setattr(logger, "propagate", False)
    yield lambda: [json.loads(line) for line in output.getvalue().splitlines()]
    logger.removeHandler(handler)


def test_a_librarys_line_carries_the_run_it_was_written_for(lines):
    with structlog.contextvars.bound_contextvars(session="s1", run="r1", agent="assistant"):
        logging.getLogger("somebody").warning("the model is %s", "slow", extra={"seconds": 3})
    (line,) = lines()
    assert line["event"] == "the model is slow"
    assert (line["session"], line["run"], line["agent"]) == ("s1", "r1", "assistant")
    assert (line["level"], line["seconds"]) == ("warning", 3)


def test_an_exception_is_one_line(lines):
    try:
        raise RuntimeError("broken\nin two")
    except RuntimeError:
        logging.getLogger("somebody").exception("it failed")
    (line,) = lines()
    assert "RuntimeError: broken\nin two" in line["exception"]
    assert "session" not in line
