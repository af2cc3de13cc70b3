"""`POST /v1/tools/{name}/calls`: each intended use of a tool happens once, whatever becomes of requests and answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.conftest import Serve, Served, called, problem
from tests.api.shop import Shop
from tests.support.houses import POSTGRES, until
from tollhouse import Asked, Deny, Pass, State, external, tool

both_stores = pytest.mark.parametrize("shared_store_url", ["sqlite", POSTGRES], indirect=True)
CREDIT = {"account_id": "a1", "amount_cents": 2500}


@both_stores
async def test_settled_call_answers_200_and_its_repeat_is_marked(client: httpx.AsyncClient, shop: Shop) -> None:
    """The same key and arguments again are answered from the record, and say so."""
    first = await called(client, "credit", CREDIT, "k")
    again = await called(client, "credit", CREDIT, "k")
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == {
        "key": "k",
        "state": "succeeded",
        "result": {"credit_id": "cr_1", "amount_cents": 2500},
        "result_problem": None,
        "result_detail": None,
        "replayed": False,
        "attempts": 1,
        "reference": None,
        "error": None,
    }
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == {**first.json(), "replayed": True}
    assert len(shop.effects) == 1


# case C16
@both_stores
async def test_same_call_sent_twice_at_once_happens_once(client: httpx.AsyncClient, shop: Shop) -> None:
    """The second request attaches to the first one's attempt."""
    shop.go_on.clear()
    both = [asyncio.create_task(called(client, "slow", {"item": "x"}, "k")) for _ in range(2)]
    await shop.began.wait()
    shop.go_on.set()
    answers = await asyncio.gather(*both)
    assert [answer.json()["result"] for answer in answers] == ["done", "done"]
    assert shop.effects == [{"item": "x"}]


async def test_call_in_flight_answers_202_to_who_does_not_wait(client: httpx.AsyncClient, shop: Shop) -> None:
    """With `wait` false a second request hears at once where to look, and when."""
    first = asyncio.create_task(called(client, "slow", {"item": "x"}, "k"))
    await shop.began.wait()
    second = await called(client, "slow", {"item": "x"}, "k", wait=False)
    assert (second.status_code, second.headers["location"]) == (202, "/v1/calls/k")
    assert int(second.headers["retry-after"]) >= 1
    assert (second.json()["state"], second.json()["error"]["code"]) == ("departed", "call_in_flight")
    shop.go_on.set()
    assert (await first).status_code == 200


@pytest.mark.parametrize(
    ("tool_name", "arguments", "state", "code"),
    [
        ("delete", {"path": "/a"}, "held", "call_held"),
        ("lost", {"item": "x"}, "in_doubt", "call_in_doubt"),
        ("build", {"item": "x"}, "accepted", None),
    ],
)
async def test_unsettled_call_answers_202_with_a_place_to_look(
    client: httpx.AsyncClient, shop: Shop, tool_name: str, arguments: dict[str, Any], state: str, code: str | None
) -> None:
    """Held, in doubt and accepted calls are no failures: the answer says where they can be followed."""
    answer = await called(client, tool_name, arguments, "k")
    shown = answer.json()
    assert (answer.status_code, shown["state"], shown["result"]) == (202, state, None)
    assert (shown["error"] or {}).get("code") == code
    assert int(answer.headers["retry-after"]) >= 1
    followed = await client.get(answer.headers["location"])
    assert followed.json()["key"] == "k"


@pytest.mark.parametrize(("tool_name", "state", "code"), [("rejected", "failed", "call_failed")])
async def test_failed_call_answers_200_and_is_replayed_as_failed(
    client: httpx.AsyncClient, tool_name: str, state: str, code: str
) -> None:
    """A call that is known to have had no effect is settled: every repeat hears the same."""
    first, again = [await called(client, tool_name, {"item": "x"}, "k") for _ in range(2)]
    assert first.status_code == again.status_code == 200
    assert (first.json()["state"], first.json()["error"]["code"]) == (state, code)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == {**first.json(), "replayed": True}


async def test_call_that_never_left_is_a_problem_that_says_when_to_try_again(client: httpx.AsyncClient) -> None:
    """Proof that nothing was sent: 503, safe to repeat under the same key."""
    answer = await called(client, "unreachable", {"item": "x"}, "k", max_attempts=1)
    assert problem(answer, 503, "call_not_sent")["sent"] == "no"
    assert int(answer.headers["retry-after"]) >= 1


async def test_denial_that_is_recorded_is_an_answer_and_one_that_is_not_is_a_problem(serve: Serve) -> None:
    """A refused call that has a row answers 200 *refused*; a refusal that nothing recorded answers 403."""

    class Rule:
        """Denies by name, and remembers what it is told to."""

        name = "rule"

        def check(self, asked: Asked) -> Pass | Deny:
            """Judge."""
            return Deny("not on Sundays", stored=bool(asked.arguments["stored"]))

    @tool(external())
    async def act(stored: bool) -> str:
        """Act."""
        return "done"

    client = await (await serve(act, settings={"gates": [Rule()]})).client()
    kept = await called(client, "act", {"stored": True}, "kept")
    assert (kept.status_code, kept.json()["state"]) == (200, "refused")
    problem(await called(client, "act", {"stored": False}, "not-kept"), 403, "call_refused")
    problem(await client.get("/v1/calls/not-kept"), 404, "unknown_call")


async def test_key_with_other_arguments_is_a_conflict(client: httpx.AsyncClient, shop: Shop) -> None:
    """A key names one intended use for ever: 409, and nothing is sent."""
    await called(client, "credit", CREDIT, "k")
    problem(await called(client, "credit", {**CREDIT, "amount_cents": 1}, "k"), 409, "call_conflict")
    problem(await called(client, "rejected", {"item": "x"}, "k"), 409, "call_conflict")
    assert len(shop.effects) == 1


async def test_only_reads_go_without_a_key(client: httpx.AsyncClient, shop: Shop) -> None:
    """What may change something needs the header; a read gets a key of its own."""
    told = problem(await called(client, "credit", CREDIT), 422, "invalid_key")
    assert "Idempotency-Key" in told["remedy"]
    assert shop.effects == []
    read = await called(client, "balance", {"account_id": "a1"})
    assert (read.status_code, read.json()["result"]) == (200, 0)
    assert read.json()["key"].startswith("read-")


async def test_quoted_key_is_the_same_key(client: httpx.AsyncClient, shop: Shop) -> None:
    """The header as a structured field string names the same call."""
    await called(client, "credit", CREDIT, "k")
    again = await called(client, "credit", CREDIT, '"k"')
    assert again.json()["replayed"]
    assert len(shop.effects) == 1


async def test_unknown_tool_is_not_found(client: httpx.AsyncClient) -> None:
    """404, with the names of what there is."""
    told = problem(await called(client, "nothing", {}, "k"), 404, "unknown_tool")
    assert "credit" in told["detail"]


async def test_wrong_arguments_are_told_with_their_path(client: httpx.AsyncClient, shop: Shop) -> None:
    """422 names the argument; the key is not used up."""
    told = problem(await called(client, "credit", {**CREDIT, "amount_cents": "much"}, "k"), 422, "invalid_arguments")
    assert "amount_cents" in told["path"]
    assert (await called(client, "credit", CREDIT, "k")).status_code == 200


async def test_limits_tighten_and_never_loosen(client: httpx.AsyncClient) -> None:
    """A caller may give a call less time than its contract, not more."""
    problem(await called(client, "credit", CREDIT, "k", deadline_s=1e6), 422, "invalid_setting")
    assert (await called(client, "credit", CREDIT, "k", deadline_s=5)).status_code == 200


async def test_repeat_within_a_scope_is_held(client: httpx.AsyncClient, shop: Shop) -> None:
    """The same call under another key of one scope waits for a person while the first is unsettled."""
    await called(client, "lost", {"item": "x"}, "one", scope="order-7")
    second = await called(client, "lost", {"item": "x"}, "two", scope="order-7")
    assert (second.status_code, second.json()["state"]) == (202, "held")
    assert len(shop.effects) == 1


async def test_approved_call_runs_without_its_caller(serve: Serve, shop: Shop) -> None:
    """Over HTTP a call runs once it is approved, by whichever worker is there; the caller need not come back."""
    served = await serve(*shop.tools, keys=True, settings={"background": True, "every_s": 0.05})
    agent, ada = await served.of("agent"), await served.of("ada")
    held = await called(agent, "delete", {"path": "/a"}, "k")
    assert held.json()["state"] == "held"
    assert (await ada.post("/v1/calls/k/approve")).status_code == 200
    await until(served.house, "k", lambda call: call.state is State.SUCCEEDED)
    assert shop.effects == [{"deleted": "/a"}]


async def test_client_that_goes_away_ends_its_wait_and_not_the_call(served: Served, shop: Shop) -> None:
    """A connection cut in the middle of a call: the call goes on, and the same key replays it."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = b'{"arguments":{"item":"x"}}'
    head = f"POST /v1/tools/slow/calls HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Idempotency-Key: k\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await shop.began.wait()
    writer.transport.abort()
    shop.go_on.set()
    await until(served.house, "k", lambda call: call.state is State.SUCCEEDED)
    again = await called(await served.client(), "slow", {"item": "x"}, "k")
    assert (again.json()["result"], again.json()["replayed"]) == ("done", True)
    assert shop.effects == [{"item": "x"}]
