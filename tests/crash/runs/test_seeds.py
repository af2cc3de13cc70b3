"""Random plans under random kills and stops: no effect is repeated or lost, no run is stuck, no ask unanswered."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.crash.runs.conftest import Drive, MakeOffice
from tests.crash.runs.office import opened
from tests.crash.runs.seeds import judge, play
from tests.crash.runs.watching import begun, finished, stands, until
from tollhouse import did_not_happen
from tollhouse.testing.receiver import Receiver

pytestmark = pytest.mark.crash

FIRST = int(os.environ.get("TOLLHOUSE_TEST_SEED", "0"))
"""To play one seed again: TOLLHOUSE_TEST_SEED=<seed> and the first of these tests."""


async def test_judge_sees_what_is_wrong(make_office: MakeOffice, receiver: Receiver) -> None:
    """A run that did one item twice, another never, and whose first call a person settled against the book."""
    credit = ("credit", {"account": "item-1", "cents": 1})
    place = make_office(((credit,), (("credit", {"account": "item-1", "cents": 2}),)))
    receiver.fault("hold_after_effect", collection="credits")
    async with opened(place) as office:
        run = await begun(office)
        await receiver.await_for_effects(1, collection="credits")
        found = await judge(office, receiver, run.id, ((credit,),))
        assert found == {}
        receiver.release()
        await finished(office.runs, run.id)
        found = await judge(office, receiver, run.id, ((credit, ("notify", {"order": "item-2"})),))
        assert {verdict: len(told) for verdict, told in found.items()} == {"repeated": 1, "lost": 1}
        failing = make_office(
            ((("notify", {"order": "item-1"}),),), tools={"tests.crash.runs.tools:shop": {}}, name="2"
        )
        async with opened(failing) as other:
            receiver.fault("reset_after_effect", collection="notices")
            run = await stands(other.runs, (await begun(other)).id, "awaiting_reconciliation")
            await other.house.resolve(run.waiting[0].id, did_not_happen("not seen"), by="bob", reason="rash")
            await until(other.runs, run.id, lambda run: run.record.finished)
            found = await judge(other, receiver, run.id, ((("notify", {"order": "item-1"}),),))
            assert {"repeated", "unexplained"} <= set(found)


async def played(seeds: range, folder: Path, drive: Drive, temporal: str, store: str | None = None) -> None:
    """Play these seeds side by side, each as by :func:`play`; nothing is found."""
    found = await asyncio.gather(*(play(seed, folder, drive, store, temporal=temporal) for seed in seeds))
    failed = {seed: verdicts for seed, verdicts in zip(seeds, found, strict=True) if verdicts}
    assert failed == {}, f"played again by TOLLHOUSE_TEST_SEED={min(failed)}"


@pytest.mark.parametrize("part", range(2))
async def test_ten_seeds_over_sqlite(tmp_path: Path, drive: Drive, temporal: str, part: int) -> None:
    """Each seed has a ledger, a receiver and processes of its own."""
    first = FIRST + 5 * part
    await played(range(first, first + 5), tmp_path, drive, temporal)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(20))
async def test_hundred_seeds_over_sqlite(tmp_path: Path, drive: Drive, temporal: str, part: int) -> None:
    """The same, for longer."""
    first = FIRST + 1000 + 5 * part
    await played(range(first, first + 5), tmp_path, drive, temporal)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(20))
async def test_hundred_seeds_over_postgres(
    tmp_path: Path, drive: Drive, temporal: str, postgres_url: str, part: int
) -> None:
    """The same over one server, a tenant for each seed."""
    first = FIRST + 2000 + 5 * part
    await played(range(first, first + 5), tmp_path, drive, temporal, postgres_url)
