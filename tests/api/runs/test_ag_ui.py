"""AG-UI out: a run's journal as events of the protocol, judged by a validator that knows its rules."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ag_ui_validate.pytest_plugin import assert_valid_agui

from tests.api.runs.conftest import ServeRuns, on_both_stores
from tests.api.runs.scenes import RunServed, Says, SaysHalf, following, heard
from tests.api.shop import Shop
from tollhouse.models.port import ModelFailed
from tollhouse.runs.agents import Agent, Limits
from tollhouse.runs.states import RunState

Events = list[dict[str, Any]]


async def as_ag_ui(served: RunServed, run_id: str) -> Events:
    """The whole stream of a run that ends, which is valid."""
    events = [event.data for event in await heard(await served.client(), run_id, format="ag-ui")]
    assert_valid_agui(events, features=["shared-state"], max_warnings=0)
    return events


def kinds(events: Events) -> list[str]:
    """The types of events, without those about state and messages as a whole."""
    return [event["type"] for event in events if event["type"] not in ("STATE_SNAPSHOT", "STATE_DELTA")]


def only(events: Events, kind: str) -> Events:
    """Those of one type."""
    return [event for event in events if event["type"] == kind]


@on_both_stores
async def test_run_with_a_call_is_one_ag_ui_run(serve_runs: ServeRuns, shop: Shop) -> None:
    """Text, calls, results and steps come in the protocol's order, and nothing is left open."""
    served = await serve_runs(Says([("credit", {"account_id": "a1", "amount_cents": 5})], "Done."), *shop.tools)
    run_id = await served.started(await served.client())
    events = await as_ag_ui(served, run_id)
    expected = [
        *("RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED"),
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("STEP_FINISHED", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        *("STEP_FINISHED", "RUN_FINISHED"),
    ]
    assert kinds(events) == expected
    assert only(events, "TOOL_CALL_RESULT")[0]["metadata"]["tollhouse"]["call_state"] == "succeeded"
    assert events[-1]["outcome"] == {"type": "success"}
    assert events[-1]["result"] == "Done."
    assert events[-1]["usage"] == [{"model": "says", "inputTokens": 20, "outputTokens": 10, "totalTokens": 30}]


async def test_replay_has_the_same_events_and_ids_as_the_live_stream(serve_runs: ServeRuns, shop: Shop) -> None:
    """Whoever comes later gets what those got who were there, but for how the text was cut."""
    model = SaysHalf("One two", " three.")
    served = await serve_runs(model, *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    live: Events = []
    async with following(client, run_id, format="ag-ui") as events, asyncio.timeout(20):
        async for event in events:
            live.append(event.data)
            if event.data["type"] == "TEXT_MESSAGE_CONTENT":
                model.go_on.set()
    assert_valid_agui(live, max_warnings=0)
    assert [event["delta"] for event in only(live, "TEXT_MESSAGE_CONTENT")] == ["One two", " three."]
    replayed = await as_ag_ui(served, run_id)
    assert _without_cuts(replayed) == _without_cuts(live)


def _without_cuts(events: Events) -> Events:
    kept = [event for event in events if event["type"] != "TEXT_MESSAGE_CONTENT"]
    return [{name: value for name, value in event.items() if name != "timestamp"} for event in kept]


async def test_any_place_continues_what_the_reader_has(serve_runs: ServeRuns, shop: Shop) -> None:
    """The events before a place and those after it are the whole, and valid together."""
    served = await serve_runs(Says([("balance", {"account_id": "a1"})], "Zero."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    whole = await heard(client, run_id, format="ag-ui")
    for number, event in enumerate(whole[:-1]):
        if event["id"] is not None:
            rest = await heard(client, run_id, after=event["id"], format="ag-ui")
            assert [each.data for each in rest] == [each.data for each in whole[number + 1 :]]


# case C79
async def test_run_that_asks_people_ends_its_ag_ui_run_with_one_interrupt_for_each(
    serve_runs: ServeRuns, shop: Shop
) -> None:
    """Each approval and each question has an id of its own; answering begins another AG-UI run."""
    asks = [("delete", {"path": "/a"}), ("delete", {"path": "/b"}), ("ask_person", {"question": "Which?"})]
    served = await serve_runs(Says(asks, "Done."), *shop.tools)
    run_id = await served.started(await served.client())
    await served.asks(run_id, *(f"{run_id}:1.{number}" for number in (1, 2, 3)))
    await served.runs.answer(run_id, f"{run_id}:1.3", "That one.", by="ada")
    await served.asks(run_id, f"{run_id}:1.1", f"{run_id}:1.2")
    await served.house.approve(f"{run_id}:1.2", by="ada")
    await served.house.deny(f"{run_id}:1.1", by="ada", reason="not that")
    await served.until(run_id, RunState.SUCCEEDED)
    events = await as_ag_ui(served, run_id)
    finished = only(events, "RUN_FINISHED")
    first = next(e["outcome"]["interrupts"] for e in finished if len(e["outcome"].get("interrupts", ())) == 3)
    assert {each["toolCallId"] for each in first} == {f"{run_id}:1.{number}" for number in (1, 2, 3)}
    assert len({each["id"] for each in first}) == 3
    assert {each["reason"] for each in first} == {"tool_call", "input_required"}
    assert all(each["responseSchema"] and each["message"] and each["expiresAt"] for each in first)
    started = [event["runId"] for event in only(events, "RUN_STARTED")]
    assert started[0] == run_id
    assert len(set(started)) == len(started) == len(finished)
    assert shop.effects == [{"deleted": "/b"}]
    results = {event["toolCallId"]: event for event in only(events, "TOOL_CALL_RESULT")}
    assert results[f"{run_id}:1.3"]["content"] == "That one."
    assert results[f"{run_id}:1.1"]["metadata"]["tollhouse"]["call_state"] == "refused"


async def test_doubt_is_told_and_the_run_stays_open(serve_runs: ServeRuns, shop: Shop) -> None:
    """What no answer of the client's can settle is a CUSTOM event, not an interrupt."""
    served = await serve_runs(Says([("lost", {"item": "x"})], "Done."), *shop.tools)
    run_id = await served.started(await served.client())
    await served.until(run_id, RunState.AWAITING_RECONCILIATION)
    await served.house.reconcile(f"{run_id}:1.1")
    events = await as_ag_ui(served, run_id)
    assert len(only(events, "RUN_STARTED")) == 1
    told = next(event for event in only(events, "CUSTOM") if event["name"] == "tollhouse.waiting")
    assert told["value"]["waiting"][0]["kind"] == "reconciliation"


async def test_answer_that_breaks_off_is_withdrawn(serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was heard of it is closed and named; the answer that counts has another id."""
    monkeypatch.setattr("tollhouse.runs.advance.MODEL_PAUSE_FIRST_S", 0.05)
    model = SaysHalf("Half", " whole.", fails=ModelFailed("model_unavailable", "It broke off.", transient=True))
    served = await serve_runs(model)
    client = await served.client()
    run_id = await served.started(client)
    live: Events = []
    async with following(client, run_id, format="ag-ui") as events, asyncio.timeout(20):
        async for event in events:
            live.append(event.data)
            if event.data["type"] == "TEXT_MESSAGE_CONTENT":
                model.go_on.set()
    assert_valid_agui(live, max_warnings=0)
    named = [event["name"] for event in only(live, "CUSTOM")]
    assert {"tollhouse.text_withdrawn", "tollhouse.model_failed"} <= set(named)
    texts: dict[str, str] = {}
    for piece in only(live, "TEXT_MESSAGE_CONTENT"):
        texts[piece["messageId"]] = texts.get(piece["messageId"], "") + piece["delta"]
    assert list(texts.values()) == ["Half", "Half whole."]


async def test_failed_run_ends_in_run_error(serve_runs: ServeRuns) -> None:
    """With the stable code of its reason."""
    failure = ModelFailed("model_refused_request", "The provider says no.", transient=False)

    async def refuses(_request: object) -> str:
        raise failure

    served = await serve_runs(Says(refuses))
    run_id = await served.started(await served.client())
    events = await as_ag_ui(served, run_id)
    assert events[-1]["type"] == "RUN_ERROR"
    assert (events[-1]["code"], events[-1]["message"]) == ("model_refused_request", "The provider says no.")


async def test_cancelled_run_ends_as_cancelled(serve_runs: ServeRuns, shop: Shop) -> None:
    """And says what had left before."""
    served = await serve_runs(Says([("slow", {"item": "x"})], "Done."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    await shop.began.wait()
    assert (await client.post(f"/v1/runs/{run_id}/cancel")).status_code == 200
    shop.go_on.set()
    events = await as_ag_ui(served, run_id)
    assert events[-1]["outcome"] == {"type": "cancelled"}
    told = next(event for event in only(events, "CUSTOM") if event["name"] == "tollhouse.cancelled")
    assert [each["key"] for each in told["value"]["left"]] == [f"{run_id}:1.1"]


async def test_limit_is_an_interrupt(serve_runs: ServeRuns, shop: Shop) -> None:
    """A run that stopped at a limit asks whether it may go on."""
    agent = Agent(name="helper", model="says", tools=("balance",), limits=Limits(turns=1))
    served = await serve_runs(Says([("balance", {"account_id": "a1"})], "Zero."), *shop.tools, agents=(agent,))
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.LIMIT_REACHED)
    assert (await client.post(f"/v1/runs/{run_id}/limits", json={"turns": 5})).status_code == 200
    events = await as_ag_ui(served, run_id)
    asked = only(events, "RUN_FINISHED")[0]["outcome"]["interrupts"][0]
    assert asked["reason"] == "tollhouse:limit_reached"
    assert asked["metadata"]["tollhouse"]["limit"] == "turns"
    assert events[-1]["outcome"] == {"type": "success"}


async def test_arguments_that_are_no_json_object_still_make_valid_events(serve_runs: ServeRuns, shop: Shop) -> None:
    """What the model wrote stands in the arguments as text."""
    from tollhouse.models.port import Ask, ModelReply

    garbage = ModelReply("", (Ask("", "balance", None, raw="{account"),), "calls", "says", ())
    served = await serve_runs(Says(lambda _request: garbage, "Sorry."), *shop.tools)
    run_id = await served.started(await served.client())
    events = await as_ag_ui(served, run_id)
    assert only(events, "TOOL_CALL_ARGS")[0]["delta"] == '{"$raw": "{account"}'
