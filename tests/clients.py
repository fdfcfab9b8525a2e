"""People and programs that use the site in the tests of its transports."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import Event
from django.contrib.auth import get_user_model
from django.test import AsyncClient
from pydantic import TypeAdapter

from chat.models import ApiToken
from coordination import endings, events, runs, vocabulary
from coordination.db import db
from coordination.models import Run
from coordination.transactions import locked

EVENT = TypeAdapter(Event)


@dataclass
class Caller:
    """Somebody with a token, and a client that sends it."""

    user: object
    token: str
    client: AsyncClient = field(default_factory=AsyncClient)

    @classmethod
    async def named(cls, name):
        def make():
            user, _ = get_user_model().objects.get_or_create(username=name)
            return cls(user, ApiToken.issue(user, "test"))

        return await db(make)

    async def call(self, method, path, body=None, **headers):
        """A request to the API with this caller's token."""
        arguments = {}
        if method != "get":
            data = b"" if body is None else body
            data = data if isinstance(data, (str, bytes)) else json.dumps(data)
            arguments = {"data": data, "content_type": "application/json"}
        call = getattr(self.client, method)
        headers = {"Authorization": f"Bearer {self.token}", **headers}
        return await call(f"/api{path}", headers=headers, **arguments)

    async def new_session(self, **body):
        response = await self.call("post", "/chat", body)
        assert response.status_code == 201, response.content
        return response.json()["id"]


async def frames(response):
    """The events of an SSE response, each valid AG-UI; comments and ``retry`` are left out."""
    text = ""
    async for chunk in response.streaming_content:
        text += chunk.decode()
        *whole, text = text.split("\n\n")
        for block in whole:
            fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
            if "data" not in fields:
                continue
            event = json.loads(fields["data"])
            EVENT.validate_python(event)
            assert fields["event"] == event["type"]
            yield int(fields["id"]), event


async def take(found, count):
    """The next ``count`` of them; all, if the stream ends before."""
    taken: list[tuple[int, dict[str, Any]]] = []
    async with asyncio.timeout(20):
        while len(taken) < count and (item := await anext(found, None)) is not None:
            taken.append(item)
    return taken


async def take_until(found, kind):
    """All up to the first of this type."""
    taken = await take(found, 1)
    while taken[-1][1]["type"] != kind:
        taken += await take(found, 1)
    return taken


async def eventually(condition):
    """Wait until it is true; a loaded machine may take its time."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def claim(run_id):
    """Be the runner of a queued run."""
    run = await db(Run.objects.get, pk=run_id)
    claimed = await db(runs.claim, run.pk, run.session_id, "test-runner", "test-node")
    assert claimed is not None
    return claimed


async def say(run, *pieces, message_id="m1", ended=True):
    """Stream a message, as a runner does."""

    def write():
        with locked(run.session_id) as session:
            events.append(session, run, vocabulary.text_start(run, message_id))
            for piece in pieces:
                events.append(session, run, vocabulary.text_content(run, message_id, piece))
            if ended:
                events.append(session, run, vocabulary.text_end(run, message_id))

    await db(write)


async def finish(run, status="completed", reason="completed", **values):
    """End a run, as its owner does."""

    def settle():
        with locked(run.session_id) as session:
            fresh = Run.objects.get(pk=run.pk)
            return endings.settle(session, fresh, status, reason=reason, by="test", **values)

    assert await db(settle)
