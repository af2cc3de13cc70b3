"""A contract that contradicts itself fails at import, naming the field and the remedy."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from tollhouse import CallContext, approval, dedup, destructive, external, hold_repeats, read, tool, write
from tollhouse.contract.terms import ApprovalTerms
from tollhouse.errors import ContractError

Declare = Callable[[], Any]


def _look(record: Any) -> None:
    """A hook."""


async def _with_context(ctx: CallContext) -> None:
    """A tool that could confirm."""


async def _without_context() -> None:
    """A tool that could not."""


_A_READ = tool(read(), name="find")(_without_context)


def declared(declaration: Any, fn: Any = _without_context, **more: Any) -> Declare:
    """A declaration that is made when it is called."""
    return lambda: tool(declaration, **more)(fn)


CONTRADICTIONS: list[tuple[str, str, Declare]] = [
    ("no effect", "effect", lambda: tool(None)(_without_context)),  # type: ignore[arg-type]
    ("the effect not called", "effect", lambda: tool(external)(_without_context)),  # type: ignore[arg-type]
    ("an unknown field", "retries", declared(external(), retries=3)),
    ("an unknown field in the effect", "retries", declared(external(retries=3))),  # type: ignore[call-arg]
    ("a field twice, differing", "max_attempts", declared(read(max_attempts=2), max_attempts=3)),
    ("many attempts without dedup", "max_attempts", declared(external(max_attempts=2))),
    ("many attempts of a deletion", "max_attempts", declared(destructive(max_attempts=3))),
    ("no attempt", "max_attempts", declared(read(max_attempts=0))),
    ("too many attempts", "max_attempts", declared(read(max_attempts=101))),
    ("half an attempt", "max_attempts", declared(read(max_attempts=1.5))),  # type: ignore[arg-type]
    ("attempts that are a yes", "max_attempts", declared(read(max_attempts=True))),
    ("a dedup that is text", "dedup", declared(external(dedup="by_key"))),  # type: ignore[arg-type]
    ("a read with dedup", "dedup", declared(read(dedup=dedup.by_key(hours=1)))),
    ("a window shorter than its margin", "dedup", declared(external(dedup=dedup.by_key(hours=0.05)))),
    ("a window of no time", "dedup", lambda: dedup.by_key(hours=0)),
    ("a window without end", "dedup", lambda: dedup.by_key(hours=math.inf)),
    ("a window that is no number", "dedup", lambda: dedup.by_key(hours="24")),  # type: ignore[arg-type]
    ("no time for an attempt", "attempt_timeout_s", declared(external(attempt_timeout_s=0))),
    ("a negative time", "deadline_s", declared(external(deadline_s=-1))),
    ("a time without end", "deadline_s", declared(external(deadline_s=math.inf))),
    ("a time that is none", "attempt_timeout_s", declared(external(attempt_timeout_s=math.nan))),
    ("an attempt beyond the deadline", "deadline_s", declared(external(attempt_timeout_s=9, deadline_s=3))),
    ("a negative silence", "absent_after_s", declared(external(absent_after_s=-1), reconcile=_look)),
    ("a negative margin", "resend_margin_s", declared(external(resend_margin_s=-0.1))),
    ("no time for a job", "job_deadline_s", declared(external(accepts=True, job_deadline_s=0))),
    ("departs nowhere", "departs", declared(external(departs="at_end"))),  # type: ignore[arg-type]
    ("nobody to confirm", "departs", declared(external(departs="at_confirm"))),
    ("approval that is a number", "approval", declared(external(approval=2))),  # type: ignore[arg-type]
    ("a quorum of nobody", "approval", declared(external(approval=approval(quorum=0)))),
    ("a quorum beyond its approvers", "approval", declared(external(approval=approval(quorum=2, approvers=["ada"])))),
    ("one approver named twice", "approval", declared(external(approval=approval(quorum=2, approvers=["a", "a"])))),
    ("approvers in one text", "approval", lambda: approval(approvers="ada")),
    ("an approver without a name", "approval", declared(external(approval=approval(approvers=["ada", " "])))),
    ("a quorum that is text", "approval", declared(external(approval=approval(quorum="2")))),  # type: ignore[arg-type]
    ("a hold until some day", "approval", declared(external(approval=approval(expires_s="1d")))),  # type: ignore[arg-type]
    ("a hold without end", "approval", declared(external(approval=ApprovalTerms(expires_s=math.inf)))),
    ("a hold of no time", "approval", declared(external(approval=approval(expires_s=0)))),
    ("a rule for repeats that is unknown", "on_repeat", declared(write(on_repeat="refuse"))),  # type: ignore[arg-type]
    ("a repeat within no time", "on_repeat", declared(write(on_repeat=hold_repeats(within_s=0)))),
    ("a repeat within endless time", "on_repeat", declared(write(on_repeat=hold_repeats(within_s=math.inf)))),
    ("a success as rejection", "rejects", declared(external(rejects=200))),
    ("a word as rejection", "rejects", declared(external(rejects=["conflict"]))),  # type: ignore[list-item]
    ("a rejection that is nothing", "rejects", declared(external(rejects=None))),  # type: ignore[arg-type]
    ("any exception as rejection", "rejects", declared(external(rejects=Exception))),
    ("a time-out as rejection", "rejects", declared(external(rejects=[TimeoutError]))),
    ("a broken connection as rejection", "rejects", declared(external(rejects=(404, ConnectionError)))),
    ("a cancel as rejection", "rejects", declared(external(rejects=asyncio.CancelledError))),
    ("a client's time-out as rejection", "rejects", declared(external(rejects=httpx2.HTTPError))),
    ("a hold longer than any clock", "approval", declared(external(approval=approval(expires_s=1e14)))),
    ("a deadline longer than any clock", "deadline_s", declared(external(deadline_s=1e14))),
    ("a read with a look-up", "reconcile", declared(read(), reconcile=_look)),
    ("a read with an undoing", "compensate", declared(read(), compensate=_look)),
    ("a read of long work", "accepts", declared(read(accepts=True))),
    ("a look-up that is no function", "reconcile", declared(external(), reconcile="find")),
    ("a look-up that is a tool", "reconcile", declared(external(), reconcile=_A_READ)),
    ("an undoing that is no function", "compensate", declared(external(), compensate=7)),
    ("an undoing that only reads", "compensate", declared(external(), compensate=_A_READ)),
    ("a cost that is text", "cost", declared(external(cost="cheap"))),  # type: ignore[arg-type]
    ("a cost that is no number", "cost", declared(external(cost=math.nan))),
    ("an empty name", "name", declared(external(), name="")),
    ("a name with a space", "name", declared(external(), name="issue credit")),
    ("a name too long", "name", declared(external(), name="x" * 65)),
    ("no function", "function", lambda: tool(external())("issue_credit")),  # type: ignore[arg-type]
    ("a class", "function", lambda: tool(external())(dict)),
]


@pytest.mark.parametrize(("field", "declare"), [pytest.param(f, d, id=name) for name, f, d in CONTRADICTIONS])
def test_contradiction_names_its_field_and_a_remedy(field: str, declare: Declare) -> None:
    """Whoever imports the module learns which word to change, and into what."""
    with pytest.raises(ContractError) as caught:
        declare()
    error = caught.value
    assert error.field == field
    assert error.code == "contract_error"
    assert error.sent == "no"
    assert error.cause.endswith((".", ":")) or error.cause
    assert error.remedy


@pytest.mark.parametrize("rule", [PermissionError, ConnectionRefusedError, ValueError, httpx2.HTTPStatusError])
def test_an_exception_that_a_receiver_can_mean_may_be_a_rejection(rule: type[BaseException]) -> None:
    """What is refused is only what comes of silence."""
    assert declared(external(rejects=rule))().rejects == (rule,)


def test_generators_are_no_tools() -> None:
    """A result that comes in pieces cannot be recorded as one outcome."""

    def pieces() -> Any:
        yield 1

    async def late_pieces() -> Any:
        yield 1

    for fn in (pieces, late_pieces):
        with pytest.raises(ContractError, match="plain `def` or `async def`") as caught:
            tool(external())(fn)
        assert caught.value.field == "function"


def test_parameters_without_names_are_refused() -> None:
    """A model gives arguments by name; what has no name could never be given."""

    def star(*things: int) -> None: ...
    def double_star(**things: int) -> None: ...
    def position_only(thing: int, /) -> None: ...

    for fn in (star, double_star, position_only):
        with pytest.raises(ContractError) as caught:
            tool(external())(fn)
        assert caught.value.field == "parameters"


class Unsayable:
    """A type that no JSON can give."""


class Unfinished(BaseModel):
    """A model that refers to what is not there."""

    part: "Missing"  # type: ignore[name-defined]  # noqa: F821


def test_parameters_that_json_cannot_give_are_refused() -> None:
    """A schema is made at import, not when the first call comes."""

    def later(thing: "Later") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def broken(thing: "1 +") -> None: ...  # type: ignore[valid-type]  # noqa: F722
    def unsayable(thing: Unsayable) -> None: ...
    def a_function(thing: Callable[[int], int]) -> None: ...
    def unfinished(thing: Unfinished) -> None: ...
    def two_contexts(one: CallContext, other: CallContext) -> None: ...

    for fn in (later, broken, unsayable, a_function, unfinished, two_contexts):
        with pytest.raises(ContractError) as caught:
            tool(external())(fn)
        assert caught.value.field == "parameters", fn


def test_a_method_without_its_instance_is_refused() -> None:
    """Nobody who calls the tool could give ``self``; the method of an instance is a tool like any other."""

    class Billing:
        def refund(self, cents: int) -> int:
            return cents

    with pytest.raises(ContractError) as caught:
        tool(external())(Billing.refund)
    assert caught.value.field == "function"
    assert tool(external())(Billing().refund).schema.parameters == ("cents",)


def test_the_same_field_twice_may_say_the_same() -> None:
    """Only a difference contradicts."""
    assert tool(read(max_attempts=2), max_attempts=2)(_without_context).terms.max_attempts == 2


def test_at_confirm_is_allowed_with_a_context() -> None:
    """The tool can do what it declares."""
    assert tool(external(departs="at_confirm"))(_with_context).terms.departs == "at_confirm"
