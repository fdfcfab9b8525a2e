"""Every number of seconds, every limit and every size, each with its reason.

Read from the environment once, as ``AGENT_<NAME>``; a wrong value is refused with the variable's
name. All take fractions, so that tests run with short times. Code says ``conf.lease_ttl`` at the
moment of use (never as a default argument), so a test may set an attribute and be obeyed.
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class Conf(BaseSettings):
    """The settings of CONTRACT.md section 2 that start with ``AGENT_``; times are seconds."""

    model_config = SettingsConfigDict(env_prefix="AGENT_", validate_assignment=True)

    # Leases: three beats to a life, so that two may be lost to a pause or a network.
    lease_ttl: float = Field(10, gt=0, description="how long a lease lives without a beat")
    heartbeat_interval: float = Field(3, gt=0, description="how often a supervisor beats")
    lease_grace: float = Field(2, ge=0, description="how long an expired lease is forgiven")
    guard_interval: float = Field(1, gt=0, description="how often the guard looks")
    mass_event_min: int = Field(
        4, ge=1, description="fewer leases than this are never a mass event"
    )
    stall_after: float = Field(300, gt=0, description="silence after which a live run is stalled")

    # Budgets: what ends a run that lives but goes nowhere.
    model_silence: float = Field(
        600, gt=0, description="longest silence of a provider in a call; stalled comes before"
    )
    model_retries: int = Field(2, ge=0, description="of a step that failed before its first word")
    model_retry_pause: float = Field(1, ge=0, description="before the first retry; then doubled")
    tool_timeout: float = Field(120, gt=0, description="longest a single tool may take")
    tool_kill_grace: float = Field(
        1, ge=0, description="what a plain tool's process has to put things down, once told to end"
    )
    mcp_connect: float = Field(
        20, gt=0, description="to reach an MCP server, and to read its list of tools"
    )
    mcp_retry: float = Field(
        30, ge=0, description="an MCP server that was not reached is left alone before model calls"
    )
    run_limit: float = Field(
        3600, gt=0, description="longest a run is executed, without what it waits for"
    )
    max_steps: int = Field(50, ge=1, description="model calls in one run: a loop ends somewhere")
    max_attempts: int = Field(3, ge=1, description="claims of one run before it is quarantined")

    # Rendezvous.
    await_default: float = Field(120, gt=0, description="a wait whose caller named no timeout")
    await_max: float = Field(300, gt=0, description="the longest wait a model may ask for")
    await_poll: float = Field(1, gt=0, description="the poll behind each wait's wake-up")
    tail_limit: float = Field(
        120, ge=0, description="how long a finished master waits for children"
    )

    # Interrupts.
    stop_ack: float = Field(3, ge=0, description="how long a stop waits for its proof")
    stop_grace: float = Field(
        10, gt=0, description="after which a run that does not stop is fenced"
    )

    # Workers.
    drain: float = Field(20, ge=0, description="how long a step may finish at a worker's shutdown")
    claim_poll: float = Field(1, gt=0, description="the poll behind the wake-up for new work")
    concurrency: int = Field(16, ge=1, description="runs at once in one runner")
    solitude: float = Field(
        10, ge=0, description="a last attempt: how long it waits for, and then has, its own runner"
    )
    restart_pause: float = Field(
        0.5, ge=0, description="so that a runner that dies at birth cannot spin"
    )

    database_patience: float = Field(
        60, ge=0, description="an outage of the database that a run waits out"
    )

    # Questions.
    question_ttl: float = Field(86400, gt=0, description="when an unanswered question expires")

    # What operators are shown; nothing is judged by these.
    queue_patience: float = Field(
        30,
        gt=0,
        description="a run that waits longer for a runner is shown: a person has noticed by then",
    )
    question_notice: float = Field(
        3600, ge=0, description="an open question is shown so long before it expires"
    )
    node_memory: float = Field(
        604800, gt=0, description="how long a prune leaves a node that is gone: a week to look back"
    )

    # Bounds.
    max_depth: int = Field(3, ge=1, description="nesting of sub-agents; the master is depth 0")
    max_hops: int = Field(64, ge=1, description="agent-to-agent messages per user turn")
    inbox_limit: int = Field(1000, ge=1, description="pending messages per agent")
    inbox_tries: int = Field(
        5, ge=1, description="deliveries that never reach the memory, before a message is dead"
    )
    message_bytes: int = Field(1024 * 1024, ge=1, description="largest message, in UTF-8 bytes")
    preview_chars: int = Field(200, ge=1, description="a preview wakes; the row is the content")

    # MCP servers are strangers: what is taken of their words.
    mcp_tools: int = Field(128, ge=1, description="tools of one; OpenAI takes no more in a request")
    mcp_spec_bytes: int = Field(
        32 * 1024, ge=1, description="one tool's description and schema: in each model call"
    )
    mcp_message_bytes: int = Field(
        8 * 1024 * 1024, ge=1, description="one answer on the wire: a picture, and no film"
    )
    mcp_result_bytes: int = Field(
        128 * 1024, ge=1, description="what a model reads of a result; more would be its context"
    )
    schema_steps: int = Field(
        5000, ge=1, description="of checking arguments against a schema: some for each value"
    )

    # Rates, each a minute's worth, which may come at once; 0 is no limit. They are for the loop
    # gone wrong and the flood, so no person, suite or benchmark meets them: a hundred a second is
    # more than a node of two cores takes.
    rate_user: int = Field(6000, ge=0, description="changes by one user, on all nodes and sockets")
    rate_address: int = Field(
        12000, ge=0, description="changes from one address: an office has many users behind one"
    )
    rate_signin: int = Field(
        60,
        ge=0,
        description="passwords tried from one address: an office comes in, a list does not",
    )

    # Streams.
    stream_poll: float = Field(1, gt=0, description="the poll behind a reader's wake-up")
    stream_keepalive: float = Field(
        10, gt=0, description="a comment line, well under the 15 s promised"
    )
    stream_buffer: int = Field(2000, ge=1, description="events a slow reader may lag behind")
    stream_chars: int = Field(
        8 * 1024 * 1024, ge=1, description="of one SSE response; its reader comes again with its id"
    )
    prune_after: float = Field(
        86400, ge=0, description="age at which a prune folds events: a tab is left for a night"
    )
    hint_bytes: int = Field(16384, ge=0, description="largest copy of events inside a wake-up")
    redis_timeout: float = Field(
        1, gt=0, description="Redis only hurries: nobody waits longer for it"
    )


def load() -> Conf:
    """Read the environment. Raises ImproperlyConfigured naming each variable that is wrong."""
    try:
        return Conf()
    except ValidationError as error:
        faults = (f"AGENT_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
        raise ImproperlyConfigured("; ".join(faults)) from None


conf = load()
