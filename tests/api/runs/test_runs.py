"""Runs over HTTP: starting, looking, answering, limits, cancelling, running again, rehearsing, proving."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import problem
from tests.api.runs.conftest import ServeRuns, on_both_stores
from tests.api.runs.scenes import RunServed, Says, heard
from tests.api.shop import Shop
from tollhouse.models.port import UserMessage
from tollhouse.runs.agents import Agent, Limits
from tollhouse.runs.drivers.local import LocalDriver
from tollhouse.runs.proof.anchors import anchors_file, read_anchors
from tollhouse.runs.proof.keys import home_of
from tollhouse.runs.proof.verdict import Result
from tollhouse.runs.proof.verify import read_bundle, verify
from tollhouse.runs.registry import publish
from tollhouse.runs.states import RunState

START = {"agent": "helper", "input": "Do it."}
KEY = {"Idempotency-Key": "order-7:refund"}
ASKS = [("ask_person", {"question": "Which?"})]


async def asking(serve_runs: ServeRuns, **more: Any) -> tuple[RunServed, Any, str]:
    """A run that asks a question: its server, a client, and its id."""
    served = await serve_runs(Says(ASKS, lambda request: request.messages[-1].text), **more)
    client = await served.client()
    run_id = await served.started(client)
    await served.asks(run_id, f"{run_id}:1.1")
    return served, client, run_id


# -- starting ------------------------------------------------------------------------------------------------------


# case C16
@on_both_stores
async def test_same_start_again_answers_with_the_run_it_started(serve_runs: ServeRuns) -> None:
    """201 with its place the first time, 200 every other time; another start under the key is a conflict."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    first, second = await asyncio.gather(*(client.post("/v1/runs", json=START, headers=KEY) for _ in range(2)))
    assert sorted((first.status_code, second.status_code)) == [200, 201]
    assert first.json()["id"] == second.json()["id"]
    assert first.headers["location"] == f"/v1/runs/{first.json()['id']}"
    other = await client.post("/v1/runs", json={**START, "input": "Do that."}, headers=KEY)
    problem(other, 409, "run_conflict")
    assert len((await client.get("/v1/runs")).json()["runs"]) == 1


async def test_start_needs_a_key(serve_runs: ServeRuns) -> None:
    """Without one, a request that is sent again would start the run again."""
    client = await (await serve_runs(Says("Done."))).client()
    told = problem(await client.post("/v1/runs", json=START), 422, "invalid_key")
    assert "Idempotency-Key" in told["detail"]
    problem(await client.post("/v1/runs", json=START, headers={"Idempotency-Key": "no key"}), 422, "invalid_key")
    quoted = await client.post("/v1/runs", json=START, headers={"Idempotency-Key": '"order-7"'})
    assert quoted.status_code == 201


async def test_who_starts_a_run_is_the_principal_of_the_key(serve_runs: ServeRuns) -> None:
    """A body cannot name somebody else."""
    served = await serve_runs(Says("Done."), keys=True)
    client = await served.of("app", "runs:write")
    problem(await client.post("/v1/runs", json={**START, "by": "ada"}, headers=KEY), 422, "invalid_request")
    started = await client.post("/v1/runs", json=START, headers=KEY)
    assert started.json()["requested_by"] == "app"
    problem(await client.get("/v1/runs"), 403, "not_authorized")
    reader = await served.of("ada", "runs:read")
    problem(await reader.post("/v1/runs", json=START, headers={"Idempotency-Key": "k2"}), 403, "not_authorized")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"agent": "nobody"}, 404, "unknown_agent"),
        ({"agent_version": "0" * 64}, 404, "unknown_agent"),
        ({"agent_version": "newest"}, 422, "invalid_request"),
        ({"limits": {"turns": 0}}, 422, "invalid_request"),
        ({"limits": {"cost": "0.00"}}, 422, "invalid_request"),
        ({"limits": {"seconds": 5}}, 422, "invalid_request"),
        ({"driver": "train"}, 422, "invalid_request"),
        ({"thread": ""}, 422, "invalid_request"),
        ({"input": None}, 422, "invalid_request"),
        ({"input": "\x00"}, 422, "invalid_request"),
        ({"priority": 1}, 422, "invalid_request"),
    ],
)
async def test_start_that_makes_no_sense_is_refused(
    serve_runs: ServeRuns, change: dict[str, Any], status: int, code: str
) -> None:
    """With what is wrong, and nothing is started."""
    client = await (await serve_runs(Says("Done."))).client()
    problem(await client.post("/v1/runs", json={**START, **change}, headers=KEY), status, code)
    assert (await client.get("/v1/runs")).json()["runs"] == []


async def test_fifty_megabytes_are_refused(serve_runs: ServeRuns) -> None:
    """They are not even kept until they are refused."""
    client = await (await serve_runs(Says("Done."))).client()
    large = json.dumps({**START, "input": "x" * 50_000_000}).encode()
    headers = {**KEY, "Content-Type": "application/json"}
    problem(await client.post("/v1/runs", content=large, headers=headers), 413, "request_too_large")


# case C22
async def test_thread_takes_one_run_at_a_time_and_remembers(serve_runs: ServeRuns) -> None:
    """A second run is refused while the first is unfinished; after it, it goes on where the first ended."""
    model = Says(ASKS, "Done.")
    served = await serve_runs(model)
    client = await served.client()
    run_id = await served.started(client, thread="order-7")
    busy = await client.post("/v1/runs", json={**START, "thread": "order-7"}, headers=KEY)
    assert run_id in problem(busy, 409, "thread_busy")["detail"]
    await served.asks(run_id, f"{run_id}:1.1")
    await served.runs.answer(run_id, f"{run_id}:1.1", "yes", by="ada")
    await served.until(run_id, RunState.SUCCEEDED)
    second = await served.started(client, input="And now?", thread="order-7")
    await served.until(second, RunState.SUCCEEDED)
    said = [message.text for message in model.requests[-1].messages if isinstance(message, UserMessage)]
    assert said == ["Do it.", "And now?"]
    listed = (await client.get("/v1/runs", params={"thread": "order-7"})).json()["runs"]
    assert [run["id"] for run in listed] == [second, run_id]
    assert listed[0]["continues"] == run_id


# -- looking -------------------------------------------------------------------------------------------------------


async def test_run_shows_where_it_stands(serve_runs: ServeRuns, shop: Shop) -> None:
    """State, what it spent, its calls by state, and its version as the ETag."""
    asks: list[tuple[str, dict[str, Any]]] = [
        ("credit", {"account_id": "a1", "amount_cents": 5}),
        ("delete", {"path": "/a"}),
    ]
    served = await serve_runs(Says(asks, "Done."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    await served.asks(run_id, f"{run_id}:1.2")
    response = await client.get(f"/v1/runs/{run_id}")
    run = response.json()
    assert (run["state"], run["calls"]) == ("awaiting_approval", {"succeeded": 1, "held": 1})
    assert [(each["kind"], each["id"]) for each in run["waiting"]] == [("approval", f"{run_id}:1.2")]
    assert (run["spent"]["turns"], run["spent"]["calls"], run["spent"]["input_tokens"]) == (1, 2, 10)
    tag = response.headers["etag"]
    assert tag.startswith(f'"{run["version"]}.')
    same = await client.get(f"/v1/runs/{run_id}", headers={"If-None-Match": tag})
    assert (same.status_code, same.headers["etag"]) == (304, tag)
    calls = (await client.get(f"/v1/runs/{run_id}/calls")).json()["calls"]
    assert {call["key"]: call["state"] for call in calls} == {f"{run_id}:1.1": "succeeded", f"{run_id}:1.2": "held"}
    problem(await client.get("/v1/runs/run_none"), 404, "unknown_run")
    problem(await client.get("/v1/runs/run_none/calls"), 404, "unknown_run")


async def test_calls_that_move_without_their_run_are_shown(serve_runs: ServeRuns, shop: Shop) -> None:
    """Whoever has the run at that very version hears of its calls all the same; the tag still decides."""
    served = await serve_runs(Says([("delete", {"path": "/a"})], "Done."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    await served.asks(run_id, f"{run_id}:1.1")
    before = await client.get(f"/v1/runs/{run_id}")
    await served.house.edit(f"{run_id}:1.1", {"path": "/b"}, by="bob", reason="the other one")
    after = await client.get(f"/v1/runs/{run_id}", headers={"If-None-Match": before.headers["etag"]})
    assert (after.status_code, after.json()["version"]) == (200, before.json()["version"])
    stopped = await client.post(f"/v1/runs/{run_id}/cancel", headers={"If-Match": after.headers["etag"]})
    assert stopped.json()["state"] == "cancelled"


async def test_calls_of_a_run_are_counted_whole_or_not_at_all(
    serve_runs: ServeRuns, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with more calls than one request counts shows no number, since it would be a wrong one."""
    served = await serve_runs(Says([("balance", {"account_id": name}) for name in "abc"], "Done."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.SUCCEEDED)
    for most, counted in ((3, {"succeeded": 3}), (2, None)):
        monkeypatch.setattr("tollhouse.api.runs.CALLS_COUNTED_MOST", most)
        assert (await client.get(f"/v1/runs/{run_id}")).json()["calls"] == counted


@on_both_stores
async def test_runs_are_listed_page_by_page_and_by_what_they_are(serve_runs: ServeRuns) -> None:
    """Newest first; a cursor is of one list with its filters."""
    agents = (Agent(name="helper", model="says"), Agent(name="other", model="says"))
    served = await serve_runs(Says("Done."), agents=agents)
    client = await served.client()
    ids = [await served.started(client, agent=name) for name in ("helper", "other", "helper", "helper")]
    for run_id in ids:
        await served.until(run_id, RunState.SUCCEEDED)
    found, cursor, pages = [], None, 0
    while True:
        params: dict[str, Any] = {"agent": "helper", "limit": 2, **({} if cursor is None else {"cursor": cursor})}
        page = (await client.get("/v1/runs", params=params)).json()
        found += [run["id"] for run in page["runs"]]
        pages += 1
        if (cursor := page["next"]) is None:
            break
        problem(await client.get("/v1/runs", params={"cursor": cursor}), 422, "invalid_cursor")
    assert (found, pages) == ([ids[3], ids[2], ids[0]], 2)
    assert (await client.get("/v1/runs", params={"state": "failed"})).json()["runs"] == []
    problem(await client.get("/v1/runs", params={"state": "lost"}), 422, "invalid_request")


async def test_agents_show_their_versions(serve_runs: ServeRuns) -> None:
    """A run names the version it ran, which is here for ever."""
    served = await serve_runs(Says("Done."), agents=(Agent(name="helper", model="says", instructions="Be brief."),))
    client = await served.client()
    run_id = await served.started(client)
    (agent,) = (await client.get("/v1/agents")).json()["agents"]
    assert (agent["name"], agent["instructions"]) == ("helper", "Be brief.")
    shown = (await client.get("/v1/agents/helper")).json()
    assert shown["newest"] == agent
    assert [each["version"] for each in shown["versions"]] == [agent["version"]]
    assert (await client.get(f"/v1/runs/{run_id}")).json()["agent_version"] == agent["version"]
    problem(await client.get("/v1/agents/nobody"), 404, "unknown_agent")


# -- people --------------------------------------------------------------------------------------------------------


@on_both_stores
async def test_question_is_listed_answered_and_gone(serve_runs: ServeRuns) -> None:
    """The model hears the answer; a second one is refused, as is one to a run that ended."""
    served, client, run_id = await asking(serve_runs)
    (question,) = (await client.get("/v1/questions")).json()["questions"]
    assert (question["id"], question["run_id"], question["text"]) == (f"{run_id}:1.1", run_id, "Which?")
    path = f"/v1/runs/{run_id}/questions/{run_id}:1.1/answer"
    problem(
        await client.post(f"/v1/runs/{run_id}/questions/{run_id}:1.2/answer", json={"text": "x"}),
        404,
        "unknown_question",
    )
    assert (await client.post(path, json={"text": "The blue one."})).status_code == 200
    await served.until(run_id, RunState.SUCCEEDED)
    assert (await client.get(f"/v1/runs/{run_id}")).json()["output"] == "The blue one."
    assert (await client.get("/v1/questions")).json() == {"questions": [], "next": None}
    problem(await client.post(path, json={"text": "No, the red one."}), 409, "run_not_allowed")


async def test_two_answers_at_once_reach_the_run_once(serve_runs: ServeRuns) -> None:
    """One wins; the other is told that the question is not open any more."""
    served, client, run_id = await asking(serve_runs)
    path = f"/v1/runs/{run_id}/questions/{run_id}:1.1/answer"
    answers = await asyncio.gather(*(client.post(path, json={"text": text}) for text in ("red", "blue")))
    won, lost = sorted(answer.status_code for answer in answers)
    assert won == 200
    assert lost in (404, 409)
    await served.until(run_id, RunState.SUCCEEDED)
    kinds = [event["event"] for event in await heard(client, run_id)]
    assert kinds.count("question_answered") == 1


async def test_question_stays_listed_while_the_answer_to_another_waits(serve_runs: ServeRuns) -> None:
    """However long no driver takes the run up, what is open can be found and answered."""
    served = await serve_runs(Says([*ASKS, *ASKS], "Done."), drive=False)
    client = await served.client()
    run_id = await served.started(client)
    await served.driver.settle()
    for answered in (1, 2):
        open_ids = [question["id"] for question in (await client.get("/v1/questions")).json()["questions"]]
        assert open_ids == [f"{run_id}:1.{number}" for number in range(answered, 3)]
        path = f"/v1/runs/{run_id}/questions/{run_id}:1.{answered}/answer"
        assert (await client.post(path, json={"text": "That one."})).status_code == 200


async def test_questions_of_many_runs_are_paged_through(serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where most of the paused runs ask nothing."""
    monkeypatch.setattr("tollhouse.api.runs.LOOKED_AT_MOST", 2)
    served = await serve_runs(Says(ASKS, "Done."))
    client = await served.client()
    ids = [await served.started(client) for _ in range(5)]
    for run_id in ids:
        await served.asks(run_id, f"{run_id}:1.1")
    for limit in (1, 10):
        found, cursor = [], None
        while True:
            params = {"limit": limit, **({} if cursor is None else {"cursor": cursor})}
            page = (await client.get("/v1/questions", params=params)).json()
            assert len(page["questions"]) <= limit
            found += [question["run_id"] for question in page["questions"]]
            if (cursor := page["next"]) is None:
                break
        assert found == ids[::-1]


async def test_change_on_a_version_that_does_not_stand_is_refused(serve_runs: ServeRuns) -> None:
    """If-Match: what was decided on is what stands."""
    served, client, run_id = await asking(serve_runs)
    version = (await served.runs.get(run_id)).version
    stale = {"If-Match": f'"{version - 1}"'}
    problem(await client.post(f"/v1/runs/{run_id}/cancel", headers=stale), 412, "precondition_failed")
    fresh = {"If-Match": f'"{version}"'}
    cancelled = await client.post(f"/v1/runs/{run_id}/cancel", json={"reason": "enough"}, headers=fresh)
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert cancelled.json()["reason"]["cause"].endswith("enough")
    assert (await client.post(f"/v1/runs/{run_id}/cancel")).status_code == 200
    problem(await client.post(f"/v1/runs/{run_id}/limits", json={"turns": 30}), 409, "run_not_allowed")


async def test_change_that_another_overtakes_is_refused(serve_runs: ServeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """If-Match holds up to the very commit: what somebody else wrote in between is looked at first."""
    served = await serve_runs(Says([*ASKS, *ASKS], "Done."), drive=False)
    client = await served.client()
    run_id = await served.started(client)
    await served.driver.settle()
    fresh = {"If-Match": f'"{(await served.runs.get(run_id)).version}"'}
    write_run = served.runs.store.write_run

    async def overtaken(write: Any) -> Any:
        monkeypatch.setattr(served.runs.store, "write_run", write_run)
        await served.runs.answer(run_id, f"{run_id}:1.1", "That one.", by="ada")
        return await write_run(write)

    monkeypatch.setattr(served.runs.store, "write_run", overtaken)
    problem(await client.post(f"/v1/runs/{run_id}/cancel", headers=fresh), 412, "precondition_failed")
    answer = f"/v1/runs/{run_id}/questions/{run_id}:1.2/answer"
    problem(await client.post(answer, json={"text": "It."}, headers=fresh), 412, "precondition_failed")
    now = await served.runs.get(run_id)
    assert (now.state, set(now.body.answers or ())) == (RunState.QUEUED, {f"{run_id}:1.1"})


async def test_run_that_ended_by_itself_cannot_be_cancelled(serve_runs: ServeRuns) -> None:
    """There is nothing to stop."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.SUCCEEDED)
    problem(await client.post(f"/v1/runs/{run_id}/cancel"), 409, "run_not_allowed")


async def test_limit_that_was_reached_is_raised(serve_runs: ServeRuns, shop: Shop) -> None:
    """And the run goes on to its end; only the limits that are named change."""
    agent = Agent(name="helper", model="says", tools=("balance",), limits=Limits(turns=1, calls=7))
    served = await serve_runs(Says([("balance", {"account_id": "a1"})], "Zero."), *shop.tools, agents=(agent,))
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.LIMIT_REACHED)
    raised = await client.post(f"/v1/runs/{run_id}/limits", json={"turns": 5, "cost": "2.50"})
    assert raised.status_code == 200
    limits = raised.json()["limits"]
    assert (limits["turns"], limits["calls"], limits["cost"]) == (5, 7, "2.50")
    await served.until(run_id, RunState.SUCCEEDED)


# -- again, and afterwards -----------------------------------------------------------------------------------------


async def test_run_is_run_again_under_a_key(serve_runs: ServeRuns, shop: Shop) -> None:
    """A rerun is a run of its own; its effects are held unless another choice is made; its key works as a start's."""
    served = await serve_runs(Says([("credit", {"account_id": "a1", "amount_cents": 5})], "Done."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    path = f"/v1/runs/{run_id}/rerun"
    await served.until(run_id, RunState.SUCCEEDED)
    problem(await client.post(path), 422, "invalid_key")
    first = await client.post(path, headers=KEY)
    assert (first.status_code, first.json()["source_run_id"], first.json()["attempt_no"]) == (201, run_id, 2)
    assert (await client.post(path, headers=KEY)).status_code == 200
    again = first.json()["id"]
    await served.until(again, RunState.AWAITING_APPROVAL)
    assert len(shop.effects) == 1
    reused = await client.post(path, json={"effects": "reuse"}, headers={"Idempotency-Key": "k2"})
    await served.until(reused.json()["id"], RunState.SUCCEEDED)
    assert len(shop.effects) == 1
    listed = (await client.get("/v1/runs", params={"source": run_id})).json()["runs"]
    assert {run["id"] for run in listed} == {again, reused.json()["id"]}


async def test_run_that_has_not_ended_is_not_run_again(serve_runs: ServeRuns) -> None:
    """It would be two of one."""
    _, client, run_id = await asking(serve_runs)
    problem(await client.post(f"/v1/runs/{run_id}/rerun", headers=KEY), 409, "run_not_allowed")
    problem(await client.post("/v1/runs/run_none/rerun", headers=KEY), 404, "unknown_run")


async def test_rehearsal_tells_what_would_differ_and_sends_nothing(serve_runs: ServeRuns, shop: Shop) -> None:
    """The model runs; tools answer from the record."""
    asks = [
        [("credit", {"account_id": "a1", "amount_cents": 5})],
        [("credit", {"account_id": "a1", "amount_cents": 9})],
    ]
    said = iter((asks[0], "Done.", asks[0], "Done.", asks[1], "Done."))
    served = await serve_runs(Says(lambda _request: next(said)), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    await served.until(run_id, RunState.SUCCEEDED)
    same = (await client.post(f"/v1/runs/{run_id}/rehearse")).json()
    assert (same["same"], same["differences"]) == (True, [])
    other = (await client.post(f"/v1/runs/{run_id}/rehearse", json={"model": "says"})).json()
    assert other["same"] is False
    assert shop.effects == [{"account_id": "a1", "amount_cents": 5}]
    problem(await client.post("/v1/runs/run_none/rehearse"), 404, "unknown_run")


async def test_proof_passes_offline(serve_runs: ServeRuns, shop: Shop) -> None:
    """What the server signs is what ``tollhouse proof verify`` takes."""
    served = await serve_runs(Says([("credit", {"account_id": "a1", "amount_cents": 5})], "Done."), *shop.tools)
    client = await served.client()
    run_id = await served.started(client)
    await heard(client, run_id)
    response = await client.get(f"/v1/runs/{run_id}/proof")
    assert response.status_code == 200
    assert verify(read_bundle(response.text)).result is Result.PASS
    problem(await client.get("/v1/runs/run_none/proof"), 404, "unknown_run")


async def test_proof_that_is_asked_for_again_is_anchored_once(serve_runs: ServeRuns) -> None:
    """A key to read with fills no disk; the proof is the same, byte for byte."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    run_id = await served.started(client)
    await heard(client, run_id)
    url = served.house.store.url
    first, second = [(await client.get(f"/v1/runs/{run_id}/proof")).text for _ in range(2)]
    assert first == second
    anchored = read_anchors(anchors_file(home_of(url), url).read_text(), json.loads(first)["public_key"])
    assert [head.stream for line in anchored for head in line.heads] == [f"run:{run_id}"]


async def test_proof_is_given_where_its_anchors_cannot_be_written(
    serve_runs: ServeRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """It is whole without them; whoever runs the server is told."""
    served = await serve_runs(Says("Done."))
    client = await served.client()
    run_id = await served.started(client)
    await heard(client, run_id)
    url = served.house.store.url
    anchors_file(home_of(url), url).mkdir(parents=True)
    home_of(url).chmod(0o700)
    response = await client.get(f"/v1/runs/{run_id}/proof")
    assert (response.status_code, verify(read_bundle(response.text)).result) == (200, Result.PASS)
    assert "anchors_not_written" in caplog.text


async def test_server_without_runs_has_no_such_paths(served: Any) -> None:
    """A gateway for calls only answers as if nothing were there."""
    client = await served.client()
    problem(await client.get("/v1/runs"), 404, "unknown_route")
    assert "/v1/runs" not in (await client.get("/openapi.json")).json()["paths"]


async def test_driver_with_both_hands_full_is_well(serve_runs: ServeRuns, shop: Shop) -> None:
    """A process that drives as many runs as it takes still looks at its store: it is busy, not ill."""
    served = await serve_runs(Says([("slow", {"item": "x"})], "Done."), *shop.tools, drive=False)
    run_id = (await served.runs.start("helper", "Do it.", by="ada")).id
    driver = LocalDriver(served.runs, at_once=1)
    await driver.round()
    await shop.began.wait()
    driver._last_round_s = None
    assert await driver.round() == 0
    assert await driver.is_well()
    shop.go_on.set()
    await driver.settle()
    assert (await served.runs.get(run_id)).state is RunState.SUCCEEDED


async def test_start_of_another_version_under_the_key_is_refused(serve_runs: ServeRuns) -> None:
    """Which version runs is part of a start that names one; a start that names none takes what it began with."""
    old = Agent(name="helper", model="says", instructions="Old.")
    served = await serve_runs(Says("Done."), agents=(old,), drive=False)
    new = Agent(name="helper", model="says", instructions="New.")
    await publish(served.runs.store, served.runs.tenant, {"helper": new}, await served.runs.now_us())
    client = await served.client()

    async def start(**more: Any) -> httpx.Response:
        wish = {"agent": "helper", "input": "Do it.", **more}
        return await client.post("/v1/runs", json=wish, headers={"Idempotency-Key": "k"})

    first = await start(agent_version=old.version[:10])
    assert (first.status_code, first.json()["agent_version"]) == (201, old.version)
    for same in ({}, {"agent_version": old.version}):
        again = await start(**same)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    problem(await start(agent_version=new.version), 409, "run_conflict")


@on_both_stores
@pytest.mark.parametrize("name", ["%00", "run_a%00", "%ED%A0%80", "run_%C3%A9", "run%20a"])
async def test_name_that_no_store_can_look_for_is_of_no_run(serve_runs: ServeRuns, name: str) -> None:
    """Whatever a path holds, there is no run of that name; the store is not asked for what it cannot hold."""
    served = await serve_runs(Says("Done."), drive=False)
    client = await served.client()
    for path in ("", "/events", "/calls", "/proof"):
        problem(await client.get(f"/v1/runs/{name}{path}"), 404, "unknown_run")
    for path in ("cancel", "rerun", "rehearse"):
        problem(await client.post(f"/v1/runs/{name}/{path}", headers=KEY), 404, "unknown_run")
    problem(await client.post(f"/v1/runs/{name}/limits", json={"turns": 2}), 404, "unknown_run")
