"""Bad tools, each broken in its own way: they show that the contract tests notice. Never use them for anything else.

Each is made by ``make(url)`` for a receiver at that base URL, and breaks exactly the promise it is listed under.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from tollhouse.contract import dedup
from tollhouse.contract.answers import Answer, NotSent, Rejected, did_not_happen, happened, unknown
from tollhouse.contract.context import CallContext
from tollhouse.contract.effects import external
from tollhouse.contract.tool import Tool, tool
from tollhouse.gate.view import RecordedCall

TIMEOUT_S = 5.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _send(url: str, body: Any, key: str | None = None) -> Any:
    """A plain POST with the standard library: no check, and no key unless it is given."""
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    return _open(urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST"))  # noqa: S310


def _look(url: str) -> Any:
    return _open(urllib.request.Request(url))  # noqa: S310


def _open(request: urllib.request.Request) -> Any:
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise


def forgets_the_key(url: str) -> Tool[Any]:
    """Declares dedup.by_key, and sends no key."""

    @tool(external(dedup=dedup.by_key(hours=24)))
    def charge(account_id: str, cents: int) -> Any:
        """Charge an account."""
        return _send(f"{url}/v1/charges", {"account": account_id, "cents": cents})

    return charge


def retries_by_itself(url: str) -> Tool[Any]:
    """Sends again when the connection breaks, as a client with default retries does."""

    @tool(external())
    def charge(account_id: str, cents: int) -> Any:
        """Charge an account."""
        for last in (False, False, True):
            try:
                return _send(f"{url}/v1/charges", {"account": account_id, "cents": cents})
            except OSError:
                if last:
                    raise
        return None

    return charge


def takes_errors_for_rejections(url: str) -> Tool[Any]:
    """Says *rejected* for whatever goes wrong, although the receiver may have acted."""

    @tool(external())
    def charge(account_id: str, cents: int) -> Any:
        """Charge an account."""
        try:
            return _send(f"{url}/v1/charges", {"account": account_id, "cents": cents})
        except (OSError, ValueError) as error:
            raise Rejected(str(error)) from error

    return charge


def takes_lost_replies_for_not_sent(url: str) -> Tool[Any]:
    """Says *not sent* for every network error."""

    @tool(external())
    def charge(account_id: str, cents: int) -> Any:
        """Charge an account."""
        try:
            return _send(f"{url}/v1/charges", {"account": account_id, "cents": cents})
        except urllib.error.HTTPError:
            raise
        except OSError as error:
            raise NotSent(str(error)) from error

    return charge


def swallows_errors(url: str) -> Tool[Any]:
    """Returns as if it had worked, whatever the receiver said."""

    @tool(external())
    async def charge(account_id: str, cents: int, ctx: CallContext) -> str:
        """Charge an account."""
        await ctx.http.post(f"{url}/v1/charges", json={"account": account_id, "cents": cents})
        return "charged"

    return charge


def changes_its_arguments(url: str) -> Tool[Any]:
    """Adds to a list it was given."""

    @tool(external())
    def charge(account_id: str, lines: list[int]) -> Any:
        """Charge an account for some lines."""
        lines.append(0)
        return _send(f"{url}/v1/charges", {"account": account_id, "lines": lines})

    return charge


def sends_before_the_check(url: str) -> Tool[Any]:
    """Declares that nothing leaves before the check, and sends before it."""

    @tool(external(departs="at_confirm"))
    def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        answer = _send(f"{url}/v1/charges", {"account": account_id, "cents": cents})
        ctx.confirm_sync()
        return answer

    return charge


def has_a_hook_that_writes(url: str) -> Tool[Any]:
    """Looks a call up by doing something at the receiver."""

    def look(record: RecordedCall) -> Answer:
        _send(f"{url}/v1/lookups", {"key": record.idempotency_key})
        found = _look(f"{url}/v1/charges?key={record.idempotency_key}")
        return happened(found[0]) if found else unknown()

    return _charge_with(url, look)


def has_a_hook_that_asks_whether_all_is_well(url: str) -> Tool[Any]:
    """Takes any answer of the receiver for the effect, also an empty list."""

    def look(record: RecordedCall) -> Answer:
        return happened(_look(f"{url}/v1/charges?key={record.idempotency_key}"))

    return _charge_with(url, look)


def has_a_hook_that_trusts_refusals(url: str) -> Tool[Any]:
    """Takes any failure of the look-up for absence."""

    def look(record: RecordedCall) -> Answer:
        try:
            found = _look(f"{url}/v1/charges?key={record.idempotency_key}")
        except urllib.error.HTTPError as error:
            return did_not_happen(f"status {error.code}")
        return happened(found[0]) if found else did_not_happen("nothing found")

    return _charge_with(url, look)


def has_a_compensation_that_repeats(url: str) -> Tool[Any]:
    """Undoes a charge by a request that carries no key, so that a second delivery undoes it twice."""

    def undo(record: RecordedCall) -> Any:
        return _send(f"{url}/v1/voids", {"charge": record.result["id"]})

    return _charge_with(url, None, undo)


def _charge_with(url: str, look: Callable[..., Any] | None, undo: Callable[..., Any] | None = None) -> Tool[Any]:
    @tool(external(), reconcile=look, compensate=undo)
    async def charge(account_id: str, cents: int, ctx: CallContext) -> Any:
        """Charge an account."""
        response = await ctx.http.post(f"{url}/v1/charges", json={"account": account_id, "cents": cents})
        return response.raise_for_status().json()

    return charge


BAD_TOOLS: dict[str, tuple[Callable[[str], Tool[Any]], dict[str, Any]]] = {
    "key_not_forwarded": (forgets_the_key, {"account_id": "a1", "cents": 100}),
    "own_retries": (retries_by_itself, {"account_id": "a1", "cents": 100}),
    "wrong_rejection": (takes_errors_for_rejections, {"account_id": "a1", "cents": 100}),
    "wrong_not_sent": (takes_lost_replies_for_not_sent, {"account_id": "a1", "cents": 100}),
    "swallowed_error": (swallows_errors, {"account_id": "a1", "cents": 100}),
    "mutates_arguments": (changes_its_arguments, {"account_id": "a1", "lines": [1, 2]}),
    "sends_before_confirm": (sends_before_the_check, {"account_id": "a1", "cents": 100}),
    "hook_writes": (has_a_hook_that_writes, {"account_id": "a1", "cents": 100}),
    "hook_claims_effect": (has_a_hook_that_asks_whether_all_is_well, {"account_id": "a1", "cents": 100}),
    "hook_trusts_refusal": (has_a_hook_that_trusts_refusals, {"account_id": "a1", "cents": 100}),
    "compensation_repeats": (has_a_compensation_that_repeats, {"account_id": "a1", "cents": 100}),
}
"""The promise each breaks, how it is made, and arguments for it."""
