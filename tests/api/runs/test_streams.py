"""Following a run: everything once and in order, from any place, for as many readers as come."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.conftest import problem
from tests.api.runs.conftest import ServeRuns, on_both_stores
from tests.api.runs.scenes import Heard, Says, SaysHalf, events_of, following, heard, numbers
from tests.api.shop import Shop
from tollhouse.api import streams
from tollhouse.bench.streams import measure_streams
from tollhouse.errors import StoreUnavailable
from tollhouse.ledger.events import Event
from tollhouse.runs.journal import commit
from tollhouse.runs.states import RunState
from tollhouse.runs.steps import question_answered


@on_both_stores
async def test_reader_from_the_start_gets_every_event_once_and_then_the_end(serve_runs: ServeRuns, shop: Shop) -> None:
    """What is stored comes first, then what happens; the stream ends with the run."""
    served = await serve_runs(Says([("balance", {"account_id": "a1"})], "It is zero."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    events = await heard(client, run_id)
    head = (await served.runs.get(run_id)).record.head_seq
    assert numbers(events) == list(range(1, head + 1))
    stored = [event for event in events if event["id"] is not None]
    assert [event["event"] for event in stored][:2] == ["run_started", "run_claimed"]
    assert stored[-1]["event"] == "run_succeeded"
    assert all(event.data["seq"] == int(event["id"]) for event in stored)
    assert all(event.data.keys() == {"seq", "at", "kind", "facts"} for event in stored)


# case C73
async def test_reader_that_comes_back_goes_on_after_its_last_id(serve_runs: ServeRuns, shop: Shop) -> None:
    """Nothing is sent again, nothing is left out, whatever the place."""
    served = await serve_runs(Says([("balance", {"account_id": "a1"})], "It is zero."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    whole = numbers(await heard(client, run_id))
    for place in range(whole[-1]):
        assert numbers(await heard(client, run_id, after=place)) == whole[place:]


# case C64
async def test_stream_that_was_cut_is_continued_to_the_end(serve_runs: ServeRuns, shop: Shop) -> None:
    """A reader whose connection broke in the middle of a run misses nothing and hears its end."""
    served = await serve_runs(Says([("slow", {"item": "x"})], "Done."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    got: list[int] = []
    async with following(client, run_id) as events:
        async for event in events:
            got.append(int(event["id"]))
            if event["event"] == "model_answered":
                break
    shop.go_on.set()
    got += numbers(await heard(client, run_id, after=got[-1]))
    assert got == list(range(1, (await served.runs.get(run_id)).record.head_seq + 1))


async def test_ended_run_tells_a_reader_who_has_everything_not_to_come_back(serve_runs: ServeRuns) -> None:
    """A browser that reconnects after the end is sent 204, upon which it stops."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    run_id = await served.started(client)
    last = numbers(await heard(client, run_id))[-1]
    response = await client.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": str(last)})
    assert response.status_code == 204


async def test_ended_run_that_is_not_tidied_still_has_something_to_tell(
    serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has its end and comes back before the last note about it is written gets that note."""
    served = await serve_runs(Says([("ask_person", {"question": "Sure?"})]))
    client = await served.client()
    run_id = await served.started(client)
    await served.asks(run_id, f"{run_id}:1.1")
    tidy, may_tidy = served.runs._ending.tidy, asyncio.Event()

    async def late(*given: Any) -> Any:
        await may_tidy.wait()
        return await tidy(*given)

    monkeypatch.setattr(served.runs._ending, "tidy", late)
    cancelling = asyncio.create_task(served.runs.cancel(run_id, by="ada"))
    await served.until(run_id, RunState.CANCELLED)
    head = (await served.runs.get(run_id)).record.head_seq
    async with following(client, run_id, after=head) as events, asyncio.timeout(10):
        may_tidy.set()
        assert [event["event"] async for event in events] == ["run_tidied"]
    await cancelling


# case C74
@pytest.mark.parametrize("place", ["{other}/1", "999", "-1", "one", "1/2", "{run}/999"])
async def test_place_that_is_not_in_this_run_is_refused(serve_runs: ServeRuns, place: str) -> None:
    """A cursor of another run, of the future, or of nothing, is an error before anything is sent."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    run_id, other = await served.started(client), await served.started(client)
    await served.until(run_id, RunState.SUCCEEDED)
    cursor = place.format(run=run_id, other=other)
    response = await client.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": cursor})
    problem(response, 422, "invalid_cursor")


async def test_place_with_its_run_is_taken(serve_runs: ServeRuns) -> None:
    """``<run>/<seq>`` says the same as ``<seq>``, and can be told from one of another run."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.SUCCEEDED)
    assert numbers(await heard(client, run_id, after=f"{run_id}/2"))[0] == 3
    response = await client.get(f"/v1/runs/{run_id}/events", params={"after": "2"})
    assert numbers([event async for event in events_of(response)])[0] == 3


async def test_unknown_run_has_no_stream(serve_runs: ServeRuns) -> None:
    """It is told before a stream begins."""
    served = await serve_runs(Says("Done."))
    problem(await (await served.client()).get("/v1/runs/run_none/events"), 404, "unknown_run")


async def test_text_comes_as_the_model_says_it_and_whole_in_the_end(serve_runs: ServeRuns) -> None:
    """Pieces have no id, say where they belong, and add up to what is recorded."""
    model = SaysHalf("One two", " three.")
    served = await serve_runs(model)
    client = await served.client()
    run_id = await served.started(client)
    got: list[Heard] = []
    async with following(client, run_id) as events, asyncio.timeout(20):
        async for event in events:
            got.append(event)
            if event["event"] == "text":
                model.go_on.set()
    text = next(event for event in got if event["event"] == "text")
    assert text["id"] is None
    assert text.data == {"turn": 1, "at": 0, "text": "One two"}
    recorded = next(event for event in got if event["event"] == "model_answered")
    assert got.index(text) < got.index(recorded)
    assert recorded.data["facts"]["message"]["text"] == "One two three."


async def test_reader_who_comes_in_the_middle_of_an_answer_hears_its_beginning(serve_runs: ServeRuns) -> None:
    """As long as somebody was listening; what nobody heard is in the recorded answer."""
    model = SaysHalf("One two", " three.")
    served = await serve_runs(model)
    client = await served.client()
    run_id = await served.started(client)
    async with following(client, run_id) as early, asyncio.timeout(20):
        async for event in early:
            if event["event"] == "text":
                break
        async with following(client, run_id) as late:
            async for event in late:
                if event["event"] == "text":
                    assert event.data == {"turn": 1, "at": 0, "text": "One two"}
                    break
    model.go_on.set()


@on_both_stores
async def test_events_of_another_process_are_found(serve_runs: ServeRuns) -> None:
    """What no hint tells of, since another process wrote it, is found by looking."""
    served = await serve_runs(Says([("ask_person", {"question": "Sure?"})], "Done."))
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.AWAITING_ANSWER)
    await served.driver.stop()
    async with following(client, run_id) as events:
        async for event in events:
            if event["event"] == "run_waiting" and event.data["facts"]["state"] == "awaiting_answer":
                break
        record = (await served.runs.get(run_id)).record
        change = question_answered(record, f"{run_id}:1.1", "Yes.", "ada", record.updated_at_us)
        await commit(served.runs.store, change, "written-elsewhere")
        async with asyncio.timeout(10):
            assert (await anext(events))["event"] == "question_answered"


@on_both_stores
async def test_reader_at_another_server_gets_the_same(serve_runs: ServeRuns, shop: Shop) -> None:
    """Whoever serves a run need not drive it, and people may decide at any server."""
    here = await serve_runs(Says([("delete", {"path": "/a"})], "Done."), *shop.tools)
    there = await serve_runs(Says("Never asked."), *shop.tools, drive=False)
    client, other = await here.client(), await there.client()
    run_id = await here.started(client)
    async with following(other, run_id) as events, asyncio.timeout(20):
        got = []
        async for event in events:
            got.append(event)
            if event.data["facts"]["state"] == "awaiting_approval":
                await there.house.approve(f"{run_id}:1.1", by="ada")
    assert [event.data for event in got] == [event.data for event in await heard(client, run_id)]
    assert shop.effects == [{"deleted": "/a"}]


async def test_slow_reader_holds_nobody_up_and_loses_nothing(
    serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads older lines from the store, also those that nobody remembers any more."""
    monkeypatch.setattr("tollhouse.api.feeds.LINES_MOST", 2)
    monkeypatch.setattr("tollhouse.api.feeds.BYTES_MOST", 1)
    monkeypatch.setattr("tollhouse.api.feeds.PAGE", 3)
    turns = [[("ask_person", {"question": f"Sure? {number}"})] for number in range(6)]
    served = await serve_runs(Says(*turns, "Done."))
    client = await served.client()
    run_id = await served.started(client)
    async with following(client, run_id) as slow:
        got = [int((await anext(slow))["id"])]
        for number in range(1, 7):
            await served.asks(run_id, f"{run_id}:{number}.1")
            answer = {"text": "yes"}
            path = f"/v1/runs/{run_id}/questions/{run_id}:{number}.1/answer"
            assert (await client.post(path, json=answer)).status_code == 200
        await served.until(run_id, RunState.SUCCEEDED)
        got += numbers([event async for event in slow])
    assert got == list(range(1, (await served.runs.get(run_id)).record.head_seq + 1))


async def test_store_that_comes_and_goes_delays_readers_and_loses_nothing(
    serve_runs: ServeRuns, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on after the last line that was read, also where it broke off in the middle of a page."""
    monkeypatch.setattr("tollhouse.api.feeds.AWAY_S", 0.01)
    served = await serve_runs(
        Says([("balance", {"account_id": "a1"})], [("slow", {"item": "x"})], "Done."), *shop.tools
    )
    facts, asked = served.runs.facts, 0

    async def comes_and_goes(event: Event) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked % 3 == 0:
            raise StoreUnavailable("The store is away.")
        return await facts(event)

    monkeypatch.setattr(served.runs, "facts", comes_and_goes)
    client = await served.client()
    run_id = await served.started(client)
    async with following(client, run_id) as events, asyncio.timeout(20):
        got = [int((await anext(events))["id"])]
        shop.go_on.set()
        got += numbers([event async for event in events])
    assert got == list(range(1, (await served.runs.get(run_id)).record.head_seq + 1))
    assert asked > len(got)


async def test_quiet_stream_is_kept_alive_by_comments(serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody on the way takes a run that waits for days for a dead connection."""
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    served = await serve_runs(Says([("ask_person", {"question": "Sure?"})], "Done."))
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.AWAITING_ANSWER)
    async with client.stream("GET", f"/v1/runs/{run_id}/events") as response, asyncio.timeout(10):
        async for line in response.aiter_lines():
            if line.startswith(":"):
                return


async def test_stream_ends_once_its_key_is_revoked(serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams live longer than keys: whoever may not read any more is not read to."""
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr("tollhouse.api.auth.REREAD_S", 0.0)
    served = await serve_runs(Says([("ask_person", {"question": "Sure?"})], "Done."), keys=True)
    key, token = await served.keys.create("ada", ("runs:read", "runs:write"))
    client = await served.client(token)
    run_id = await served.started(client)
    await served.until(run_id, RunState.AWAITING_ANSWER)
    async with following(client, run_id) as events, asyncio.timeout(10):
        assert (await anext(events))["event"] == "run_started"
        await served.keys.revoke(key.id)
        rest = [event["event"] async for event in events]
    assert rest[-1] == "run_waiting"


async def test_reader_that_goes_away_leaves_nothing_behind(serve_runs: ServeRuns) -> None:
    """The follower of a run ends with its last reader; the run itself goes on."""
    served = await serve_runs(Says([("ask_person", {"question": "Sure?"})], "Done."))
    client = await served.client()
    run_id = await served.started(client)
    async with following(client, run_id) as first, following(client, run_id) as second:
        await anext(first)
        await anext(second)
        assert len(served.app.state.feeds) == 1
    async with asyncio.timeout(10):
        while len(served.app.state.feeds):  # noqa: ASYNC110 - the server notices by itself
            await asyncio.sleep(0.01)
    await served.asks(run_id, f"{run_id}:1.1")
    await served.runs.answer(run_id, f"{run_id}:1.1", "yes", by="ada")
    await served.until(run_id, RunState.SUCCEEDED)


async def test_server_that_stops_ends_its_streams(serve_runs: ServeRuns) -> None:
    """A reader is let go at once, and comes back to whoever serves then."""
    served = await serve_runs(Says([("ask_person", {"question": "Sure?"})], "Done."))
    client = await served.client()
    run_id = await served.started(client)
    async with following(client, run_id) as events, asyncio.timeout(10):
        await anext(events)
        served.app.state.stopping.set()
        rest = [event async for event in events]
    assert all(event["event"] != "run_succeeded" for event in rest)


async def test_reading_needs_a_key_that_may(serve_runs: ServeRuns) -> None:
    """The scope is asked for before the run is looked up."""
    served = await serve_runs(Says("Done."), keys=True)
    client = await served.of("ada", "calls:read")
    problem(await client.get("/v1/runs/run_none/events"), 403, "not_authorized")
    problem(await (await served.client()).get("/v1/runs/run_none/events"), 401, "not_authenticated")


async def test_long_texts_come_whole(serve_runs: ServeRuns) -> None:
    """What the journal keeps as a body of its own is put back."""
    text = "word " * 40_000
    served = await serve_runs(Says(text))
    client = await served.client()
    run_id = await served.started(client, input=text)
    events = await heard(client, run_id)
    stored = {event["event"]: event.data["facts"] for event in events if event["id"] is not None}
    assert stored["run_started"]["messages"][0]["text"] == text
    assert stored["run_succeeded"]["output"] == text


@pytest.mark.slow
async def test_every_one_of_many_readers_gets_every_event_once() -> None:
    """Hundreds of readers of one live run, from another process."""
    measured = await measure_streams(200, 50, 2.0)
    assert (measured["lost"], measured["duplicates"]) == (0, 0)
    assert measured["events"] >= 100


async def test_plain_reader_needs_no_event_source(serve_runs: ServeRuns) -> None:
    """The stream is plain enough for any HTTP client: fields, blank lines, JSON."""
    served = await serve_runs(Says("Done."))
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        run_id = await served.started(client)
        async with client.stream("GET", f"/v1/runs/{run_id}/events") as response:
            assert response.headers["cache-control"] == "no-store"
            assert [event["event"] async for event in events_of(response)][-1] == "run_succeeded"
