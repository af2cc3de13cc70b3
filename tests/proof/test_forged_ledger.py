"""Whoever may write the database, past every trigger, and has the house sign what is left there: the proof fails."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proof.scenes import TOOLS, bundle_of_call, bundle_of_run, finished_run, pay, run_of, signer_of
from tests.support.houses import OpenHouse, on_one_store
from tests.support.runs import Bank, OpenStage, agent, calls
from tollhouse.operations.purge import purge
from tollhouse.runs.proof.anchors import Anchors
from tollhouse.runs.proof.bundle import anchor
from tollhouse.runs.proof.verdict import Result
from tollhouse.runs.proof.verify import verify

Forgery = Callable[[sqlite3.Connection, str], Any]
LAST = "(SELECT max(seq) FROM events e WHERE e.tenant = events.tenant AND e.stream = events.stream)"


def forge(folder: Path, name: str, forgery: Forgery) -> None:
    """Change the ledger's file as its administrator can: no trigger is in the way."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        forgery(connection, name)
        connection.commit()


def taken_out(connection: sqlite3.Connection, key: str) -> None:
    """The call's row and history are gone."""
    connection.execute("DELETE FROM calls WHERE key = ?", (key,))
    connection.execute("DELETE FROM events WHERE stream = ?", (f"call:{key}",))


def given_away(connection: sqlite3.Connection, key: str) -> None:
    """The call belongs to another run now."""
    connection.execute("UPDATE calls SET scope = 'another' WHERE key = ?", (key,))


def set_back(connection: sqlite3.Connection, key: str) -> None:
    """The call is again what it was before its outcome came, as its first event says."""
    stream = f"call:{key}"
    connection.execute("DELETE FROM events WHERE stream = ? AND seq > 1", (stream,))
    ((head,),) = connection.execute("SELECT hash FROM events WHERE stream = ?", (stream,))
    columns = "state = 'departed', open_owners = 'own', head_seq = 1, head_hash = ?"
    connection.execute(f"UPDATE calls SET {columns} WHERE key = ?", (head, key))


@on_one_store
@pytest.mark.parametrize("forgery", [taken_out, given_away, set_back])
async def test_call_that_its_run_tells_of_is_missed(open_house: OpenHouse, tmp_path: Path, forgery: Forgery) -> None:
    """A call that is not there any more, or not what its run saw, is named with the event that tells of it."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await finished_run(house)
    key = f"{run_id}:1.2"
    forge(tmp_path, key, forgery)
    verdict = verify(await bundle_of_run(house, run_id, signer), key=signer.public_pem)
    assert verdict.result is Result.FAIL
    told = [each for each in verdict.problems if each.stream == f"run:{run_id}"]
    assert [each.record for each in told] == [f"call {key}"]


@on_one_store
@pytest.mark.parametrize("asked", [("close_account", {"of": "ada"}), ("pay", {"to": "lost"})])
async def test_call_that_its_run_waits_for_is_missed(
    open_house: OpenHouse, tmp_path: Path, asked: tuple[str, Any]
) -> None:
    """A hold or a doubt that was taken out is told by the run that waits for it, and by the end of a cancelled run."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    runs, run_id = await run_of(house, [{"call": [{"tool": asked[0], "arguments": asked[1]}]}])
    key = f"{run_id}:1.1"
    await runs.cancel(run_id, by="bea", reason="no more")
    forge(tmp_path, key, taken_out)
    verdict = verify(await bundle_of_run(house, run_id, signer), key=signer.public_pem)
    assert verdict.result is Result.FAIL
    assert {each.record for each in verdict.problems} == {f"call {key}"}


@on_one_store
async def test_child_that_was_taken_out_is_missed(open_stage: OpenStage, bank: Bank, tmp_path: Path) -> None:
    """The call that started it names it."""
    asked = ("agent_payer", {"input": "pay a1"})
    agents = [agent(agents=("payer",)), agent("payer", tools=("credit",))]
    stage = await open_stage(*bank.tools, agents=agents, clerk=[calls(asked), "ok"], payer=["paid"])
    run, signer = await stage.run(), signer_of(tmp_path)
    sound = await bundle_of_run(stage.house, run.id, signer)
    assert verify(sound, key=signer.public_pem).result is Result.PASS
    child = sound["contents"]["children"][0]["id"]

    def removed(connection: sqlite3.Connection, name: str) -> None:
        connection.execute("DELETE FROM runs WHERE id = ?", (name,))
        connection.execute("UPDATE definitions SET kind = 'other'")

    forge(tmp_path, child, removed)
    verdict = verify(await bundle_of_run(stage.house, run.id, signer), key=signer.public_pem)
    assert [each.record for each in verdict.problems] == [f"child {child}"]


def _cheaper(connection: sqlite3.Connection, key: str) -> None:
    connection.execute(f"UPDATE events SET data = '' WHERE stream = ? AND seq = {LAST}", (f"call:{key}",))
    cheaper = """UPDATE calls SET body = replace(body, '"cost":"0.25"', '"cost":"0.01"') WHERE key = ?"""
    assert connection.execute(cheaper, (key,)).rowcount == 1


def _unlimited(connection: sqlite3.Connection, key: str) -> None:
    run_id = key.partition(":")[0]
    connection.execute(f"UPDATE events SET data = '' WHERE stream = ? AND seq = {LAST}", (f"run:{run_id}",))
    connection.execute("UPDATE runs SET requested_by = 'nobody' WHERE id = ?", (run_id,))


@on_one_store
@pytest.mark.parametrize("forgery", [_cheaper, _unlimited])
async def test_row_whose_cover_was_erased_fails(open_house: OpenHouse, tmp_path: Path, forgery: Forgery) -> None:
    """A payload may be erased, but not the one that says what the row is: any row would fit it."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    _, run_id = await finished_run(house)
    forge(tmp_path, f"{run_id}:1.2", forgery)
    verdict = verify(await bundle_of_run(house, run_id, signer), key=signer.public_pem)
    assert verdict.result is Result.FAIL
    assert verdict.first is not None
    assert "erased" in verdict.first.what


@on_one_store
@pytest.mark.parametrize(("seq", "digest"), [(1, None), (2, "0" * 64)])
async def test_call_that_was_only_said_to_be_purged_fails(
    open_house: OpenHouse, tmp_path: Path, seq: int, digest: str | None
) -> None:
    """A purged call has no history to be compared; where that ended is compared to the anchors."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    anchors = Anchors(tmp_path / "a.jsonl", signer)
    anchor(await bundle_of_call(house, "k", signer), anchors)
    await purge(house.store.url, house._core.tenant, older_than_s=-60)
    text = anchors.path.read_text()
    verdict = verify(await bundle_of_call(house, "k", signer), key=signer.public_pem, anchors=text)
    assert (verdict.result, "purged since" in verdict.notes[0]) == (Result.PASS, True)

    def purged_elsewhere(connection: sqlite3.Connection, key: str) -> None:
        ((text,),) = connection.execute("SELECT body FROM calls WHERE key = ?", (key,))
        body = json.loads(text)
        told = body["extra"]["purged"]
        body["extra"]["purged"] = {**told, "head_seq": seq, "head_hash": digest or told["head_hash"]}
        connection.execute("UPDATE calls SET body = ? WHERE key = ?", (json.dumps(body), key))

    forge(tmp_path, "k", purged_elsewhere)
    verdict = verify(await bundle_of_call(house, "k", signer), key=signer.public_pem, anchors=text)
    assert [(each.record, each.stream) for each in verdict.problems] == [("call k", "call:k")]
