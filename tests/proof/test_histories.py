"""Whatever a call lives through, its proof does not fail: what is broken in a proof was broken by somebody."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.scenes import TOOLS, signer_of
from tests.support.houses import OpenHouse
from tollhouse.house.running import open_runs
from tollhouse.ledger.events import first_break
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import run_stream
from tollhouse.ledger.store import Query
from tollhouse.models.book import ModelBook
from tollhouse.runs import steps
from tollhouse.runs.agents import Agent
from tollhouse.runs.journal import commit
from tollhouse.runs.proof.bundle import prove_call
from tollhouse.runs.proof.verdict import Result
from tollhouse.runs.proof.verify import verify
from tollhouse.testing.memory_store import MemoryLedger, MemoryStore
from tollhouse.testing.simulation import simulate, world
from tollhouse.testing.simulation.process import TENANT

SEEDS = 600


async def test_no_simulated_history_breaks_a_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Crashes, lost acknowledgements, late outcomes, people who change their minds: every chain holds, and every row
    is what its chain says. Only a contradiction that nobody decided is a reason to fail."""
    ledgers: list[MemoryLedger] = []
    begin = world.World.__init__

    def noted(self: Any, *given: Any) -> None:
        begin(self, *given)
        ledgers.append(self.ledger)

    monkeypatch.setattr(world.World, "__init__", noted)
    for seed in range(SEEDS):
        simulate(seed)
    signer, results = signer_of(tmp_path), set()
    for ledger in ledgers:
        store = MemoryStore(ledger)
        for record in await store.find(TENANT, Query()):
            verdict = verify(await prove_call(store, TENANT, record.key, signer), key=signer.public_pem)
            results.add(verdict.result)
            told = [problem.what for problem in verdict.problems]
            assert told == ["Its records contradict each other, and nobody has decided."] * record.contradicted
    assert Result.PASS in results


async def test_history_goes_on_from_what_a_lost_acknowledgement_left(open_house: OpenHouse) -> None:
    """A write of a run that is decided anew after its first try was applied builds on that try."""
    house = await open_house(*TOOLS)
    store: Any = house.store
    runs = await open_runs(
        house, {"clerk": Agent("clerk", "scripted:play")}, ModelBook(scripts={"play": [{"say": ""}]})
    )
    run = (await runs.start("clerk", "Go on.", by="ada")).record
    claimed = steps.claimed(run, house._core.owner_id, None, run.updated_at_us + 1)
    later = steps.claimed(run, house._core.owner_id, None, run.updated_at_us + 2)
    first, _ = await commit(store, claimed, "the write")
    again, events = await commit(store, later, "the write")
    assert again == first
    assert events[-1].hash == first.head_hash
    await commit(store, steps.released(again, again.updated_at_us + 1), "another write")
    told = await store.events(run.tenant, run_stream(run.id))
    assert first_break(told) is None
    assert replace(run, head_seq=3).head_seq == len(told)
