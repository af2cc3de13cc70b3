"""What there is to call, what waits for people, and what was spent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query
from pydantic import BeforeValidator
from starlette.responses import Response

from tollhouse.api import models
from tollhouse.api.auth import Caller
from tollhouse.api.calls import Filter, ToolName, next_of
from tollhouse.api.json_text import JSONAnswer
from tollhouse.api.pages import Cursor, Limit, cursor_of, place_of
from tollhouse.api.route import By, House, Route, operation
from tollhouse.contract.terms import US
from tollhouse.errors import InvalidCursor, UnknownTool
from tollhouse.gate.view import RecordedCall
from tollhouse.house.access import Scope
from tollhouse.house.as_json import call_as_json, tool_as_json
from tollhouse.ledger.plain import moment, plain_json
from tollhouse.ledger.record import CallRecord

router = APIRouter(route_class=Route)

COST_CALLS_MOST = 5000
"""Calls that one request sums up at most; a cursor leads on to older ones."""


def _whole_day(given: str) -> str:
    """A day is written as one; numbers, which some readers take for seconds, are not."""
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", given, re.ASCII) is None:
        raise ValueError("it is no day like 2026-11-29")
    return given


Since = Annotated[
    date | None,
    BeforeValidator(_whole_day),
    Query(description="The first day (UTC) whose calls count.", examples=["2026-11-01"]),
]


# -- tools ---------------------------------------------------------------------------------------------------------


@router.get(
    "/v1/tools",
    operation_id="list_tools",
    summary="List tools",
    tags=["tools"],
    response_model=None,
    responses={200: {"model": models.ToolList}},
)
@operation(Scope.CALLS_READ)
async def list_tools(house: House, by: By) -> Response:
    """The tools that the caller may see, with what each promises and the schema of its arguments."""
    seen = [tool for tool in house.tools if house.sees(by.principal, tool.name)]
    return JSONAnswer({"tools": [tool_as_json(tool) for tool in seen]})


@router.get(
    "/v1/tools/{name}",
    operation_id="get_tool",
    summary="Look at a tool",
    tags=["tools"],
    response_model=None,
    responses={200: {"model": models.ToolShown}},
)
@operation(Scope.CALLS_READ, UnknownTool)
async def get_tool(house: House, by: By, name: ToolName) -> Response:
    """One tool: its contract, its guarantee, and the schema of its arguments."""
    for tool in house.tools:
        if tool.name == name and house.sees(by.principal, name):
            return JSONAnswer(tool_as_json(tool))
    raise UnknownTool(f"No tool named {name[:80]!a} is here.", remedy="GET /v1/tools lists those that you may call.")


# -- approvals -----------------------------------------------------------------------------------------------------


@router.get(
    "/v1/approvals",
    operation_id="list_approvals",
    summary="List what waits for people",
    tags=["overview"],
    response_model=None,
    responses={200: {"model": models.ApprovalPage}},
)
@operation(Scope.CALLS_READ, InvalidCursor)
async def list_approvals(
    house: House, by: By, tool: Filter = None, scope: Filter = None, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """Held calls, newest first: what is asked, of whom, until when, and who has voted.

    Decide with `POST /v1/calls/{key}/approve`, `deny` or `edit`, with the `version` as `If-Match`.
    """
    about = ("approvals", house.tenant, tool, scope)
    found = await house.list(state="held", tool=tool, scope=scope, limit=limit + 1, before=place_of(cursor, *about))
    asked = [_asked(call, by) for call in found[:limit]]
    return JSONAnswer({"approvals": asked, "next": next_of(found, limit, *about)})


def _asked(call: RecordedCall, caller: Caller) -> dict[str, Any]:
    record, approval = call.raw, call.approval
    assert approval is not None, "a held call has its question"
    shown = call_as_json(call)["approval"]
    allowed = approval.approvers is None or caller.principal in approval.approvers
    return {
        "key": call.key,
        "tool": call.tool,
        "effect": record.effect,
        "version": call.version,
        "arguments": plain_json(call.arguments),
        "digest": call.digest,
        "requested_by": call.requested_by,
        "scope": record.scope,
        "repeat_of": record.repeat_of,
        "reason": approval.reason,
        "quorum": approval.quorum,
        "approvers": shown["approvers"],
        "votes": shown["votes"],
        "asked_at": moment(record.created_at_us),
        "expires_at": shown["expires_at"],
        "may_decide": allowed and caller.principal != call.requested_by,
    }


# -- costs ---------------------------------------------------------------------------------------------------------


@router.get(
    "/v1/costs",
    operation_id="list_costs",
    summary="Sum up what calls cost",
    tags=["overview"],
    response_model=None,
    responses={200: {"model": models.CostPage}},
)
@operation(Scope.CALLS_READ, InvalidCursor)
async def list_costs(house: House, tool: Filter = None, since: Since = None, cursor: Cursor = None) -> Response:
    """What sendings cost, by day and tool, newest day first.

    Sums are of the recorded calls that were asked for since the day named (30 days ago by default), 5,000 of them at
    most in one answer, newest first; `next` leads on to older ones, whose sums are to be added. They hold every sending
    whose cost is known, failed ones too; what models cost is with the runs.
    """
    from_us = _midnight_us(since) if since is not None else await _days_ago_us(house, 30)
    about = ("costs", house.tenant, tool, None if since is None else since.isoformat())
    listing = house.list(tool=tool, limit=COST_CALLS_MOST + 1, before=place_of(cursor, *about))
    sums, last, read, more = Sums(), None, 0, False
    async for call in listing:
        if call.raw.created_at_us < from_us:
            break
        if read == COST_CALLS_MOST:
            more = True
            break
        sums.add(call.raw)
        last, read = call, read + 1
    following = cursor_of((last.raw.created_at_us, last.key), *about) if more and last is not None else None
    return JSONAnswer({"costs": sums.shown(), "calls": read, "next": following})


class Day(NamedTuple):
    """What one tool's sendings of one day come to."""

    cost: Decimal = Decimal()
    attempts: int = 0
    unpriced: int = 0


class Sums:
    """Costs by day and tool."""

    def __init__(self) -> None:
        self._days: defaultdict[tuple[str, str], Day] = defaultdict(Day)

    def add(self, record: CallRecord) -> None:
        """Count every sending of a call."""
        for attempt in record.attempts:
            place = ((moment(attempt.started_at_us) or "")[:10], record.tool)
            so_far, cost = self._days[place], attempt.cost
            self._days[place] = Day(
                so_far.cost + Decimal(cost or 0), so_far.attempts + 1, so_far.unpriced + (cost is None)
            )

    def shown(self) -> list[dict[str, Any]]:
        """Newest day first, tools by name."""
        days: Iterable[tuple[tuple[str, str], Day]] = sorted(self._days.items(), key=lambda item: item[0][1])
        return [
            {"day": day, "tool": tool, "cost": f"{sums.cost:f}", "attempts": sums.attempts, "unpriced": sums.unpriced}
            for (day, tool), sums in sorted(days, key=lambda item: item[0][0], reverse=True)
        ]


async def _days_ago_us(house: House, days: int) -> int:
    return await house.store.now_us() - round(timedelta(days=days).total_seconds() * US)


def _midnight_us(day: date) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * US)
