"""Verifying a bundle: offline, with the standard library and ``cryptography``, by whoever was handed one.

In this order: the signature, the records that the signed statement lists, the chains, the bodies, the rows against
their histories, the anchors, and the accounts of every call and run. So the first problem named is the innermost that
explains the others. Nothing in a bundle is trusted to have any shape.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from tollhouse.errors import ProofUnreadable
from tollhouse.ledger.guards import PURGED
from tollhouse.ledger.rows import record_of
from tollhouse.ledger.writes import call_stream
from tollhouse.runs.proof.accounts import check_accounts
from tollhouse.runs.proof.anchors import read_anchors
from tollhouse.runs.proof.chains import check_bodies, check_chains, check_definitions
from tollhouse.runs.proof.envelope import PREDICATE_TYPE, NotSigned, opened, statement
from tollhouse.runs.proof.keys import key_id_of, public_key_of
from tollhouse.runs.proof.records import FORMAT, MEMBERS, Contents, event_name, listed, subjects_of
from tollhouse.runs.proof.run_accounts import check_run_accounts
from tollhouse.runs.proof.state import check_state
from tollhouse.runs.proof.told import check_told
from tollhouse.runs.proof.verdict import Findings, Verdict

_BUNDLE = ("format", "contents", "envelope", "public_key")


def verify(bundle: dict[str, Any], *, key: str | None = None, anchors: str | None = None) -> Verdict:
    """Whether a bundle is whole, unaltered, and accounts for everything in it.

    ``key``: the public key that it must be signed by, in PEM; None: the bundle's own, which then only shows that nobody
    altered it who lacks that key, and the verdict says so. ``anchors``: the text of a file of anchors; every chain must
    reach at least as far as is written there.

    Raises :class:`ProofUnreadable` for what is no bundle at all, no public key, or no whole file of anchors.
    """
    if not isinstance(contents := bundle.get("contents"), dict):
        raise ProofUnreadable("This is no proof: it has no contents.")
    found = Findings()
    public_pem = _key_of(bundle, key, found)
    _guarded("envelope", found, lambda: _check_signed(bundle, public_pem, found))
    for name, check in _CHECKS:
        _guarded(name, found, lambda check=check: check(contents, found))  # type: ignore[misc]
        if name == "state" and anchors is not None:
            _check_anchors(contents, anchors, public_pem, found)
    return Verdict(
        result=found.result,
        about=contents["about"] if isinstance(contents.get("about"), dict) else {},
        key_id=_key_id(public_pem),
        pinned=key is not None,
        problems=tuple(found.problems),
        open=tuple(found.open),
        erased=tuple(found.erased),
        notes=tuple(found.notes),
        counts=_counts(contents),
    )


def read_bundle(text: str | bytes) -> dict[str, Any]:
    """The bundle in a file. Raises :class:`ProofUnreadable` for what is no JSON object, or names a member twice."""
    try:
        loaded = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ProofUnreadable(f"This is no proof: {str(error)[:200]}.") from None
    if not isinstance(loaded, dict):
        raise ProofUnreadable("This is no proof: it is no JSON object.")
    return loaded


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two members of one name another reader might take the other one."""
    whole = dict(pairs)
    if len(whole) != len(pairs):
        raise ValueError("a member is given twice")
    return whole


_CHECKS: tuple[tuple[str, Callable[[Contents, Findings], None]], ...] = (
    ("chains", check_chains),
    ("bodies", check_bodies),
    ("definitions", check_definitions),
    ("state", check_state),
    ("accounts", check_accounts),
    ("told", check_told),
    ("run accounts", check_run_accounts),
)


def _guarded(name: str, found: Findings, check: Callable[[], None]) -> None:
    """Run a check over what may have any shape: what it stumbles over is a problem, never an error of the verifier."""
    try:
        check()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, ArithmeticError) as error:
        found.problem(name, f"The {name} cannot be read: {type(error).__name__}: {str(error)[:200]}.")


def _key_of(bundle: dict[str, Any], key: str | None, found: Findings) -> str:
    own = bundle.get("public_key")
    if key is None:
        found.note("The key in the bundle is only self-asserted: give the public key of whoever made it to be sure.")
        return own if isinstance(own, str) else ""
    if _key_id(key) is None:
        raise ProofUnreadable("The key is no Ed25519 public key in PEM.", remedy="Give the file signing.pub.")
    if not isinstance(own, str) or _key_id(own) != _key_id(key):
        found.problem("envelope", "The bundle was made with another key than the one given.")
    return key


def _key_id(pem: str) -> str | None:
    try:
        return key_id_of(public_key_of(pem))
    except ValueError:
        return None


# -- what was signed -----------------------------------------------------------------------------------------------


def _check_signed(bundle: dict[str, Any], public_pem: str, found: Findings) -> None:
    contents = bundle["contents"]
    if tuple(bundle) != _BUNDLE and set(bundle) != set(_BUNDLE):
        found.problem("bundle", f"Its members are {', '.join(map(str, bundle))}, not {', '.join(_BUNDLE)}.")
    if bundle.get("format") != FORMAT or contents["about"].get("format") != FORMAT:
        found.problem("bundle", f"Its format is not {FORMAT}.")
    if set(contents) != set(MEMBERS):
        found.problem("bundle", f"Its contents are {', '.join(map(str, contents))}, not {', '.join(MEMBERS)}.")
    try:
        signed = opened(bundle["envelope"], public_pem)
    except NotSigned as error:
        found.problem("envelope", str(error))
        return
    _check_listed([(name, digest) for name, digest in signed["predicate"]["records"]], contents, found)
    if signed != statement(subjects_of(contents), {"format": FORMAT, "records": signed["predicate"]["records"]}):
        found.problem("envelope", f"The statement is not about these contents, or is no {PREDICATE_TYPE}.")


def _check_listed(signed: list[tuple[str, str]], contents: Contents, found: Findings) -> None:
    there = [(name, digest) for name, digest in listed(contents)]
    names, times = dict(there), Counter(name for name, _ in there)
    for name, digest in signed:
        if name not in names:
            _tell(name, "It is missing: the signed statement lists it.", found)
        elif names[name] != digest:
            _tell(name, "It was altered after it was signed.", found)
    known = {name for name, _ in signed}
    for name in times:
        if name not in known:
            _tell(name, "It was added: the signed statement does not list it.", found)
        elif times[name] > 1:
            _tell(name, "It is there more than once.", found)
    misplaced = next((name for (name, _), (was, _) in zip(there, signed, strict=False) if name != was), None)
    if misplaced is not None and not found.problems:
        _tell(misplaced, "It is out of place.", found)


def _tell(name: str, what: str, found: Findings) -> None:
    kind, _, rest = name.partition(" ")
    stream, _, seq = rest.rpartition(" ")
    if kind == "event" and seq.isdecimal():
        found.problem(name, what, stream, int(seq))
    else:
        found.problem(name, what, rest if kind == "head" else None)


# -- anchors -------------------------------------------------------------------------------------------------------


def _check_anchors(contents: Contents, text: str, public_pem: str, found: Findings) -> None:
    if _key_id(public_pem) is None:
        return  # told already
    lines = read_anchors(text, public_pem)
    _guarded("anchors", found, lambda: _compare(contents, lines, found))


def _compare(contents: Contents, lines: list[Any], found: Findings) -> None:
    chains = {each["stream"]: {event["seq"]: event["hash"] for event in each["events"]} for each in contents["streams"]}
    purged = {call_stream(row["key"]): record_of(row).extra.get(PURGED) for row in contents["calls"]}
    reached = 0
    for line in lines:
        for stream, seq, digest in line.heads:
            if line.tenant != contents["about"]["tenant"] or stream not in chains:
                continue
            reached += 1
            if not chains[stream] and (told := purged.get(stream)) is not None:
                _compare_purged(stream, (seq, digest), told, found)
            elif seq not in chains[stream]:
                first = max(chains[stream], default=0) + 1
                what = f"Missing: on {line.at} the chain reached {seq}."
                found.problem(event_name(stream, first), what, stream, first)
            elif chains[stream][seq] != digest:
                what = f"It is another event than the one anchored on {line.at}."
                found.problem(event_name(stream, seq), what, stream, seq)
    if reached == 0:
        found.note("None of these chains is anchored in that file.")


def _compare_purged(stream: str, anchored: tuple[int, str], told: dict[str, Any], found: Findings) -> None:
    """The row of a purged call says where its history ended: no earlier than was anchored, and not otherwise."""
    (seq, digest), end = anchored, told["head_seq"]
    if end < seq or (end == seq and told["head_hash"] != digest):
        what = f"Its row says that it was purged at event {end}; another history of {seq} events is anchored."
        found.problem(stream.replace(":", " ", 1), what, stream, seq)
    else:
        found.note(f"{stream}: anchored at {seq}; its events were purged since.")


def _counts(contents: Contents) -> dict[str, int]:
    sizes = {name: len(part) for name in MEMBERS[1:] if isinstance(part := contents.get(name), list)}
    if "streams" not in sizes:
        return {"events": 0, **sizes}
    streams = [each for each in contents.get("streams") or () if isinstance(each, dict)]
    chains = [chain for each in streams if isinstance(chain := each.get("events"), list)]
    return {"events": sum(map(len, chains)), **sizes}
