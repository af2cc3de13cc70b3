"""What an attempt came to: the one place where a return value or an exception becomes an outcome.

An exception is *unknown* until proven otherwise. Proof is: the tool says so (``NotSent``, ``Rejected``), the contract
names it a rejection, the last check refused, or nothing had passed a check yet in a tool that departs at confirm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tollhouse.contract.answers import Accepted, NotSent, Rejected
from tollhouse.contract.tool import Tool
from tollhouse.gate.context import Context, DepartureRefused
from tollhouse.gate.http import ConnectionNotMade
from tollhouse.ledger.record import AttemptOutcome, Json
from tollhouse.ledger.steps import Ending

MESSAGE_LENGTH_MOST = 500
MESSAGE_READ_MOST = 10_000
"""How much of a message is searched for credentials: somebody's exception may carry a whole page."""
_URL_SECRETS = re.compile(r"\b(\w+://)([^/\s@]*@)?([^\s?'\"#]*)(\?[^\s'\"#]*)?")


def ending_of_error(error: BaseException, tool: Tool[Any], context: Context) -> Ending:
    """The ending of an attempt that raised."""
    record = error_record(error, context.secrets)
    if isinstance(error, Accepted):
        return Ending(AttemptOutcome.ACCEPTED, reference=error.reference)
    if isinstance(error, NotSent):
        outcome = AttemptOutcome.UNKNOWN if _may_have_left(error, context) else AttemptOutcome.NOT_SENT
        return Ending(outcome, error=record)
    if tool.terms.departs == "at_confirm" and not context.confirmed:
        return Ending(AttemptOutcome.NOT_SENT, error=record)
    if (isinstance(error, Rejected) or names_rejection(tool, error)) and _speaks_for_all(error, context):
        return Ending(AttemptOutcome.REJECTED, error=record)
    return Ending(AttemptOutcome.UNKNOWN, error=record)


def _may_have_left(error: BaseException, context: Context) -> bool:
    """Wire evidence outweighs a claim; neither a refused check nor a connection that could not be made says anything
    about what passed a check of its own."""
    if isinstance(error, DepartureRefused):
        return context.confirmed
    if isinstance(error, ConnectionNotMade):
        return not context.sends.none_left()
    return bool(context.sends)


def _speaks_for_all(error: BaseException, context: Context) -> bool:
    """A rejection of one request says nothing about another that was not answered, whoever claims it."""
    return context.sends.rejection_counts(_attribute(error, "response"))


def names_rejection(tool: Tool[Any], error: BaseException) -> bool:
    """Whether the contract's ``rejects`` names this exception, or the HTTP status it carries."""
    status = _status(error)
    for rule in tool.rejects:
        if isinstance(rule, int):
            if status == rule:
                return True
        elif isinstance(rule, type):
            if isinstance(error, rule):
                return True
        elif _says_yes(rule, error):
            return True
    return False


def _says_yes(predicate: Callable[[BaseException], bool], error: BaseException) -> bool:
    """A predicate that fails proves nothing."""
    try:
        return bool(predicate(error))
    except Exception:
        return False


def is_transient(error: BaseException | None, ending: Ending) -> bool:
    """Whether sending again by itself may help: never a programming error, never a plain rejection."""
    if ending.outcome is AttemptOutcome.NOT_SENT:
        return error is not None and (_is_network_error(error) or _is_network_error(error.__cause__))
    if ending.outcome is AttemptOutcome.REJECTED:
        return isinstance(error, Rejected) and error.transient
    return ending.outcome is AttemptOutcome.UNKNOWN


def is_transient_read_error(error: BaseException) -> bool:
    """Whether a read may run again: network trouble, time-outs, and answers that ask to come back later."""
    if isinstance(error, Rejected):
        return error.transient
    if isinstance(error, NotSent | TimeoutError) or _is_network_error(error):
        return True
    return _status(error) in (408, 429, 500, 502, 503, 504)


def _is_network_error(error: BaseException | None) -> bool:
    if isinstance(error, ConnectionNotMade | OSError):
        return True
    return any(base.__name__ == "TransportError" for base in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    for holder in (_attribute(error, "response"), error):
        for name in ("status_code", "status", "code"):
            value = _attribute(holder, name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _attribute(holder: object, name: str) -> Any:
    """An attribute of somebody's exception, whose properties may raise."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def error_record(error: BaseException, secrets: dict[str, str] | None = None) -> Json:
    """An exception as it is kept: type and bounded message, without credentials or query strings of URLs."""
    try:
        message = str(error)
    except Exception:
        message = "(no message: the exception could not be printed)"
    for value in sorted((secrets or {}).values(), key=len, reverse=True):  # one may be the beginning of another
        if value:
            message = message.replace(value, "***")
    message = _URL_SECRETS.sub(lambda m: f"{m[1]}{m[3]}{'?***' if m[4] else ''}", message[:MESSAGE_READ_MOST])
    return {"type": type(error).__name__, "message": message[:MESSAGE_LENGTH_MOST].encode("utf-8", "replace").decode()}
