"""A proof in which anything at all was changed fails, and names the record that was."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.proof.mutations import at, mutations_of, other, places
from tests.proof.scenes import (
    TOOLS,
    approved_call,
    bundle_of_call,
    bundle_of_run,
    finished_run,
    forged,
    settled_call,
    signer_of,
)
from tests.support.houses import OpenHouse
from tollhouse.runs.proof.bundle import Bundle
from tollhouse.runs.proof.keys import Signer
from tollhouse.runs.proof.verdict import Result, Verdict
from tollhouse.runs.proof.verify import verify

NOT_IN_A_CHAIN = ("write_id", "kind", "name", "tenant", "created_at_us", "size")
"""Members of events, definitions and bodies that only the signature covers: they say nothing of what happened."""


async def bundles(open_house: OpenHouse, folder: Path) -> tuple[Signer, list[Bundle]]:
    """A run with bodies, an approved call, and a settled one."""
    house, signer = await open_house(*TOOLS), signer_of(folder)
    _, run_id = await finished_run(house, twice=True)
    await approved_call(house, "approved")
    await settled_call(house, "settled")
    made = [await bundle_of_call(house, key, signer) for key in ("approved", "settled")]
    return signer, [await bundle_of_run(house, run_id, signer), *made]


def blamed(verdict: Verdict) -> set[str]:
    """Records that the verdict names."""
    return {problem.record for problem in verdict.problems}


async def test_any_change_fails_and_names_its_record(open_house: OpenHouse, tmp_path: Path) -> None:
    """Whatever is changed, dropped, doubled, added or moved under a signature: the verdict names where."""
    signer, sound = await bundles(open_house, tmp_path)
    for bundle in sound:
        assert verify(bundle, key=signer.public_pem).result is Result.PASS
        for mutation in mutations_of(bundle):
            verdict = verify(mutation.bundle, key=signer.public_pem)
            assert verdict.result is Result.FAIL, mutation.where
            moved = mutation.where.startswith(("moved", "doubled"))
            assert moved or mutation.record in blamed(verdict), (mutation.where, verdict.problems[:3])


async def test_first_problem_names_the_event_that_was_changed(open_house: OpenHouse, tmp_path: Path) -> None:
    """Of all that does not fit any more, the altered event comes first, with its stream and number."""
    signer, sound = await bundles(open_house, tmp_path)
    for bundle in sound:
        for path in places(bundle["contents"], ("contents",)):
            if len(path) != 6 or path[3] != "events" or path[-1] in ("seq", "stream"):
                continue
            copied = copy.deepcopy(bundle)
            event = at(copied, path[:-1])
            event[path[-1]] = other(event[path[-1]])
            first = verify(copied, key=signer.public_pem).first
            assert first is not None
            assert (first.stream, first.seq) == (event["stream"], event["seq"]), path


async def test_rewritten_state_fails_even_when_signed_anew(open_house: OpenHouse, tmp_path: Path) -> None:
    """The chain covers every column of a row and every word of an event: who signs again must forge the chain too."""
    signer, sound = await bundles(open_house, tmp_path)
    for bundle in sound:
        for path in places(bundle["contents"], ("contents",)):
            value = at(bundle, path)
            if isinstance(value, dict | list) or (
                path[-1] in NOT_IN_A_CHAIN and path[1] != "calls" and path[1] != "runs"
            ):
                continue
            if path[1:] in (("about", "tenant"), ("about", "blobs")):
                continue
            verdict = verify(forged(bundle, partial(_flip, path), signer), key=signer.public_pem)
            assert verdict.result is Result.FAIL, path


def _flip(path: Any, bundle: Bundle) -> None:
    at(bundle, path[:-1])[path[-1]] = other(at(bundle, path))


async def test_dropped_record_fails_even_when_signed_anew(open_house: OpenHouse, tmp_path: Path) -> None:
    """A call, a stream, an event, a definition or a body that is left out is missed by what names it."""
    signer, sound = await bundles(open_house, tmp_path)
    for bundle in sound:
        for path in places(bundle["contents"], ("contents",)):
            record = len(path) == 3 and isinstance(path[2], int)
            if not record and not (len(path) == 5 and path[3] == "events"):
                continue
            verdict = verify(forged(bundle, partial(_drop, path), signer), key=signer.public_pem)
            assert verdict.result is Result.FAIL, path


def _drop(path: Any, bundle: Bundle) -> None:
    del at(bundle, path[:-1])[path[-1]]


@pytest.mark.parametrize("member", ["payload", "payloadType", "keyid", "sig"])
async def test_changed_envelope_fails(open_house: OpenHouse, tmp_path: Path, member: str) -> None:
    """Every character of an envelope counts."""
    signer, (bundle, *_) = await bundles(open_house, tmp_path)
    text = (bundle["envelope"] | bundle["envelope"]["signatures"][0])[member]
    for number in {0, 1, len(text) // 2, len(text) - 3, len(text) - 1}:
        copied = copy.deepcopy(bundle)
        holder = copied["envelope"]["signatures"][0] if member in ("keyid", "sig") else copied["envelope"]
        holder[member] = text[:number] + ("B" if text[number] == "A" else "A") + text[number + 1 :]
        verdict = verify(copied, key=signer.public_pem)
        assert verdict.result is Result.FAIL, number
        assert verdict.first is not None
        assert verdict.first.record == "envelope"
