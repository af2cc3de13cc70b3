"""Making a bundle: what the store holds of a call or a run, signed. Called by the command line and the HTTP API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tollhouse.runs.proof.anchors import Anchors, Head
from tollhouse.runs.proof.collect import Calls, Runs, contents_of_call, contents_of_run
from tollhouse.runs.proof.envelope import sign, statement
from tollhouse.runs.proof.keys import Signer
from tollhouse.runs.proof.records import FORMAT, Contents, listed, subjects_of

Bundle = dict[str, Any]


async def prove_call(calls: Calls, tenant: str, key: str, signer: Signer, *, with_blobs: bool = True) -> Bundle:
    """The bundle of one call, as it stands. The same bytes as long as nothing moves.

    ``with_blobs`` False: bodies that are kept outside rows are named by digest only. Raises :class:`UnknownCall` or
    what the store raises.
    """
    return sealed(await contents_of_call(calls, tenant, key, with_blobs=with_blobs), signer)


async def prove_run(
    calls: Calls, runs: Runs, tenant: str, run_id: str, signer: Signer, *, with_blobs: bool = True
) -> Bundle:
    """The bundle of a run and all its calls, as they stand; see :func:`prove_call`. Raises :class:`UnknownRun`."""
    contents = await contents_of_run(calls, runs, tenant, run_id, with_blobs=with_blobs)
    return await asyncio.to_thread(sealed, contents, signer)  # a long run has many records, and servers others to serve


def sealed(contents: Contents, signer: Signer) -> Bundle:
    """Contents with the envelope that binds every record of them."""
    signed = statement(subjects_of(contents), {"format": FORMAT, "records": listed(contents)})
    return {
        "format": FORMAT,
        "contents": contents,
        "envelope": sign(signed, signer),
        "public_key": signer.public_pem,
    }


def text_of(bundle: Bundle) -> str:
    """The one text of a bundle, as it is written to files and sent over HTTP: JSON, in ASCII."""
    return json.dumps(bundle, indent=1, ensure_ascii=True) + "\n"


def heads_of(bundle: Bundle) -> list[Head]:
    """How far the chains of a bundle reach."""
    heads = (Head(**stream["head"]) for stream in bundle["contents"]["streams"])
    return [head for head in heads if head.seq > 0]


def anchor(bundle: Bundle, anchors: Anchors) -> None:
    """Write down how far the chains of a bundle reach. Raises OSError."""
    if heads := heads_of(bundle):
        anchors.append(bundle["contents"]["about"]["tenant"], heads)
