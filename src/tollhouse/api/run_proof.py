"""``GET /v1/runs/{id}/proof``: the signed bundle of a run, to be verified anywhere."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from tollhouse.api import run_models
from tollhouse.api.json_text import JSON
from tollhouse.api.route import House, Route, operation
from tollhouse.api.streams import RunId
from tollhouse.errors import SigningKeyUnusable, UnknownRun
from tollhouse.house.access import Scope
from tollhouse.runs.proof.anchors import Anchors, anchors_file
from tollhouse.runs.proof.bundle import Bundle, anchor, prove_run, text_of
from tollhouse.runs.proof.keys import Signer, home_of, open_signer

log = logging.getLogger("tollhouse")

ANCHORED_MOST = 1000
"""Proofs that a server remembers to have anchored."""

router = APIRouter(route_class=Route, tags=["runs"])


@router.get(
    "/v1/runs/{run_id}/proof",
    operation_id="prove_run",
    summary="Prove a run",
    response_model=None,
    responses={200: {"model": run_models.Proof}},
)
@operation(Scope.RUNS_READ, UnknownRun, SigningKeyUnusable)
async def prove(
    request: Request,
    house: House,
    run_id: RunId,
    blobs: Annotated[bool, Query(description="With bodies that are kept outside rows; else by digest only.")] = True,
) -> Response:
    """A self-contained, signed bundle: journal, calls, attempts, decisions, costs, versions. Verify it offline."""
    store: Any = house.store
    signer = await _signer(request, store.url)
    bundle = await prove_run(store, store, house.tenant, run_id, signer, with_blobs=blobs)
    await _anchor_once(request, bundle, Anchors(anchors_file(home_of(store.url), store.url), signer))
    headers = {"Content-Disposition": f'attachment; filename="{run_id}.proof.json"'}
    return Response(await asyncio.to_thread(text_of, bundle), headers=headers, media_type=JSON)


async def _anchor_once(request: Request, bundle: Bundle, anchors: Anchors) -> None:
    """Write down how far its chains reach, not again for the same proof: who may only read fills no disk."""
    state = request.app.state
    if not hasattr(state, "anchored"):
        state.anchored = OrderedDict()
    signature = bundle["envelope"]["signatures"][0]["sig"]
    if signature in state.anchored:
        return
    try:
        await asyncio.to_thread(anchor, bundle, anchors)
    except OSError as error:  # the proof is none the worse
        log.error("anchors_not_written: %s", error.strerror)
        return
    state.anchored[signature] = None
    if len(state.anchored) > ANCHORED_MOST:
        state.anchored.popitem(last=False)


async def _signer(request: Request, store_url: str) -> Signer:
    """The key of this ledger, opened once; made where there is none."""
    state = request.app.state
    if not hasattr(state, "signer"):
        state.signer = await asyncio.to_thread(open_signer, home_of(store_url))
    signer: Signer = state.signer
    return signer
