"""What a verdict says of calls and runs that ended in every way there is, and of what their accounts lack."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.proof.scenes import (
    LARGE,
    TOOLS,
    approved_call,
    bundle_of_call,
    bundle_of_run,
    close_account,
    finished_run,
    pay,
    run_of,
    settled_call,
    signer_of,
)
from tests.support.houses import OpenHouse
from tollhouse import Tollhouse, did_not_happen, external, happened, tool
from tollhouse.errors import TollhouseError
from tollhouse.ledger.change import Draft
from tollhouse.ledger.cover import call_digest, covered
from tollhouse.ledger.events import Event, seal
from tollhouse.ledger.rows import record_of
from tollhouse.operations.purge import purge
from tollhouse.runs.proof.bundle import Bundle, prove_call, prove_run, sealed, text_of
from tollhouse.runs.proof.collect import row_of
from tollhouse.runs.proof.keys import Signer
from tollhouse.runs.proof.verdict import Result, Verdict
from tollhouse.runs.proof.verify import read_bundle, verify


async def judged(house: Tollhouse, key: str, signer: Signer) -> Verdict:
    """The verdict on the proof of a call, as it travels."""
    bundle = await bundle_of_call(house, key, signer)
    return verify(read_bundle(text_of(bundle)), key=signer.public_pem)


async def test_settled_calls_pass(open_house: OpenHouse, tmp_path: Path) -> None:
    """Succeeded, failed, refused, approved, edited, settled by a person and overturned: all accounted for."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="paid")
    for key, to in (("refused", "refused"), ("large", "large")):
        with suppress(TollhouseError):
            await house.call(pay, {"to": to}, key=key)
    await approved_call(house, "approved")
    with suppress(TollhouseError):
        await house.call(close_account, {"of": "ada"}, key="denied")
    await house.deny("denied", by="bea", reason="not hers")
    with suppress(TollhouseError):
        await house.call(close_account, {"of": "ada"}, key="edited")
    await house.edit("edited", {"of": "bob"}, by="bea")
    await house.approve("edited", by="bea")
    await house.call(close_account, {"of": "ada"}, key="edited")
    await settled_call(house, "settled")
    await house.retry("refused", by="bea", reason="the account is there now")
    with suppress(TollhouseError):
        await house.call(pay, {"to": "refused"}, key="refused")
    for key in ("paid", "refused", "large", "approved", "denied", "edited", "settled"):
        verdict = await judged(house, key, signer)
        assert (verdict.result, verdict.problems, verdict.open) == (Result.PASS, (), ()), key
        assert verdict.notes == ()


@pytest.mark.parametrize(("to", "said"), [("lost", "in doubt"), ("unsent", "may still go"), (None, "waits for people")])
async def test_what_is_open_is_incomplete(open_house: OpenHouse, tmp_path: Path, to: str | None, said: str) -> None:
    """A doubt, a hold and a call that may go are no failure, and no pass."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    with suppress(TollhouseError):
        asked = (close_account, {"of": "ada"}) if to is None else (pay, {"to": to})
        await house.call(asked[0], asked[1], key="k")
    verdict = await judged(house, "k", signer)
    assert (verdict.result, verdict.problems) == (Result.INCOMPLETE, ())
    assert said in verdict.open[0].what


async def test_open_contradiction_fails_until_somebody_decides(open_house: OpenHouse, tmp_path: Path) -> None:
    """Records that contradict each other are named as what is wrong; upheld, they pass."""

    async def found(_record: Any) -> Any:
        return happened("paid")

    @tool(external(), reconcile=found)
    async def send() -> str:
        raise ConnectionError("the reply was lost")

    house, signer = await open_house(send), signer_of(tmp_path)
    with suppress(TollhouseError):
        await house.call(send, {}, key="k")
    await house.resolve("k", did_not_happen("not in the books"), reason="looked", by="bea")
    with suppress(TollhouseError):
        await house.reconcile("k")
    verdict = await judged(house, "k", signer)
    assert verdict.result is Result.FAIL
    assert verdict.first is not None
    assert (verdict.first.record, verdict.first.seq) == ("call k", 5)
    assert "contradict" in verdict.first.what
    await house.uphold("k", by="bea", reason="the second look was at another account")
    assert (await judged(house, "k", signer)).result is Result.PASS


async def test_cost_that_could_not_be_computed_is_missing(open_house: OpenHouse, tmp_path: Path) -> None:
    """A gap in the books fails until it is repaired, and the repaired cost is proven."""
    broken = [True]

    def price(_arguments: Any, _value: Any) -> float:
        if broken[0]:
            raise KeyError("no price list")
        return 0.5

    @tool(external(), cost=price)
    async def send() -> str:
        return "sent"

    house, signer = await open_house(send), signer_of(tmp_path)
    await house.call(send, {}, key="k")
    verdict = await judged(house, "k", signer)
    assert verdict.result is Result.FAIL
    assert verdict.first is not None
    assert "cost is missing" in verdict.first.what.replace("What it cost", "Its cost")


async def test_departure_without_its_decision_fails(open_house: OpenHouse, tmp_path: Path) -> None:
    """A forger who rebuilds the whole chain, without the yes that was needed, is found by the accounts."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await approved_call(house, "k")
    bundle = await bundle_of_call(house, "k", signer)
    verdict = verify(rebuilt(bundle, signer, without="approved"), key=signer.public_pem)
    assert verdict.result is Result.FAIL
    assert any("without the approval" in problem.what for problem in verdict.problems)


def rebuilt(bundle: Bundle, signer: Signer, *, without: str) -> Bundle:
    """The bundle without events of that kind, with a new chain, a row that fits it, and a new signature."""
    contents = json.loads(json.dumps(bundle["contents"]))
    stream, row = contents["streams"][0], contents["calls"][0]
    told = [Event(**raw) for raw in stream["events"] if raw["kind"] != without]
    digest = call_digest(record_of(row), row["body"])
    drafts = covered([Draft(event.kind, event.facts) for event in told], digest)
    events = seal(stream["stream"], 0, "", drafts, told[0].at_us, "forged")
    stream["events"] = [{name: getattr(event, name) for name in stream["events"][0]} for event in events]
    stream["head"] |= {"seq": len(events), "hash": events[-1].hash}
    row |= {"head_seq": len(events), "head_hash": events[-1].hash}
    return sealed(contents, signer)


async def test_row_that_was_rewritten_in_the_store_fails(open_house: OpenHouse, tmp_path: Path) -> None:
    """Whoever changes a row in the database, and has the house sign it, is told by the chain which row it is."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    record = (await house.get("k")).raw

    class Rewritten:
        """The store as its administrator left it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(house.store, name)

        async def get(self, _tenant: str, _key: str) -> Any:
            body = row_of(record) | {"body": row_of(record)["body"].replace('"cost":"0.25"', '"cost":"0.01"')}
            return record_of(body)

    bundle = await prove_call(Rewritten(), house._core.tenant, "k", signer)
    verdict = verify(bundle, key=signer.public_pem)
    assert verdict.result is Result.FAIL
    assert verdict.first is not None
    assert (verdict.first.record, verdict.first.seq) == ("call k", 2)
    assert "another cost" in verdict.first.what


async def test_purged_results_and_calls_are_erased_and_pass(open_house: OpenHouse, tmp_path: Path) -> None:
    """What was purged breaks no chain; a call of which only the row stays is reported as erased."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "large"}, key="k")
    await purge(house.store.url, house._core.tenant, older_than_s=-60, results_only=True)
    verdict = await judged(house, "k", signer)
    assert (verdict.result, verdict.problems, verdict.counts["blobs"]) == (Result.PASS, (), 0)
    assert verdict.counts["events"] == 3
    await purge(house.store.url, house._core.tenant, older_than_s=-60)
    verdict = await judged(house, "k", signer)
    assert (verdict.result, verdict.problems, verdict.erased) == (Result.PASS, (), ("call k",))


async def test_erased_payload_keeps_the_chain_and_is_reported(open_house: OpenHouse, tmp_path: Path) -> None:
    """The chain covers a salted digest of a payload, not the payload: a person's words may go."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    contents = (await bundle_of_call(house, "k", signer))["contents"]
    contents["streams"][0]["events"][0]["data"] = ""
    verdict = verify(sealed(contents, signer), key=signer.public_pem)
    assert (verdict.result, verdict.problems, verdict.erased) == (Result.PASS, (), ("event call:k 1",))


async def test_events_of_an_earlier_release_are_noted_not_blamed(open_house: OpenHouse, tmp_path: Path) -> None:
    """Its events carry no digest of the row; what they say in words is compared all the same."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    bundle = await bundle_of_call(house, "k", signer)
    older = _without_digests(bundle, signer)
    verdict = verify(older, key=signer.public_pem)
    assert (verdict.result, verdict.problems) == (Result.PASS, ())
    assert "not covered" in verdict.notes[0]
    row = older["contents"]["calls"][0]
    row["body"] = row["body"].replace('"happened"', '"rejected"')
    verdict = verify(sealed(older["contents"], signer), key=signer.public_pem)
    assert verdict.result is Result.FAIL


def _without_digests(bundle: Bundle, signer: Signer) -> Bundle:
    contents = json.loads(json.dumps(bundle["contents"]))
    stream, row = contents["streams"][0], contents["calls"][0]
    told = [Event(**raw) for raw in stream["events"]]
    events = seal(stream["stream"], 0, "", [Draft(e.kind, e.facts) for e in told], told[0].at_us, "older")
    stream["events"] = [{name: getattr(event, name) for name in stream["events"][0]} for event in events]
    stream["head"] |= {"seq": len(events), "hash": events[-1].hash}
    row |= {"head_seq": len(events), "head_hash": events[-1].hash}
    return sealed(contents, signer)


# -- runs ----------------------------------------------------------------------------------------------------------


async def test_finished_run_passes_and_is_the_same_bytes_again(open_house: OpenHouse, tmp_path: Path) -> None:
    """With its calls, agent, tools and long texts; nothing in a bundle depends on when it is made."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await finished_run(house, twice=True)
    bundle = await bundle_of_run(house, run_id, signer)
    verdict = verify(read_bundle(text_of(bundle)), key=signer.public_pem)
    assert (verdict.result, verdict.problems, verdict.notes) == (Result.PASS, (), ())
    assert (verdict.counts["calls"], verdict.counts["definitions"], verdict.counts["runs"]) == (3, 2, 1)
    assert text_of(await bundle_of_run(house, run_id, signer)) == text_of(bundle)


async def test_run_that_waits_is_incomplete(open_house: OpenHouse, tmp_path: Path) -> None:
    """A run that has not ended is neither good nor bad yet; what it waits for is named."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await run_of(house, [{"call": [{"tool": "close_account", "arguments": {"of": "ada"}}]}])
    verdict = verify(await bundle_of_run(house, run_id, signer), key=signer.public_pem)
    assert (verdict.result, verdict.problems) == (Result.INCOMPLETE, ())
    assert {problem.record for problem in verdict.open} == {f"run {run_id}", f"call {run_id}:1.1"}


async def test_call_that_the_model_asked_for_and_nobody_answered_is_missing(
    open_house: OpenHouse, tmp_path: Path
) -> None:
    """Left out with its chain, and with the answer that the model got: the ask remains, and names it."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await finished_run(house)
    contents = (await bundle_of_run(house, run_id, signer))["contents"]
    missing = contents["calls"].pop()["key"]
    contents["streams"] = [each for each in contents["streams"] if each["stream"] != f"call:{missing}"]
    journal = contents["streams"][0]
    told = [Event(**raw) for raw in journal["events"] if raw["kind"] != "calls_settled"]
    events = seal(journal["stream"], 0, "", [Draft(e.kind, json.loads(e.data)) for e in told], told[0].at_us, "forged")
    journal["events"] = [{name: getattr(event, name) for name in journal["events"][0]} for event in events]
    journal["head"] |= {"seq": len(events), "hash": events[-1].hash}
    contents["runs"][0] |= {"head_seq": len(events), "head_hash": events[-1].hash}
    verdict = verify(sealed(contents, signer), key=signer.public_pem)
    assert verdict.result is Result.FAIL
    assert verdict.first is not None
    assert (verdict.first.record, verdict.first.stream) == (f"call {missing}", f"run:{run_id}")


async def test_bodies_may_be_left_out_and_that_is_said(open_house: OpenHouse, tmp_path: Path) -> None:
    """Their digests stay proven; the bundle is small."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await finished_run(house)
    store: Any = house.store
    bundle = await prove_run(store, store, house._core.tenant, run_id, signer, with_blobs=False)
    assert LARGE not in text_of(bundle)
    verdict = verify(bundle, key=signer.public_pem)
    assert verdict.result is Result.PASS
    assert any("left out" in note for note in verdict.notes)


async def test_proof_of_a_call_that_moves_is_one_moment_of_it(open_house: OpenHouse, tmp_path: Path) -> None:
    """Row and events belong together, however busy the call is."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    with suppress(TollhouseError):
        await house.call(pay, {"to": "lost"}, key="k")

    async def busy() -> None:
        for number in range(40):
            with suppress(TollhouseError):
                await house.retry("k", by="bea", reason=f"try {number}")

    moving = asyncio.create_task(busy())
    while not moving.done():
        assert not verify(await bundle_of_call(house, "k", signer), key=signer.public_pem).problems
    await moving


async def test_proof_of_a_run_that_moves_is_one_moment_of_it(open_house: OpenHouse, tmp_path: Path) -> None:
    """Calls that came while it was read belong to a journal that asked for them."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    turns = [{"call": [{"tool": "pay", "arguments": {"to": "ada"}}]}, {"say": "Paid."}]
    runs, run_id = await run_of(house, turns, steps=0)

    class Moving:
        """The store of a run that goes on between the reading of its journal and that of its calls."""

        def __getattr__(self, name: str) -> Any:
            return getattr(house.store, name)

        async def find(self, *query: Any) -> Any:
            for _ in range(2):
                await runs.advance(run_id)
            return await house.store.find(*query)

    moving: Any = Moving()
    verdict = verify(await prove_run(moving, moving, house._core.tenant, run_id, signer), key=signer.public_pem)
    assert (verdict.result, verdict.problems) == (Result.PASS, ())
