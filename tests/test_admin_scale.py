"""The admin before a hundred thousand messages: few queries, and few rows read for any page.

MariaDB counts the rows that a connection reads; SQLite does not say.
"""

import time

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from chat.models import ChatSession, Message
from coordination.admin.windows import EstimatingPaginator
from coordination.models import (
    Event,
    InboxMessage,
    Lease,
    Question,
    Run,
    Session,
    Wait,
    WaitItem,
    WorkLogEntry,
)

MESSAGES = 100_000
PER_RUN = 10  # messages that each run has sent
IN_ONE_SESSION = MESSAGES // 2
IN_THE_OTHERS = 500
QUERIES = 40
ROWS = 6 * EstimatingPaginator.MOST
"""Read for one page: its count, its rows, the choices of its filters; never all there are."""

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "mysql", reason="the rows read are MariaDB's to count"),
]


def fill() -> ChatSession:
    """One very long conversation, and many short ones; the long one.

    Turns of a master and one sub-agent. Made by the database itself, or it would take minutes.
    """
    owner = User.objects.create_superuser("olga")
    runs = MESSAGES // PER_RUN
    sessions = 1 + (MESSAGES - IN_ONE_SESSION) // IN_THE_OTHERS
    insert(
        Session,
        sessions,
        id=uuid_of("seq - 1", 1),
        last_position=f"IF(seq = 1, {IN_ONE_SESSION}, {IN_THE_OTHERS}) * 11 DIV 10",
        created_at=AT,
    )
    insert(ChatSession, sessions, session_id=uuid_of("seq - 1", 1), owner_id=owner.pk)

    message = "(seq - 1)"
    session, index = place_of(message, IN_ONE_SESSION, IN_THE_OTHERS)
    sent = {"session_id": session, "sender": "'assistant'", "recipient": "'strategist'"}
    run, runs_session = (
        "(seq - 1)",
        place_of("(seq - 1)", IN_ONE_SESSION // 10, IN_THE_OTHERS // 10),
    )
    whose = {"session_id": runs_session[0]}
    of_run = {"run_id": uuid_of(run, 2), **whose}
    agent = {"agent_id": f"IF({run} % 2, 'researcher', 'assistant')"}
    insert(
        Run, runs, id=uuid_of(run, 2), **whose, **agent,
        parent_id=f"IF({run} % 2, {uuid_of(f'{run} - 1', 2)}, NULL)",
        root_id=uuid_of(f"{run} - {run} % 2", 2), position=f"11 * {runs_session[1]} + 1",
        status="'completed'", reason="'completed'", queued_at=AT, started_at=AT, ended_at=AT,
    )  # fmt: skip
    insert(
        Lease, runs, **of_run, **agent, epoch=1, node_id="'host-1'",
        runner_id=f"CONCAT('host-1.', {run} DIV 100)",
        acquired_at=AT, beat_at=AT, expires_at=AT, released_at=AT, end="'released'",
    )  # fmt: skip
    insert(
        Question, runs // 10, id="UUID()", run_id=uuid_of(f"10 * {run}", 2), tool_call_id="'q'",
        session_id=place_of(f"(10 * {run})", IN_ONE_SESSION // 10, IN_THE_OTHERS // 10)[0],
        agent_id="'assistant'", ui_type="'text'", question="'?'", opened_at=AT, closed_at=AT,
        state="'answered'", expires_at=AT,
    )  # fmt: skip
    insert(Wait, runs, **of_run, opened_at=AT, deadline_at=AT, closed_at=AT)
    for number in range(2):
        insert(WorkLogEntry, runs, **of_run, at=AT, kind="'note'", text=WORDS)
        insert(
            Event, runs, **of_run, seq=f"2 * {run} + {number}", type="'CUSTOM'", data="'{}'",
            created_at=AT,
        )  # fmt: skip
        insert(
            Message, runs, id="UUID()", **of_run, **agent, content=WORDS, created_at=AT,
            position=f"11 * {runs_session[1]} + {10 + number}", role="'assistant'",
        )  # fmt: skip
    insert(
        InboxMessage, MESSAGES, id=uuid_of(message, 3), **sent,
        position=f"{index} + {index} DIV {PER_RUN} + 2", kind="'note'", content=WORDS,
        sender_run_id=uuid_of(f"{message} DIV {PER_RUN}", 2), state="'acked'",
        in_reply_to_id=f"IF({message} % {PER_RUN}, {uuid_of(f'{message} - 1', 3)}, NULL)",
        created_at=AT, acked_at=AT,
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {WaitItem._meta.db_table} (wait_id, task_id)"
            f" SELECT id, {uuid_of('id', 3)} FROM {Wait._meta.db_table}"
        )
    return ChatSession.objects.order_by("pk")[0]


WORDS = "REPEAT('word ', 20)"
AT = "NOW(6) - INTERVAL 2 DAY + INTERVAL seq SECOND"


def uuid_of(number: str, kind: int) -> str:
    """The id of the row of that number, in SQL."""
    return f"CONCAT(LPAD(HEX({number}), 8, '0'), '-0000-4000-8000-00000000000{kind}')"


def place_of(number: str, first: int, others: int) -> tuple[str, str]:
    """The session of the row of that number, and which it is in there, in SQL."""
    later = f"{number} - {first}"
    session = f"IF({number} < {first}, 0, 1 + ({later}) DIV {others})"
    index = f"IF({number} < {first}, {number}, ({later}) % {others})"
    return uuid_of(session, 1), index


def insert(model, number, **given):
    """That many rows at once; what is not given is as the model has it."""
    names, values, params = [], [], []
    for field in model._meta.concrete_fields:
        if field.get_internal_type() == "BigAutoField":
            continue
        names.append(f"`{field.column}`")
        values.append(str(given.get(field.attname, "%s")).replace(" % ", " %% "))
        if field.attname not in given:
            params.append(field.get_db_prep_save(field.get_default(), connection))
    sql = f"INSERT INTO {model._meta.db_table} ({', '.join(names)})"
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} SELECT {', '.join(values)} FROM seq_1_to_{number}", params)


LISTS = [
    Session, Run, InboxMessage, Lease, Question, Wait, WaitItem, Event, WorkLogEntry,
    ChatSession, Message,
]  # fmt: skip


def pages(chat: ChatSession) -> dict[str, str]:
    """Name and address of what is opened."""

    def of(model, page, *args):
        name = f"{model._meta.app_label}_{model._meta.model_name}_{page}"
        return reverse(f"admin:{name}", args=args)

    found = {}
    for model in LISTS:
        address = of(model, "changelist")
        found[f"{model.__name__} list"] = address
        reached = min(model.objects.count(), EstimatingPaginator.MOST)
        found[f"{model.__name__} list, last page"] = f"{address}?p={-(-reached // 50)}"
    run = Run.objects.filter(session=chat.pk).order_by("position")[1000]
    message = InboxMessage.objects.filter(sender_run=run).order_by("-position")[0]
    rows = [chat, chat.session, run, run.leases.get(), message, chat.session.questions.all()[0]]
    rows += [chat.messages.all()[0], Wait.objects.filter(run=run).get()]
    found |= {f"one {type(row).__name__}": of(type(row), "change", row.pk) for row in rows}
    timeline = of(Session, "timeline", chat.pk)
    found |= {
        "timeline": timeline,
        "timeline, in the middle": f"{timeline}?upto=20000",
        "timeline, the beginning": f"{timeline}?upto=100",
        "runs of one user, today": f"{of(Run, 'changelist')}?q=user:olga&when=24h",
        "runs of one runner": f"{of(Run, 'changelist')}?q=runner:host-1.1",
        "a run by its id": f"{of(Run, 'changelist')}?q={run.pk}",
        "a message by its id": f"{of(InboxMessage, 'changelist')}?q={message.pk}",
        "messages of one session": f"{of(InboxMessage, 'changelist')}?session__id__exact={chat.pk}",
    }
    return found


def rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value) for name, value in cursor.fetchall() if name != "Handler_read_retry")


def test_no_page_asks_often_or_reads_everything(client):
    chat = fill()
    client.force_login(chat.owner)
    with connection.cursor() as cursor:  # what the server does by itself, sooner or later
        tables = ", ".join(model._meta.db_table for model in LISTS)
        cursor.execute(f"ANALYZE TABLE {tables}")
        cursor.fetchall()
    client.get(reverse("admin:index"))
    told, wrong = [], []
    for name, address in pages(chat).items():
        before, started = rows_read(), time.perf_counter()
        with CaptureQueriesContext(connection) as asked:
            assert client.get(address).status_code == 200, name
        took = time.perf_counter() - started
        read = rows_read() - before
        told.append(f"{name}: {len(asked)} queries, {read} rows, {took * 1000:.0f} ms")
        if len(asked) > QUERIES or read > ROWS:
            wrong.append(told[-1])
    print("\n".join(told))
    assert not wrong, "\n".join(wrong)
