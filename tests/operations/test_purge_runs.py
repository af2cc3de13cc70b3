"""What was said in old runs is erased; how they ended, their chains and proofs stay, and nothing open is touched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.proof.scenes import bundle_of_run, forged, signer_of
from tests.support.runs import Bank, OpenStage, Stage, agent, calls, driven_only
from tollhouse import did_not_happen, external, happened, tool
from tollhouse.errors import RunNotAllowed, RunPurged
from tollhouse.ledger.run_record import RunQuery
from tollhouse.models.port import UserMessage
from tollhouse.operations.copying import chains_hold
from tollhouse.operations.purge import purge
from tollhouse.operations.purge_runs import PurgedRuns, purge_runs
from tollhouse.runs.agents import AgentApproval
from tollhouse.runs.ending import Ending
from tollhouse.runs.journal import EARLIER_ERASED
from tollhouse.runs.proof.anchors import Anchors
from tollhouse.runs.proof.bundle import anchor
from tollhouse.runs.proof.verify import verify
from tollhouse.runs.states import RunState
from tollhouse.stores import open_raw
from tollhouse.stores.common.raw import BLOBS, RUNS, RawLedger

pytestmark = driven_only

SECRET = "the patient is Ada Lovelace"
LARGE = SECRET + " " + "x" * 70_000
CREDIT = ("credit", {"account": SECRET, "cents": 5})


async def purged(stage: Stage, **options: Any) -> PurgedRuns:
    """Purge this stage's runs, whatever their age."""
    url: str = stage.house.store.url
    return await purge_runs(url, stage.house._core.tenant, **{"older_than_s": -60.0, **options})


@asynccontextmanager
async def raw(stage: Stage) -> AsyncIterator[RawLedger]:
    """The ledger as rows."""
    ledger = await open_raw(stage.house.store.url)
    try:
        yield ledger
    finally:
        await ledger.close()


async def rows(stage: Stage, table: Any) -> list[Any]:
    """The tenant's rows of a table."""
    async with raw(stage) as ledger:
        found = await ledger.page(table, table.start, 10_000)
    return [row for row in found if row[0] == stage.house._core.tenant]


async def talkative(open_stage: OpenStage, bank: Bank, **fields: Any) -> Stage:
    """A clerk that credits, and says at length what it did."""
    agents = [agent(tools=("credit",), **fields)]
    return await open_stage(*bank.tools, agents=agents, clerk=[calls(CREDIT, say=SECRET), LARGE])


async def test_nothing_that_was_said_is_left(open_stage: OpenStage, bank: Bank) -> None:
    """Messages, results, output and bodies go; agent, state, times, limits and spending stay, and say what went."""
    stage = await talkative(open_stage, bank)
    before = await stage.run(SECRET)
    assert await purged(stage) == PurgedRuns({"succeeded": 1}, 1)
    run = await stage.runs.get(before.id)
    assert (run.state, run.output, run.purged_at_us is not None) == ("succeeded", None, True)
    assert (run.spent, run.limits) == (before.spent, before.limits)
    assert run.record.updated_at_us == before.record.updated_at_us
    *erased, last = await stage.events(run.id)
    assert {event.data for event in erased} == {""}
    assert (last.kind, last.facts) == ("run_purged", {"state": "succeeded", "erased": len(erased)})
    assert "Ada" not in repr(await rows(stage, RUNS))
    assert await rows(stage, BLOBS) == []
    (listed,) = await stage.runs.list()
    assert (listed.state, listed.purged_at_us) == ("succeeded", run.purged_at_us)
    assert await purged(stage) == PurgedRuns({}, 0)


async def test_reason_of_a_purged_run_keeps_its_code(open_stage: OpenStage, bank: Bank) -> None:
    """Why it ended is known by its code; the words about it are gone."""
    stage = await talkative(open_stage, bank, approvals={"credit": AgentApproval()})
    run = await stage.run()
    await stage.runs.cancel(run.id, by="bob", reason=SECRET)
    await stage.settle()
    assert (await purged(stage)).runs == {"cancelled": 1}
    run = await stage.runs.get(run.id)
    assert run.reason == {"code": "cancelled", "cause": "What was said of it was purged."}
    assert "Ada" not in repr(await rows(stage, RUNS))


async def test_age_and_state_choose(open_stage: OpenStage, bank: Bank) -> None:
    """Younger runs stay, and those that ended otherwise; a dry run only counts."""
    stage = await talkative(open_stage, bank)
    await stage.run()
    assert (await purged(stage, older_than_s=3600.0)).runs == {}
    assert (await purged(stage, states=[RunState.FAILED])).runs == {}
    assert (await purged(stage, dry_run=True)) == PurgedRuns({"succeeded": 1}, 0)
    assert (await purged(stage, states=[RunState.SUCCEEDED])).runs == {"succeeded": 1}


async def test_proof_and_chains_hold_and_name_what_was_erased(
    open_stage: OpenStage, bank: Bank, tmp_path: Path
) -> None:
    """A bundle of a purged run passes and lists its erased events, and reaches what was anchored before the purge; a
    row that is rewritten after it still fails."""
    stage, signer = await talkative(open_stage, bank), signer_of(tmp_path)
    run = await stage.run()
    anchors = Anchors(tmp_path / "a.jsonl", signer)
    anchor(await bundle_of_run(stage.house, run.id, signer), anchors)
    await purged(stage)
    bundle = await bundle_of_run(stage.house, run.id, signer)
    verdict = verify(bundle, key=signer.public_pem, anchors=anchors.path.read_text())
    assert (verdict.result, verdict.problems) == ("pass", ())
    last = (await stage.runs.get(run.id)).record.head_seq
    assert [name for name in verdict.erased if "run:" in name] == [f"event run:{run.id} {n}" for n in range(1, last)]

    def rewrite(each: Any) -> None:
        each["contents"]["runs"][0]["requested_by"] = "mallory"

    assert verify(forged(bundle, rewrite, signer)).result == "fail"
    async with raw(stage) as ledger:
        await chains_hold(ledger)


async def test_run_with_an_open_call_stays(open_stage: OpenStage, bank: Bank) -> None:
    """What waits, is in doubt, or is contradicted keeps its run whole, until it is settled."""
    found: Any = happened("there")

    @tool(external(), reconcile=lambda record: found)
    async def send() -> str:
        """Lost on its way."""
        raise ConnectionError("lost")

    stage = await open_stage(send, agents=[agent(tools=("send",))], clerk=[calls(("send", {})), "ok"])
    run = await stage.run()
    key = f"{run.id}:1.1"
    assert (run.state, (await purged(stage)).runs) == ("awaiting_reconciliation", {})
    await stage.runs.cancel(run.id, by="bob", reason="enough")
    await stage.settle()
    assert ((await stage.house.get(key)).state, (await purged(stage)).runs) == ("in_doubt", {})
    await stage.house.resolve(key, did_not_happen("not in the list"), reason="looked", by="bob")
    await stage.house.reconcile(key)
    assert ((await stage.house.get(key)).contradicted, (await purged(stage)).runs) == (True, {})
    await stage.house.overturn(key, by="bob", reason="it is there")
    assert (await purged(stage)).runs == {"cancelled": 1}


async def test_run_that_is_not_tidied_stays(open_stage: OpenStage, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as something is left to do about its end, it is whole."""
    stage = await talkative(open_stage, bank, approvals={"credit": AgentApproval()})
    run = await stage.run()

    async def died(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ending, "_tell_parent", died)
        await stage.runs.cancel(run.id, by="bob")
    assert ((await stage.runs.get(run.id)).state, (await purged(stage)).runs) == ("cancelled", {})
    await stage.settle()
    assert (await purged(stage)).runs == {"cancelled": 1}


async def test_child_stays_until_its_parent_has_ended(open_stage: OpenStage, bank: Bank) -> None:
    """What a parent may yet read of its child is there; what both spent is counted after the purge as before."""
    agents = [agent(agents=("payer",), tools=("credit",), approvals={"credit": AgentApproval()}), agent("payer")]
    asked = calls(("agent_payer", {"input": "go"}), CREDIT)
    stage = await open_stage(*bank.tools, agents=agents, clerk=[asked, "ok"], payer=[{"say": "paid", "cost": "2"}])
    run = await stage.run()
    (child,) = await stage.runs.list(RunQuery(parent_run_id=run.id))
    assert (run.state, child.state, (await purged(stage)).runs) == ("awaiting_approval", "succeeded", {})
    await stage.house.approve(f"{run.id}:1.2", by="bob")
    run = await stage.settled(run.id)
    assert (await purged(stage)).runs == {"succeeded": 2}
    assert (await stage.runs.get(run.id)).by_children == run.by_children == child.spent


async def test_purged_run_cannot_be_gone_through_again(open_stage: OpenStage, bank: Bank) -> None:
    """Rerun and rehearsal say that it is gone, for it and for a run that continues it; the same start finds it."""
    stage = await talkative(open_stage, bank)
    first = await stage.run(thread="t", key="k")
    second = await stage.run(thread="t")
    async with raw(stage) as ledger:
        await purge_one(ledger, stage, first.id)
    for run in (first, second):
        with pytest.raises(RunPurged) as gone:
            await stage.runs.rerun(run.id, by="bob")
        assert first.id in gone.value.cause
        with pytest.raises(RunPurged):
            await stage.runs.rehearse(run.id)
    with pytest.raises(RunNotAllowed):
        await stage.runs.cancel(first.id, by="bob")
    again = await stage.runs.start("clerk", "go", by="ada", thread="t", key="k")
    assert (again.id, again.started_before, again.output) == (first.id, True, None)


async def purge_one(ledger: RawLedger, stage: Stage, run_id: str) -> None:
    """Purge the oldest run alone."""
    tenant = stage.house._core.tenant
    oldest = (await stage.runs.get(run_id)).record
    younger = [each.record for each in await stage.runs.list() if each.id != run_id]
    assert all(each.created_at_us > oldest.created_at_us for each in younger)
    now_us = await ledger.now_us()
    age_s = (now_us - (oldest.updated_at_us + min(each.updated_at_us for each in younger)) / 2) / 1_000_000
    url: str = stage.house.store.url
    assert sum((await purge_runs(url, tenant, older_than_s=age_s)).runs.values()) == 1
    assert (await stage.runs.get(run_id)).purged_at_us is not None


async def test_rerun_that_was_started_before_is_found(open_stage: OpenStage, bank: Bank) -> None:
    """Whoever repeats a rerun under its key after the purge gets the run that it started; another is refused."""
    stage = await talkative(open_stage, bank)
    run = await stage.run()
    again = await stage.runs.rerun(run.id, by="bob", key="again", effects="reuse")
    await stage.settle()
    assert (await purged(stage)).runs == {"succeeded": 2}
    found = await stage.runs.rerun(run.id, by="bob", key="again", effects="reuse")
    assert (found.id, found.started_before) == (again.id, True)
    for key, effects in (("again", "repeat"), ("other", "reuse"), (None, "reuse")):
        with pytest.raises(RunPurged):
            await stage.runs.rerun(run.id, by="bob", key=key, effects=effects)  # type: ignore[arg-type]


async def test_thread_goes_on_after_a_purged_run(open_stage: OpenStage, bank: Bank) -> None:
    """Its next run begins with the note that the messages before were erased; later ones follow as ever."""
    stage = await talkative(open_stage, bank)
    await stage.run("one", thread="t")
    await purged(stage)
    await stage.run("two", thread="t")
    assert stage.model.requests[-2].messages == (UserMessage(EARLIER_ERASED), UserMessage("two"))
    third = await stage.run("three", thread="t")
    heard = await stage.conversation(third.id)
    assert [each.text for each in heard if isinstance(each, UserMessage)] == [EARLIER_ERASED, "two", "three"]


async def test_conversation_that_is_gone_on_with_stays(open_stage: OpenStage, bank: Bank) -> None:
    """While a run of the thread has not ended it may read what was said before, and no purge takes that."""
    stage = await talkative(open_stage, bank)
    first = await stage.run("one", thread="t")
    second = await stage.runs.start("clerk", "two", by="ada", thread="t")
    assert (await purged(stage)).runs == {}
    async with raw(stage) as ledger:
        record = (await stage.runs.get(first.id)).record
        assert not await ledger.purge_run(record, record, (), ())
    await stage.settled(second.id)
    assert (await purged(stage)).runs == {"succeeded": 2}


async def test_run_that_moved_is_not_purged(open_stage: OpenStage, bank: Bank) -> None:
    """The purge names the version that it was decided on; nothing is erased where another stands."""
    stage = await talkative(open_stage, bank)
    run = await stage.run()
    await purged(stage)
    async with raw(stage) as ledger:
        assert not await ledger.purge_run(run.record, run.record, (), ())
    assert len(await stage.events(run.id)) == (await stage.runs.get(run.id)).record.head_seq


async def test_body_that_somebody_else_has_stays(open_stage: OpenStage, bank: Bank) -> None:
    """Equal bodies are kept once; the last run or call that has one takes it along."""

    @tool(external())
    async def report() -> str:
        """As long as what the clerk says."""
        return LARGE

    stage = await open_stage(report, agents=[agent(tools=("report",))], clerk=[calls(("report", {})), LARGE])
    run = await stage.run()
    assert sha256(LARGE.encode()).hexdigest() in [row[1] for row in await rows(stage, BLOBS)]
    assert (await purged(stage)).runs == {"succeeded": 1}
    assert (await stage.house.get(f"{run.id}:1.1")).result == LARGE
    url: str = stage.house.store.url
    assert (await purge(url, stage.house._core.tenant, older_than_s=-60.0)).calls == {"succeeded": 1}
    assert await rows(stage, BLOBS) == []
