"""`POST /v1/calls/{key}/<verb>`: decisions by the credential's principal, on what was shown, about what is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.conftest import Served, called, problem
from tests.api.shop import Shop


@pytest.fixture
async def agent(guarded: Served) -> httpx.AsyncClient:
    """Who calls tools."""
    return await guarded.of("agent")


@pytest.fixture
async def ada(guarded: Served) -> httpx.AsyncClient:
    """Who decides."""
    return await guarded.of("ada")


@pytest.fixture
async def bob(guarded: Served) -> httpx.AsyncClient:
    """Who decides as well."""
    return await guarded.of("bob")


async def held(client: httpx.AsyncClient, key: str = "k", path: str = "/a") -> dict[str, Any]:
    """A held call as it is shown."""
    assert (await called(client, "delete", {"path": path}, key)).json()["state"] == "held"
    shown: dict[str, Any] = (await client.get(f"/v1/calls/{key}")).json()
    return shown


# -- approvals -----------------------------------------------------------------------------------------------------


# case C83
async def test_approved_call_runs_once_and_for_its_own_key_only(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, guarded: Served, shop: Shop
) -> None:
    """One approval is one run of one call: not of its repeat, nor of the same wish of another agent."""
    await held(agent)
    assert (await ada.post("/v1/calls/k/approve", json={"reason": "fine"})).status_code == 200
    first, again = [await called(agent, "delete", {"path": "/a"}, "k") for _ in range(2)]
    assert (first.json()["state"], again.json()["replayed"]) == ("succeeded", True)
    other = await guarded.of("other-agent")
    assert (await called(other, "delete", {"path": "/a"}, "other")).json()["state"] == "held"
    assert shop.effects == [{"deleted": "/a"}]


# case C77
async def test_what_runs_is_the_stored_call_and_never_what_the_answer_says(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, shop: Shop
) -> None:
    """An approval that carries a tool, arguments or a key is refused whole; the stored request is what runs."""
    await held(agent)
    for smuggled in ({"arguments": {"path": "/b"}}, {"tool": "credit"}, {"key": "other"}, {"by": "bob"}):
        problem(await ada.post("/v1/calls/k/approve", json=smuggled), 422, "invalid_request")
    assert (await ada.post("/v1/calls/k/approve")).status_code == 200
    await called(agent, "delete", {"path": "/a"}, "k")
    assert shop.effects == [{"deleted": "/a"}]


# case C82
async def test_approval_takes_what_the_list_of_approvals_shows(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient
) -> None:
    """Version and digest go round trip as they were shown; a wrong one is told for what it is."""
    await held(agent)
    (asked,) = (await ada.get("/v1/approvals")).json()["approvals"]
    assert (asked["key"], asked["arguments"], asked["may_decide"]) == ("k", {"path": "/a"}, True)
    wrong = await ada.post("/v1/calls/k/approve", json={"digest": "0" * 64})
    assert "arguments changed" in problem(wrong, 409, "not_allowed")["detail"]
    (asked,) = (await ada.get("/v1/approvals")).json()["approvals"]  # the try is on record, so the version moved
    right = await ada.post(
        "/v1/calls/k/approve", json={"digest": asked["digest"]}, headers={"If-Match": f'"{asked["version"]}"'}
    )
    assert (right.status_code, right.json()["state"]) == (200, "ready")


async def test_approval_of_a_call_that_changed_since_fails_its_precondition(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    """Who approves what was shown does not approve what it was edited to meanwhile."""
    shown = await held(agent)
    assert (await bob.post("/v1/calls/k/edit", json={"arguments": {"path": "/b"}})).status_code == 200
    late = await ada.post("/v1/calls/k/approve", headers={"If-Match": f'"{shown["version"]}"'})
    problem(late, 412, "precondition_failed")
    by_digest = await ada.post("/v1/calls/k/approve", json={"digest": shown["digest"]})
    problem(by_digest, 409, "not_allowed")
    assert (await ada.get("/v1/calls/k")).json()["state"] == "held"


async def test_nobody_approves_their_own_call_whatever_the_body_says(agent: httpx.AsyncClient, guarded: Served) -> None:
    """The requester is the principal of the key that called; a second key of the same principal changes nothing."""
    await held(agent)
    problem(await agent.post("/v1/calls/k/approve"), 403, "not_entitled")
    second_key = await guarded.of("agent")
    problem(await second_key.post("/v1/calls/k/approve"), 403, "not_entitled")
    problem(await agent.post("/v1/calls/k/approve", json={"by": "ada"}), 422, "invalid_request")


async def test_same_person_approving_twice_counts_once(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, bob: httpx.AsyncClient, shop: Shop
) -> None:
    """A quorum of two is two people: the second yes of one is refused, and the call stays held."""
    await called(agent, "wire", {"amount_cents": 5}, "k")
    assert (await ada.post("/v1/calls/k/approve")).json()["state"] == "held"
    problem(await ada.post("/v1/calls/k/approve"), 403, "not_entitled")
    assert (await bob.post("/v1/calls/k/approve")).json()["state"] == "ready"
    problem(await bob.post("/v1/calls/k/approve"), 409, "not_allowed")
    assert shop.effects == []
    assert (await called(agent, "wire", {"amount_cents": 5}, "k")).json()["result"] == "wired"


async def test_only_named_approvers_decide(agent: httpx.AsyncClient, guarded: Served) -> None:
    """Where the contract names who may approve, nobody else's yes counts, and the list says so."""
    await called(agent, "wire", {"amount_cents": 5}, "k")
    eve = await guarded.of("eve")
    assert [asked["may_decide"] for asked in (await eve.get("/v1/approvals")).json()["approvals"]] == [False]
    problem(await eve.post("/v1/calls/k/approve"), 403, "not_entitled")


async def test_denied_call_is_refused_with_its_reason(agent: httpx.AsyncClient, ada: httpx.AsyncClient) -> None:
    """A no needs a reason, and whoever repeats the call hears it."""
    await held(agent)
    problem(await ada.post("/v1/calls/k/deny", json={}), 422, "invalid_request")
    problem(await ada.post("/v1/calls/k/deny", json={"reason": "   "}), 422, "invalid_request")
    denied = await ada.post("/v1/calls/k/deny", json={"reason": "not that one"})
    assert (denied.json()["state"], denied.headers["etag"]) == ("refused", f'"{denied.json()["version"]}"')
    again = await called(agent, "delete", {"path": "/a"}, "k")
    assert (again.status_code, again.json()["state"]) == (200, "refused")
    assert "not that one" in again.json()["error"]["cause"]


async def test_edited_call_runs_with_the_new_arguments_and_its_votes_are_void(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, bob: httpx.AsyncClient, shop: Shop
) -> None:
    """An edit asks for approval anew; what is approved then is what runs."""
    await called(agent, "wire", {"amount_cents": 5}, "k")
    await ada.post("/v1/calls/k/approve")
    problem(await bob.post("/v1/calls/k/edit", json={"arguments": {"amount_cents": "x"}}), 422, "invalid_arguments")
    edited = (await bob.post("/v1/calls/k/edit", json={"arguments": {"amount_cents": 4}, "reason": "less"})).json()
    assert (edited["arguments"], edited["approval"]["votes"]) == ({"amount_cents": 4}, [])
    for person in (ada, bob):
        assert (await person.post("/v1/calls/k/approve")).status_code == 200
    await called(agent, "wire", {"amount_cents": 5}, "k")
    assert shop.effects == [{"wired": 4}]


async def test_of_two_deciders_one_wins_and_the_other_hears_who(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    """Two resolutions of one doubt on the version shown: one is recorded, the other fails its precondition."""
    await called(agent, "lost", {"item": "x"}, "k")
    tag = (await ada.get("/v1/calls/k")).headers["etag"]
    bodies = [{"finding": "happened", "reason": "seen"}, {"finding": "did_not_happen", "reason": "not seen"}]
    answers = await asyncio.gather(
        *(
            person.post("/v1/calls/k/resolve", json=body, headers={"If-Match": tag})
            for person, body in zip((ada, bob), bodies, strict=True)
        )
    )
    won, lost = sorted(answers, key=lambda answer: answer.status_code)
    assert won.status_code == 200
    decided_by = won.json()["settlements"][-1]["by"]
    assert decided_by in problem(lost, 412, "precondition_failed")["detail"]


# -- doubts and what follows ---------------------------------------------------------------------------------------


async def test_doubt_is_resolved_by_name_with_the_value_given(agent: httpx.AsyncClient, ada: httpx.AsyncClient) -> None:
    """The settlement carries the principal of the key, its reason, and the result that repeats then get."""
    await called(agent, "lost", {"item": "x"}, "k")
    body = {"finding": "happened", "reason": "seen", "value": "arrived", "reference": "r-1"}
    settled = (await ada.post("/v1/calls/k/resolve", json=body)).json()
    assert (settled["state"], settled["settlements"][-1]["by"]) == ("succeeded", "ada")
    again = (await called(agent, "lost", {"item": "x"}, "k")).json()
    assert (again["result"], again["reference"], again["replayed"]) == ("arrived", "r-1", True)
    problem(await ada.post("/v1/calls/k/resolve", json=body), 409, "decision_conflict")


@pytest.mark.parametrize(
    "body",
    [
        {"finding": "happened", "reason": "seen", "evidence": "e"},
        {"finding": "did_not_happen", "reason": "seen", "value": 1},
        {"finding": "did_not_happen", "reason": "seen", "reference": "r"},
        {"finding": "perhaps", "reason": "seen"},
        {"finding": "happened"},
    ],
)
async def test_resolution_that_contradicts_itself_is_refused(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    """What happened has no evidence of absence; what did not has no result; both have a reason."""
    await called(agent, "lost", {"item": "x"}, "k")
    problem(await ada.post("/v1/calls/k/resolve", json=body), 422, "invalid_request")
    assert (await ada.get("/v1/calls/k")).json()["state"] == "in_doubt"


async def test_look_up_settles_a_doubt(agent: httpx.AsyncClient, shop: Shop) -> None:
    """`reconcile` asks the tool now."""
    await called(agent, "lost", {"item": "x"}, "k")
    settled = await agent.post("/v1/calls/k/reconcile")
    assert (settled.status_code, settled.json()["state"]) == (200, "failed")


async def test_call_is_undone_by_a_call_of_its_own(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, shop: Shop
) -> None:
    """`compensate` answers as a call does, and asking again replays it."""
    await called(agent, "credit", {"account_id": "a", "amount_cents": 1}, "k")
    first, again = [await ada.post("/v1/calls/k/compensate", json={"reason": "a mistake"}) for _ in range(2)]
    assert (first.status_code, first.json()["key"], first.json()["result"]) == (200, "k:compensate", "voided")
    assert (again.headers["idempotent-replayed"], shop.undone) == ("true", ["k"])
    replayed = await called(agent, "credit", {"account_id": "a", "amount_cents": 1}, "k")
    assert (replayed.status_code, replayed.json()["state"]) == (200, "compensated")


async def test_failed_call_gets_a_new_round_by_name(agent: httpx.AsyncClient, ada: httpx.AsyncClient) -> None:
    """`retry` opens it and sends nothing itself."""
    await called(agent, "rejected", {"item": "x"}, "k")
    opened = await ada.post("/v1/calls/k/retry", json={"reason": "it is for sale now"})
    assert (opened.json()["state"], opened.json()["round"], len(opened.json()["attempts"])) == ("ready", 2, 1)
    problem(await ada.post("/v1/calls/k/retry", json={"reason": "again"}), 409, "not_allowed")


async def test_held_call_is_cancelled(agent: httpx.AsyncClient) -> None:
    """`cancel` refuses what has not left; its caller may."""
    await held(agent)
    assert (await agent.post("/v1/calls/k/cancel")).json()["state"] == "refused"


async def test_contradiction_is_upheld_or_overturned(
    agent: httpx.AsyncClient, ada: httpx.AsyncClient, bob: httpx.AsyncClient, shop: Shop
) -> None:
    """A settlement that evidence speaks against: callers hear of a contradiction until a person decides it."""
    call = asyncio.create_task(called(agent, "slow", {"item": "x"}, "k"))
    await shop.began.wait()
    forced = {"finding": "did_not_happen", "reason": "it cannot have", "force": True}
    assert (await ada.post("/v1/calls/k/resolve", json=forced)).json()["state"] == "failed"
    shop.go_on.set()
    problem(await call, 409, "call_contradicted")
    overturned = await bob.post("/v1/calls/k/overturn", json={"reason": "the late answer shows it"})
    assert (overturned.json()["state"], overturned.json()["contradicted"]) == ("succeeded", False)
    problem(await bob.post("/v1/calls/k/uphold", json={"reason": "too late"}), 409, "not_allowed")


# -- If-Match ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "reconcile", "compensate", "approve", "deny", "retry", "uphold"])
async def test_every_verb_heeds_if_match(agent: httpx.AsyncClient, ada: httpx.AsyncClient, verb: str) -> None:
    """A version that does not stand is a failed precondition, whichever the verb."""
    await held(agent)
    body = None if verb == "reconcile" else {"reason": "r"}
    for tag in ('"99"', 'W/"1"', "1", '"x"', '"98", "99"', "", '"' + "9" * 100 + '"'):
        answer = await ada.post(f"/v1/calls/k/{verb}", json=body, headers={"If-Match": tag})
        problem(answer, 412, "precondition_failed")
    assert (await ada.get("/v1/calls/k")).json()["state"] == "held"


async def test_any_version_may_be_asked_for(agent: httpx.AsyncClient, ada: httpx.AsyncClient) -> None:
    """`If-Match: *` is what leaving it out means, and one of several tags is enough."""
    for key, tag in (("k", "*"), ("k2", 'W/"1", "1", "7"')):
        await held(agent, key)
        assert (await ada.post(f"/v1/calls/{key}/approve", headers={"If-Match": tag})).status_code == 200


async def test_decision_about_no_call_is_not_found(ada: httpx.AsyncClient) -> None:
    """Every verb says so."""
    for verb in ("approve", "deny", "retry", "cancel", "uphold", "overturn", "compensate", "reconcile"):
        problem(await ada.post(f"/v1/calls/none/{verb}", json=_body(verb)), 404, "unknown_call")


def _body(verb: str) -> Any:
    return None if verb == "reconcile" else {"reason": "r"}
