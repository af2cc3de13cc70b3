"""Where streams meet what else goes on: keys that end, text that comes late, places ahead of the follower, erasure."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.api.runs.conftest import ServeRuns
from tests.api.runs.scenes import RunServed, Says, following
from tollhouse.api import feeds, streams
from tollhouse.api.feeds import Feed
from tollhouse.models.port import ModelReply, ModelRequest, OnText
from tollhouse.runs.live import Text

ASK = [("ask_person", {"question": "Sure?"})]


async def test_busy_stream_ends_once_its_key_is_revoked(serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that always has news is no way around the end of a key."""
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr("tollhouse.api.auth.REREAD_S", 0.0)
    served = await serve_runs(Says("Done."), keys=True, drive=False)
    key, token = await served.keys.create("ada", ("runs:read", "runs:write"))
    client = await served.client(token)
    run_id = await served.started(client)

    async def talk() -> None:
        said = 0
        while True:
            served.runs.bus.tell(Text(run_id, 1, "x", said))
            said += 1
            await asyncio.sleep(0.02)

    async with following(client, run_id) as events, asyncio.timeout(10):
        talking = asyncio.create_task(talk())
        assert (await anext(events))["event"] == "run_started"
        await served.keys.revoke(key.id)
        heard_of = [event["event"] async for event in events]
        talking.cancel()
    assert "run_succeeded" not in heard_of


class Mentions(Says):
    """A model that says something while it asks for a question, then is done."""

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Stream the text, if anybody listens, and answer at once."""
        reply = await super().ask(request)
        if not reply.asks:
            return reply
        if on_text is not None:
            await on_text("I have to ask.")
        return replace(reply, text="I have to ask.")


def reading_held_up(served: RunServed) -> asyncio.Event:
    """The one follower reads the journal no further until this is set."""
    ((feed, _),) = served.app.state.feeds._feeds.values()
    read, may_read = feed._read, asyncio.Event()

    async def late() -> None:
        await may_read.wait()
        await read()

    feed._read = late
    return may_read


async def test_text_of_an_answer_that_is_recorded_is_not_told_again(serve_runs: ServeRuns) -> None:
    """The pieces of a quick answer reach the follower of a run after it has read the record of it."""
    served = await serve_runs(Mentions(ASK, "Done."), drive=False)
    client = await served.client()
    run_id = await served.started(client)
    async with following(client, run_id) as events, asyncio.timeout(10):
        got = [await anext(events)]
        may_read = reading_held_up(served)
        await asyncio.sleep(2 * feeds.LOOK_S)  # the follower is about to look
        await served.driver.settle()
        may_read.set()
        while "awaiting_answer" not in got[-1]["data"]:
            got.append(await anext(events))
        await served.runs.cancel(run_id, by="ada")
        got += [event async for event in events]
    assert [event["event"] for event in got if "I have to ask." in event["data"]] == ["model_answered"]


@pytest.mark.parametrize("shape", ["events", "ag-ui"])
async def test_reader_ahead_of_the_follower_is_not_told_what_it_has(serve_runs: ServeRuns, shape: str) -> None:
    """Whoever has the record of an answer does not hear its pieces from a follower that has yet to read it."""
    served = await serve_runs(Mentions(ASK, "Done."), drive=False)
    client = await served.client()
    run_id = await served.started(client)
    async with following(client, run_id) as early, asyncio.timeout(10):
        await anext(early)
        served.runs.bus.tell(Text(run_id, 1, "I have", 0))
        assert (await anext(early)).data["text"] == "I have"
        may_read = reading_held_up(served)
        await served.driver.settle()
        async with following(client, run_id, after=3, format=shape) as ahead:  # after the record of the answer
            await asyncio.sleep(2 * feeds.LOOK_S)
            may_read.set()
            await served.runs.cancel(run_id, by="ada")
            got = [event async for event in ahead]
    assert all("I have" not in event["data"] or "SNAPSHOT" in event["data"] for event in got)


@pytest.mark.parametrize("remembered", [False, True])
async def test_reader_is_sent_no_more_at_a_time_than_is_good_for_memory(
    serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    """Long texts come a few at a time, however many lines a page may have."""
    monkeypatch.setattr(feeds, "PAGE_BYTES", 100_000)
    served = await serve_runs(Mentions(*[ASK] * 4, "Done."), drive=False)
    started = await served.runs.start("helper", "Do it.", by="ada")
    run_id = started.id
    for turn in range(1, 5):
        await served.driver.settle()
        await served.runs.answer(run_id, f"{run_id}:{turn}.1", "yes " * 20_000, by="ada")
    await served.driver.settle()
    record = (await served.runs.get(run_id)).record
    feed, place, pages = Feed(served.runs, started.record if remembered else record), 0, 0
    await feed._read()
    while lines := await feed.lines(place):
        assert [line.event.seq for line in lines] == list(range(place + 1, lines[-1].event.seq + 1))
        assert sum(len(line.sent) for line in lines[:-1]) <= feeds.PAGE_BYTES
        place, pages = lines[-1].event.seq, pages + 1
    assert place == record.head_seq
    assert pages > 4
