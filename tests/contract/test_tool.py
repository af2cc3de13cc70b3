"""What a decorated tool is: its schema, its defaults by effect, its version, its guarantee; and that only the gate
calls it."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from tollhouse import (
    CallContext,
    State,
    approval,
    dedup,
    destructive,
    did_not_happen,
    external,
    hold_repeats,
    read,
    tool,
    write,
)
from tollhouse.contract.effects import Declaration
from tollhouse.contract.terms import Effect, Terms
from tollhouse.errors import InvalidArguments, UngatedCall


class Money(BaseModel):
    """An amount."""

    cents: int
    currency: str = "EUR"


@dataclass
class Credit:
    """What was credited."""

    id: str


@tool(external(dedup=dedup.by_key(hours=24)))
async def issue_credit(
    account_id: Annotated[str, "Whose account"],
    amount: Money,
    ctx: CallContext,
    note: Annotated[str | None, Field(description="For the customer", max_length=20)] = None,
) -> Credit:
    """Credit an account.

    The customer sees it at once.
    """
    return Credit(f"{account_id}:{amount.cents}:{ctx.attempt}:{note}")


def test_calling_a_tool_directly_raises_and_runs_nothing() -> None:
    """There is one way to a tool, through the gate; ``fn`` is for unit tests."""
    ran = []

    @tool(write())
    def save(text: str) -> str:
        ran.append(text)
        return text

    with pytest.raises(UngatedCall) as caught:
        save("a")
    assert ran == []
    assert caught.value.code == "ungated_call"
    assert caught.value.sent == "no"
    assert "house.call" in caught.value.remedy
    assert save.fn("b") == "b"


async def test_an_async_tool_called_directly_raises_before_it_is_awaited() -> None:
    """No coroutine is made that somebody could forget to await."""
    with pytest.raises(UngatedCall):
        issue_credit(account_id="a1", amount=Money(cents=5))


def test_schema_shows_the_model_what_it_may_give() -> None:
    """Injected parameters are no part of it; descriptions are."""
    schema = issue_credit.json_schema
    assert issue_credit.name == schema["title"] == "issue_credit"
    assert schema["description"].startswith("Credit an account.")
    assert list(schema["properties"]) == ["account_id", "amount", "note"]
    assert schema["required"] == ["account_id", "amount"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["account_id"]["description"] == "Whose account"
    assert schema["properties"]["note"]["description"] == "For the customer"


def test_name_and_description_can_be_given() -> None:
    """What a model sees need not be what the function is called."""

    @tool(read(), name="billing.find", description="Finds bills.")
    def find_it(number: int) -> int:
        """Other text."""
        return number

    assert find_it.name == "billing.find"
    assert find_it.json_schema["description"] == "Finds bills."


def test_arguments_are_coerced_and_defaults_filled_in() -> None:
    """The function gets what its hints say."""
    values = issue_credit.schema.validate({"account_id": "a1", "amount": {"cents": "7"}})
    assert values == {"account_id": "a1", "amount": Money(cents=7), "note": None}


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"account_id": "a1"}, "amount"),
        ({"account_id": "a1", "amount": {"cents": "many"}}, "amount.cents"),
        ({"account_id": "a1", "amount": {"cents": 1}, "amuont": 2}, "amuont"),
        ({"account_id": "a1", "amount": {"cents": 1}, "ctx": None}, "ctx"),
        ({"account_id": "a1", "amount": {"cents": 1}, "note": "x" * 21}, "note"),
    ],
)
def test_arguments_that_do_not_fit_name_where(arguments: dict[str, Any], path: str) -> None:
    """A missing, wrong or extra argument is named; its value is not shown."""
    with pytest.raises(InvalidArguments) as caught:
        issue_credit.schema.validate(arguments)
    assert caught.value.path == path
    assert "many" not in str(caught.value)
    assert "xxxx" not in str(caught.value)


def test_names_that_python_or_pydantic_uses_are_fine_as_parameters() -> None:
    """A tool's parameters are its own business."""

    @tool(write())
    def odd(model_config: int, schema: int, copy: int, _hidden: int, json: int) -> int:
        return model_config + schema + copy + _hidden + json

    given = {"model_config": 1, "schema": 2, "copy": 3, "_hidden": 4, "json": 5}
    assert odd.schema.validate(given) == given


def test_types_defined_inside_a_function_are_found() -> None:
    """A tool may be declared wherever its types are."""

    class Local(BaseModel):
        """Known here only."""

        part: int

    @tool(write())
    def use(thing: "Local") -> "Local":
        return thing

    assert use.schema.validate({"thing": {"part": 1}}) == {"thing": Local(part=1)}
    assert use.schema.result_type is Local


@pytest.mark.parametrize(
    ("declaration", "effect", "attempts", "held"),
    [
        (read(), Effect.READ, 3, False),
        (write(), Effect.WRITE, 1, False),
        (external(), Effect.EXTERNAL, 1, False),
        (destructive(), Effect.DESTRUCTIVE, 1, True),
        (destructive(approval=False), Effect.DESTRUCTIVE, 1, False),
        (external(dedup=dedup.by_key(hours=1)), Effect.EXTERNAL, 3, False),
        (write(dedup=dedup.natural), Effect.WRITE, 3, False),
    ],
)
def test_defaults_follow_the_effect(declaration: Declaration, effect: Effect, attempts: int, held: bool) -> None:
    """The table of effects: how often it is sent, and whether people are asked."""
    terms = tool(declaration)(issue_credit.fn).terms
    assert (terms.effect, terms.max_attempts, terms.approval is not None) == (effect, attempts, held)


def test_times_leave_room_for_all_attempts_by_default() -> None:
    """Silence and margin are never shorter than an attempt, unless written out."""
    terms = tool(external(dedup=dedup.by_key(hours=24), attempt_timeout_s=400))(issue_credit.fn).terms
    assert terms.deadline_s > 3 * 400
    assert terms.absent_after_s == 400
    assert terms.resend_margin_s == 400
    short = tool(external(attempt_timeout_s=1))(issue_credit.fn).terms
    assert (short.absent_after_s, short.resend_margin_s) == (60, 300)


def test_a_short_deadline_shortens_the_attempts() -> None:
    """Whoever gives only a deadline means it for each attempt, too."""
    assert tool(external(deadline_s=2))(issue_credit.fn).terms.attempt_timeout_s == 2


VERSIONS = [
    external(),
    write(),
    external(attempt_timeout_s=5),
    external(dedup=dedup.by_key(hours=24)),
    external(dedup=dedup.by_key(hours=25)),
    external(approval=True),
    external(approval=approval(quorum=2)),
    external(on_repeat="allow"),
    external(on_repeat=hold_repeats(within_s=60)),
    external(accepts=True),
]


def test_version_changes_with_every_promise_and_with_the_schema() -> None:
    """Approvals are bound to it, so that nobody approves one thing and gets another."""
    versions = {tool(each)(issue_credit.fn).terms.version for each in VERSIONS}
    assert len(versions) == len(VERSIONS)

    @tool(external(), name="issue_credit", description=issue_credit.description)
    def other(account_id: str) -> None: ...

    assert other.terms.version not in versions


def test_version_does_not_change_without_a_reason() -> None:
    """A restart lapses no approval."""
    one, two = (tool(external())(issue_credit.fn).terms for _ in range(2))
    assert one.version == two.version


@pytest.mark.parametrize("declaration", [*VERSIONS, read(), destructive()])
def test_terms_survive_being_stored(declaration: Declaration) -> None:
    """What was promised when a call departed still binds it later."""
    terms = tool(declaration)(issue_credit.fn).terms
    assert Terms.loads(terms.dumps()) == terms


@pytest.mark.parametrize(
    ("declaration", "says"),
    [
        (read(), "never in doubt"),
        (external(), "sent once; no second send without evidence or a named decision"),
        (external(dedup=dedup.by_key(hours=24)), "one effect while the receiver keeps its word (24 h)"),
        (write(dedup=dedup.natural), "harmless by the author's word"),
        (external(departs="at_confirm"), "a late send is stopped by the fence"),
        (external(), "a late send is not checked"),
        (external(), "a doubt waits for a person"),
    ],
)
def test_guarantee_says_what_is_promised_and_what_is_not(declaration: Declaration, says: str) -> None:
    """It stands on each call, so it must be the truth about this contract."""
    assert says in tool(declaration)(issue_credit.fn).terms.guarantee


def _look(record: Any) -> Any:
    return did_not_happen(f"{record.key} is {State.FAILED}")


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (lambda: tool(external())(issue_credit.fn), "every doubt waits for a person"),
        (lambda: tool(external(absent_after_s=0), reconcile=_look)(issue_credit.fn), "absent_after_s is 0"),
        (lambda: tool(destructive(approval=False))(issue_credit.fn), "nobody is asked"),
        (lambda: tool(external(accepts=True))(issue_credit.fn), "no reconcile hook to poll"),
    ],
)
def test_cautions_tell_the_author_what_to_look_at(declared: Any, says: str) -> None:
    """Allowed, but worth a second thought."""
    assert any(says in caution for caution in declared().cautions)


def test_a_careful_contract_has_no_cautions() -> None:
    """Silence means something."""
    assert tool(external(dedup=dedup.by_key(hours=24)), reconcile=_look)(issue_credit.fn).cautions == []
