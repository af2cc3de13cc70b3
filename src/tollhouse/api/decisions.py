"""``POST /v1/calls/{key}/<verb>``: one route for each decision of the house, thin over it.

``by`` is the principal of the credential. ``If-Match`` makes a decision compare-and-set on the version that was shown.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header
from starlette.responses import Response

from tollhouse.api import models
from tollhouse.api.answers import answer
from tollhouse.api.calls import Key, shown
from tollhouse.api.route import By, House, Route, operation
from tollhouse.contract.answers import Answer, did_not_happen, happened
from tollhouse.errors import (
    CallConflict,
    DecisionConflict,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    NotAllowed,
    NotEntitled,
    PreconditionFailed,
    UnknownCall,
    UnknownTool,
)
from tollhouse.gate.view import RecordedCall
from tollhouse.house import Tollhouse
from tollhouse.house.access import Scope

router = APIRouter(route_class=Route, tags=["decisions"])

_VERSION = re.compile(r'"(\d{1,18})(?:\.\d{1,18})?"')
_FAILS = (UnknownCall, InvalidKey, NotAllowed, DecisionConflict, NotEntitled, PreconditionFailed, InvalidSetting)

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The ETag that was shown: decide only if the call is still at that version.",
        examples=['"3"'],
    ),
]
Shown = Callable[[int | None], Awaitable[RecordedCall]]


def _verb(name: str, summary: str, scope: Scope = Scope.CALLS_DECIDE, *more: type[Any]) -> Callable[[Any], Any]:
    """The route of one verb that answers with the call as it stands afterwards."""

    def register(endpoint: Any) -> Any:
        return router.post(
            f"/v1/calls/{{key}}/{name}",
            operation_id=f"{name}_call",
            summary=summary,
            response_model=None,
            responses={200: {"model": models.Call, "description": "The call as it stands after the decision."}},
        )(operation(scope, *_FAILS, *more)(endpoint))

    return register


async def _decided(house: Tollhouse, key: str, if_match: str | None, decide: Shown) -> Response:
    """Decide on the version shown. What lost against somebody else's decision is a failed precondition."""
    version = await _version(house, key, if_match)
    try:
        return shown(await decide(version))
    except DecisionConflict as conflict:
        if version is None:
            raise
        raise PreconditionFailed(conflict.cause, key=conflict.key) from None


def versions_of(if_match: str | None) -> set[int] | None:
    """The versions of which one must stand. None: any. Raises :class:`PreconditionFailed` where the tags name none."""
    if if_match is None or if_match.strip() == "*":
        return None
    versions = {int(found[1]) for tag in if_match.split(",") if (found := _VERSION.fullmatch(tag.strip()))}
    if not versions:
        raise PreconditionFailed("If-Match names no version.", remedy='Send the ETag as it was, such as "3".')
    return versions


async def _version(house: Tollhouse, key: str, if_match: str | None) -> int | None:
    """The version that must stand; None: any."""
    versions = versions_of(if_match)
    if versions is None or len(versions) == 1:
        return versions.pop() if versions else None
    now = (await house.get(key)).version
    return now if now in versions else max(versions)


async def _check_version(house: Tollhouse, key: str, if_match: str | None) -> None:
    """For verbs that are right at any version: only that the caller looked at the call as it stands."""
    version = await _version(house, key, if_match)
    if version is not None and (call := await house.get(key)).version != version:
        raise PreconditionFailed(f"{key} is at version {call.version} now.", key=key)


# -- settling a doubt ----------------------------------------------------------------------------------------------


@_verb("resolve", "Settle a doubt")
async def resolve(house: House, by: By, key: Key, body: models.Resolution, if_match: IfMatch = None) -> Response:
    """Settle a doubt by name: it happened, or it did not."""
    found = _finding(body)
    return await _decided(
        house,
        key,
        if_match,
        lambda version: house.resolve(
            key, found, reason=body.reason, by=by.principal, force=body.force, version=version
        ),
    )


def _finding(body: models.Happened | models.DidNotHappen) -> Answer:
    if isinstance(body, models.Happened):
        return happened(body.value, body.reference)
    return did_not_happen(body.evidence)


@_verb("reconcile", "Ask the tool what became of a call", Scope.CALLS_WRITE, UnknownTool)
async def reconcile(house: House, key: Key, if_match: IfMatch = None) -> Response:
    """Ask the tool's look-up now. Where the receiver recognises the key, a call that stays in doubt is sent again."""
    await _check_version(house, key, if_match)
    before = await house.get(key)
    if all(tool.name != before.tool for tool in house.tools):
        raise UnknownTool(f"The tool {before.tool} is not here, so it cannot be asked.", key=key)
    return shown(await house.reconcile(key))


@router.post(
    "/v1/calls/{key}/compensate",
    operation_id="compensate_call",
    summary="Undo a call",
    response_model=None,
    responses={
        200: {"model": models.CallAnswer, "description": "The call that undoes it is settled."},
        202: {"model": models.CallAnswer, "description": "The call that undoes it is not settled yet."},
    },
)
@operation(Scope.CALLS_DECIDE, *_FAILS, CallConflict, UnknownTool)
async def compensate(house: House, by: By, key: Key, body: models.Because, if_match: IfMatch = None) -> Response:
    """Undo a call that took effect, by a call of its own: gated and recorded like any other, under KEY:compensate."""
    await _check_version(house, key, if_match)
    return await answer(house, house.compensate(key, by=by.principal, reason=body.reason))


# -- approvals -----------------------------------------------------------------------------------------------------


@_verb("approve", "Approve a held call")
async def approve(
    house: House,
    by: By,
    key: Key,
    body: Annotated[models.ApprovalGiven | None, Body()] = None,
    if_match: IfMatch = None,
) -> Response:
    """Say yes to a held call; at the quorum it may go. What runs is the stored call. Nobody approves their own."""
    given = body or models.ApprovalGiven()
    return await _decided(
        house,
        key,
        if_match,
        lambda version: house.approve(key, by=by.principal, reason=given.reason, version=version, digest=given.digest),
    )


@_verb("deny", "Deny a held call")
async def deny(house: House, by: By, key: Key, body: models.Because, if_match: IfMatch = None) -> Response:
    """Say no to a call that is held or ready: it is refused."""
    return await _decided(
        house, key, if_match, lambda version: house.deny(key, by=by.principal, reason=body.reason, version=version)
    )


@_verb("edit", "Edit a held call", Scope.CALLS_DECIDE, InvalidArguments)
async def edit(house: House, by: By, key: Key, body: models.Edit, if_match: IfMatch = None) -> Response:
    """Replace the arguments of a held call. Approvals given so far become void, and the difference is on record."""
    return await _decided(
        house,
        key,
        if_match,
        lambda version: house.edit(key, body.arguments, by=by.principal, reason=body.reason, version=version),
    )


# -- after the end -------------------------------------------------------------------------------------------------


@_verb("retry", "Open a new round")
async def retry(house: House, by: By, key: Key, body: models.Because, if_match: IfMatch = None) -> Response:
    """Open a new round of a failed or refused call. Sends nothing itself; held again where approval is due."""
    return await _decided(
        house, key, if_match, lambda version: house.retry(key, by=by.principal, reason=body.reason, version=version)
    )


@_verb("cancel", "Cancel a call", Scope.CALLS_WRITE)
async def cancel(
    house: House,
    by: By,
    key: Key,
    body: Annotated[models.MaybeBecause | None, Body()] = None,
    if_match: IfMatch = None,
) -> Response:
    """Refuse a call that has not left, or forbid sending it again."""
    await _check_version(house, key, if_match)
    return shown(await house.cancel(key, by=by.principal, reason=None if body is None else body.reason))


@_verb("overturn", "Reverse a settlement")
async def overturn(house: House, by: By, key: Key, body: models.Overturning, if_match: IfMatch = None) -> Response:
    """Reverse a settlement: to succeeded on a recorded effect, to failed where no result ever came back."""
    return await _decided(
        house,
        key,
        if_match,
        lambda version: house.overturn(
            key, by=by.principal, reason=body.reason, evidence=body.evidence, version=version
        ),
    )


@_verb("uphold", "Confirm a settlement")
async def uphold(house: House, by: By, key: Key, body: models.Because, if_match: IfMatch = None) -> Response:
    """Confirm a settlement in view of what contradicts it."""
    return await _decided(
        house, key, if_match, lambda version: house.uphold(key, by=by.principal, reason=body.reason, version=version)
    )
