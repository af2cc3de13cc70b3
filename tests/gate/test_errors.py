"""The errors as a whole: codes are unique and stable, every one has a remedy, and a model is never told to try again
while a doubt is open."""

from __future__ import annotations

import inspect
import re

import pytest

from tollhouse import errors
from tollhouse.errors import (
    AgentFileInvalid,
    CallFailed,
    ContractError,
    Held,
    InDoubt,
    InvalidArguments,
    InvalidRequest,
    Sent,
    TollhouseError,
)

CLASSES = [
    each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, TollhouseError)
]  # fmt: skip

NO_DOUBT = (CallFailed, Held)
"""What these say is known, whatever left in earlier rounds."""

CODES = {
    "TollhouseError": "error",
    "InDoubt": "call_in_doubt",
    "Held": "call_held",
    "Refused": "call_refused",
    "CallFailed": "call_failed",
    "CallNotSent": "call_not_sent",
    "CallInFlight": "call_in_flight",
    "CallConflict": "call_conflict",
    "Contradicted": "call_contradicted",
    "Compensated": "call_compensated",
    "ResultPurged": "result_purged",
    "InvalidArguments": "invalid_arguments",
    "InvalidKey": "invalid_key",
    "InvalidSetting": "invalid_setting",
    "UnknownTool": "unknown_tool",
    "UnknownCall": "unknown_call",
    "UngatedCall": "ungated_call",
    "ContractError": "contract_error",
    "NotAllowed": "not_allowed",
    "DecisionConflict": "decision_conflict",
    "NotEntitled": "not_entitled",
    "StoreUnavailable": "store_unavailable",
    "StoreFull": "store_full",
    "StoreReadOnly": "store_read_only",
    "StoreLocked": "store_locked",
    "StoreNotDurable": "store_not_durable",
    "StoreSchema": "store_schema",
    "StoreURLInvalid": "store_url_invalid",
    "HouseClosed": "house_closed",
    "NotAuthenticated": "not_authenticated",
    "NotAuthorized": "not_authorized",
    "PreconditionFailed": "precondition_failed",
    "RequestTooLarge": "request_too_large",
    "InvalidRequest": "invalid_request",
    "UnknownRoute": "unknown_route",
    "MethodNotAllowed": "method_not_allowed",
    "UnsupportedMediaType": "unsupported_media_type",
    "RequestTimedOut": "request_timed_out",
    "WrongHost": "wrong_host",
    "InvalidCursor": "invalid_cursor",
}
"""Codes are a promise: callers branch on them. Rows are added, never changed."""


def made(kind: type[TollhouseError], sent: Sent | None = None) -> TollhouseError:
    """One error of that kind."""
    if issubclass(kind, ContractError):
        return kind("Something is so.", field="dedup")
    if issubclass(kind, AgentFileInvalid):
        return kind("Something is so.", file="tollhouse.yaml")
    if issubclass(kind, InvalidArguments | InvalidRequest):
        return kind("Something is so.")
    return kind("Something is so.", sent=sent)


def test_codes_are_unique() -> None:
    """A code names one kind of failure."""
    codes = [each.code for each in CLASSES]
    assert len(set(codes)) == len(codes)


def test_codes_never_change() -> None:
    """Whoever renames one breaks callers."""
    assert CODES.items() <= {each.__name__: each.code for each in CLASSES}.items()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_has_cause_remedy_and_says_what_was_sent(kind: type[TollhouseError]) -> None:
    """One sentence of cause, one of what to do next, and whether anything left."""
    error = made(kind)
    assert re.fullmatch(r"[a-z][a-z_]+", error.code)
    assert "code" in vars(kind), "a code of its own"
    assert error.remedy[0].isupper()
    assert error.remedy.endswith(".")
    assert error.sent in ("no", "maybe", "yes")
    assert kind.__doc__
    for part in (error.cause, error.remedy, error.code, error.sent):
        assert part in str(error)
    assert set(error.as_dict()) == {"code", "cause", "remedy", "sent", "key"}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("sent", ["no", "maybe", "yes"])
def test_a_model_is_never_told_to_try_again_while_in_doubt(kind: type[TollhouseError], sent: Sent) -> None:
    """A model that repeats a doubt makes a second effect."""
    told = made(kind, sent).for_model
    assert told
    assert not re.search(r"try again|retry|call again|again with", told, re.IGNORECASE)
    if made(kind, sent).sent == "maybe" and not issubclass(kind, NO_DOUBT):
        assert re.search(r"Do not call it again", told), told


def test_a_doubt_is_never_told_as_a_failure() -> None:
    """*Outcome unknown, verify first*, never "failed"."""
    told = InDoubt("The outcome of k is unknown: ReadTimeout.").for_model
    assert "unknown" in told
    assert "verify" in told.lower()
    assert "fail" not in told
