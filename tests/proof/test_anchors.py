"""Anchors outside the database: a chain that was cut off, or forged from the start, is shorter than it was."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.proof.scenes import TOOLS, bundle_of_call, bundle_of_run, finished_run, forged, pay, signer_of
from tests.support.houses import OpenHouse, on_one_store
from tollhouse.errors import ProofUnreadable, TollhouseError
from tollhouse.runs.proof.anchors import HEADS_IN_LINE_MOST, Anchors, Head, anchors_file, read_anchors
from tollhouse.runs.proof.bundle import Bundle, anchor
from tollhouse.runs.proof.keys import home_of, open_signer
from tollhouse.runs.proof.noting import Noting
from tollhouse.runs.proof.verdict import Result
from tollhouse.runs.proof.verify import verify


def truncated(bundle: Bundle) -> None:
    """Leave out the last event of the first chain, and let head and row say so."""
    stream, row = bundle["contents"]["streams"][0], bundle["contents"]["calls"][0]
    stream["events"].pop()
    last = stream["events"][-1]
    stream["head"] |= {"seq": last["seq"], "hash": last["hash"]}
    row |= {"head_seq": last["seq"], "head_hash": last["hash"]}


async def test_chain_that_was_cut_off_is_shorter_than_its_anchor(open_house: OpenHouse, tmp_path: Path) -> None:
    """The first event that is missing is named, with the moment at which the chain had it."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    anchors = Anchors(tmp_path / "a.jsonl", signer, now=lambda: "2026-11-01T10:00:00.000Z")
    await house.call(pay, {"to": "ada"}, key="k")
    bundle = await bundle_of_call(house, "k", signer)
    anchor(bundle, anchors)
    text = anchors.path.read_text()
    assert verify(bundle, key=signer.public_pem, anchors=text).result is Result.PASS
    verdict = verify(forged(bundle, truncated, signer), key=signer.public_pem, anchors=text)
    assert verdict.result is Result.FAIL
    missing = [problem for problem in verdict.problems if "2026-11-01" in problem.what]
    assert [(problem.stream, problem.seq) for problem in missing] == [("call:k", 2)]


async def test_chain_that_was_forged_whole_is_not_the_anchored_one(open_house: OpenHouse, tmp_path: Path) -> None:
    """Another history of the same length, well chained and signed, is another event than the anchored one."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    anchors = Anchors(tmp_path / "a.jsonl", signer)
    anchors.append(house._core.tenant, [Head("call:k", 2, "0" * 64)])
    verdict = verify(await bundle_of_call(house, "k", signer), key=signer.public_pem, anchors=anchors.path.read_text())
    assert verdict.first is not None
    assert (verdict.first.stream, verdict.first.seq) == ("call:k", 2)


def _has_a_line(path: Path) -> bool:
    return path.exists() and path.read_bytes().endswith(b"\n")


async def test_every_write_of_a_server_is_anchored(open_house: OpenHouse, tmp_path: Path) -> None:
    """Calls that end, calls that stay in doubt and runs: what was applied is noted, and flushed in lines."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    anchors = Anchors(tmp_path / "a.jsonl", signer)
    house._core.store = Noting(house._core.store, anchors)
    with suppress(TollhouseError):
        await house.call(pay, {"to": "lost"}, key="k")
    _, run_id = await finished_run(house)
    keeping = asyncio.create_task(anchors.keep(0.001))
    while not _has_a_line(anchors.path):  # noqa: ASYNC110 - a file tells nobody
        await asyncio.sleep(0.001)
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    assert anchors.flush() == 0
    (line,) = read_anchors(anchors.path.read_text(), signer.public_pem)
    anchored = {head.stream: head for head in line.heads}
    assert set(anchored) == {"call:k", f"run:{run_id}", *(f"call:{run_id}:1.{n}" for n in (1, 2, 3))}
    for bundle in (await bundle_of_call(house, "k", signer), await bundle_of_run(house, run_id, signer)):
        for stream in bundle["contents"]["streams"]:
            assert anchored[stream["stream"]] == Head(**stream["head"])


def test_what_could_not_be_written_down_stays_noted(tmp_path: Path) -> None:
    """A disk that is full for a while loses no anchor; the furthest head of a chain counts."""
    anchors = Anchors(tmp_path / "a.jsonl", signer_of(tmp_path))
    anchors.note("t", "call:k", 1, "a")
    anchors.path.mkdir()
    with pytest.raises(OSError, match="directory"):
        anchors.flush()
    anchors.note("t", "call:k", 2, "b")
    anchors.note("t", "call:k", 1, "a")
    anchors.note("t", "call:none", 0, "")
    anchors.path.rmdir()
    assert anchors.flush() == 1
    (line,) = read_anchors(anchors.path.read_text(), signer_of(tmp_path).public_pem)
    assert line.heads == (Head("call:k", 2, "b"),)


def test_many_heads_take_several_lines_and_processes_append_in_turn(tmp_path: Path) -> None:
    """Each line follows the one before it, whoever wrote that."""
    signer = signer_of(tmp_path)
    one, other = (Anchors(tmp_path / "a.jsonl", signer) for _ in range(2))
    one.append("t", [Head(f"call:{n}", 1, "a" * 64) for n in range(HEADS_IN_LINE_MOST + 1)])
    other.append("t", [Head("call:x", 1, "b" * 64)])
    one.append("t", [Head("call:y", 1, "c" * 64)])
    lines = read_anchors(one.path.read_text(), signer.public_pem)
    assert [len(line.heads) for line in lines] == [HEADS_IN_LINE_MOST, 1, 1, 1]


def test_line_that_a_crash_cut_short_goes(tmp_path: Path) -> None:
    """It was never confirmed; what comes next follows the last whole line."""
    signer, file = signer_of(tmp_path), tmp_path / "a.jsonl"
    for cut in (b'{"at":"2026', b""):
        Anchors(file, signer).append("t", [Head("call:x", 1, "b" * 64)])
        file.write_bytes(file.read_bytes() + cut)
    Anchors(file, signer).append("t", [Head("call:y", 1, "c" * 64)])
    assert len(read_anchors(file.read_text(), signer.public_pem)) == 3


@pytest.mark.parametrize("harm", ["altered", "dropped", "reordered", "of another key", "no JSON", "respelled"])
def test_harmed_anchors_are_refused(tmp_path: Path, harm: str) -> None:
    """A file of anchors is whole and by the right key, or it proves nothing; the line is named."""
    signer, file = signer_of(tmp_path), tmp_path / "a.jsonl"
    anchors = Anchors(file, signer, now=lambda: "2026-11-01T10:00:00.000Z")
    for seq in (1, 2, 3):
        anchors.append("t", [Head("call:k", seq, str(seq) * 64)])
    lines = file.read_text().splitlines()
    harmed = {
        "altered": [lines[0].replace('"call:k",1', '"call:k",9'), *lines[1:]],
        "dropped": [lines[0], lines[2]],
        "reordered": [lines[1], lines[0], lines[2]],
        "of another key": lines,
        "no JSON": [*lines, "{"],
        "respelled": [json.dumps(json.loads(lines[0])), *lines[1:]],
    }[harm]
    key = open_signer(tmp_path / "other") if harm == "of another key" else signer
    with pytest.raises(ProofUnreadable, match="Line"):
        read_anchors("\n".join(harmed), key.public_pem)


@on_one_store
async def test_chain_that_no_anchor_names_is_said(open_house: OpenHouse, tmp_path: Path) -> None:
    """Nobody takes silence for proof; another tenant's chain of the same name does not count."""
    house, signer = await open_house(*TOOLS), signer_of(tmp_path)
    await house.call(pay, {"to": "ada"}, key="k")
    anchors = Anchors(tmp_path / "a.jsonl", signer)
    anchors.append("another", [Head("call:k", 9, "0" * 64)])
    verdict = verify(await bundle_of_call(house, "k", signer), key=signer.public_pem, anchors=anchors.path.read_text())
    assert verdict.result is Result.PASS
    assert verdict.notes == ("None of these chains is anchored in that file.",)


def test_ledgers_of_one_name_have_anchors_of_their_own(tmp_path: Path, monkeypatch: Any) -> None:
    """And one ledger has one file, however its URL is spelt."""
    monkeypatch.chdir(tmp_path)
    same = {anchors_file(tmp_path, f"sqlite:///{spelt}") for spelt in ("x.db", f"{tmp_path}/x.db", "x.db?timeout=1")}
    assert len(same) == 1
    assert anchors_file(tmp_path, f"sqlite:///{tmp_path}/y/x.db") not in same
    one, other = (f"postgresql://{who}@db.example:5432/ledger" for who in ("ada:secret", "bob"))
    assert anchors_file(tmp_path, one) == anchors_file(tmp_path, other)
    assert "secret" not in str(anchors_file(tmp_path, one))
    parts = ("", "?schema=one", "?schema=two", "?host=/run/one", "?host=/run/two")
    assert len({anchors_file(tmp_path, f"postgresql:///ledger{part}") for part in parts}) == len(parts)
    assert anchors_file(tmp_path, f"{one}?connect_timeout=1&schema=a") == anchors_file(tmp_path, f"{other}?schema=a")


def test_file_with_an_odd_name_has_one_folder_of_anchors(tmp_path: Path) -> None:
    """A name is read as the store reads it, whether or not its blanks are escaped."""
    (tmp_path / "a b").mkdir()
    spelt = [f"sqlite:///{tmp_path}/{folder}/l.db" for folder in ("a b", "a%20b")]
    assert {home_of(url, {}) for url in spelt} == {tmp_path / "a b" / "keys"}
    assert len({anchors_file(tmp_path, url) for url in spelt}) == 1


def test_line_that_the_disk_took_only_a_part_of_is_no_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may be short without an error; the rest of the line follows, or the heads stay noted."""
    anchors = Anchors(tmp_path / "a.jsonl", signer_of(tmp_path))
    anchors.note("t", "call:k", 1, "a" * 64)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, bytes(data)[:10]))
        assert anchors.flush() == 1
    (line,) = read_anchors(anchors.path.read_text(), signer_of(tmp_path).public_pem)
    assert line.heads == (Head("call:k", 1, "a" * 64),)
