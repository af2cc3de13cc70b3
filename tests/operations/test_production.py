"""A production check refuses what is fit for a trial only, and each reason has a code that stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tollhouse import dedup, destructive, external, read, tool, unknown
from tollhouse.contract.effects import Declaration
from tollhouse.contract.tool import Tool
from tollhouse.models.provider import Endpoint
from tollhouse.operations.production import REASONS, Deployment, is_loopback, shortcuts
from tollhouse.runs.agents import Agent, AgentApproval, Limits, Verifier


def a_tool(declaration: Declaration, **settings: Any) -> Tool[Any]:
    """A tool with that contract."""

    @tool(declaration, name="pay", **settings)
    def pay(cents: int) -> str:
        """Pay."""
        return "paid"

    return pay


def look_up(call: Any) -> Any:
    """Find out."""
    return unknown()


LOOK = a_tool(read())
GOOD = a_tool(external(), reconcile=look_up)
CLERK = Agent("clerk", "openai:x", tools=("pay",), limits=Limits(cost=Decimal(1)))
FIT = Deployment("sqlite:////var/lib/ledger.db", (GOOD,), {"clerk": CLERK}, {"own": Endpoint("https://h/v1")})
"""Nothing about it is a shortcut."""


def with_agent(**fields: Any) -> Deployment:
    """The same, with another agent."""
    return replace(FIT, agents={"clerk": replace(CLERK, **fields)})


def with_tool(declaration: Declaration, **settings: Any) -> Deployment:
    """The same, with another tool."""
    return replace(FIT, tools=(a_tool(declaration, **settings),))


DROP = a_tool(destructive(approval=False), reconcile=look_up)

REFUSED: list[tuple[str, str, Callable[[], Deployment]]] = [
    ("no_store", "store", lambda: replace(FIT, store=None)),
    ("volatile_store", "sqlite:///:memory:", lambda: replace(FIT, store="sqlite:///:memory:")),
    ("volatile_store", "sqlite:///x.db?synchronous=off", lambda: replace(FIT, store="sqlite:///x.db?synchronous=off")),
    ("volatile_store", "sqlite:////var/lib/ledger.db", lambda: replace(FIT, store_is_volatile=True)),
    (
        "password_in_file",
        "postgresql://u:***@localhost/d",
        lambda: replace(FIT, store_in_file="postgresql://u:secret@localhost/d"),
    ),
    ("store_without_tls", "postgresql://u:***@db/d", lambda: replace(FIT, store="postgresql://u:secret@db/d")),
    ("store_without_tls", "postgresql://db/d?sslmode=require", lambda: _store("postgresql://db/d?sslmode=require")),
    ("store_without_tls", "postgresql://localhost,db:1/d", lambda: _store("postgresql://localhost,db:1/d")),
    ("store_without_tls", "postgresql:///d?host=db", lambda: _store("postgresql:///d?host=db")),
    ("effect_without_evidence", "pay", lambda: with_tool(external())),
    ("absence_at_once", "pay", lambda: with_tool(external(absent_after_s=0), reconcile=look_up)),
    ("work_without_look_up", "pay", lambda: with_tool(external(accepts=True, dedup=dedup.by_key(hours=24)))),
    ("destructive_unapproved", "pay", lambda: replace(FIT, tools=(DROP,))),
    ("destructive_unapproved", "pay", lambda: replace(FIT, tools=(DROP,), agents={})),
    ("scripted_model", "clerk", lambda: with_agent(model="scripted:play")),
    ("scripted_model", "clerk", lambda: with_agent(fallback=("scripted:play",))),
    ("scripted_model", "clerk", lambda: with_agent(verifier=Verifier("scripted:play", "Right?"))),
    ("no_spending_limit", "clerk", lambda: with_agent(limits=Limits())),
    ("fails_in_doubt", "clerk", lambda: with_agent(on_in_doubt="fail")),
    ("fails_in_doubt", "clerk", lambda: with_agent(on_in_doubt="fail", tools=(), agents=("other",))),
    ("endpoint_in_clear", "own", lambda: replace(FIT, endpoints={"own": Endpoint("http://h/v1")})),
    ("open_to_network", "0.0.0.0", lambda: replace(FIT, host="0.0.0.0")),
    ("open_to_network", "every address", lambda: replace(FIT, host="")),
    ("open_to_network", "[::]", lambda: replace(FIT, host="[::]")),
]  # fmt: skip

ALLOWED: list[Callable[[], Deployment]] = [
    lambda: FIT,
    lambda: _store("postgresql://u@db/d?sslmode=verify-full"),
    lambda: _store("postgresql://u@localhost:5432,127.0.0.1,[::1]:5/d"),
    lambda: _store("postgresql:///d?host=/var/run/postgresql"),
    lambda: replace(FIT, tools=(a_tool(external(dedup=dedup.by_key(hours=24))),)),
    lambda: replace(FIT, tools=(LOOK,), agents={"clerk": replace(CLERK, on_in_doubt="fail")}),
    lambda: replace(FIT, tools=(DROP,), agents={"clerk": replace(CLERK, approvals={"pay": AgentApproval()})}),
    lambda: replace(FIT, tools=(a_tool(destructive(), reconcile=look_up),), agents={}),
    lambda: with_agent(limits=Limits(tokens=10)),
    lambda: replace(FIT, endpoints={"own": Endpoint("http://127.0.0.1:1/v1"), "theirs": Endpoint()}),
    lambda: replace(FIT, host="127.0.0.1"),
    lambda: replace(FIT, host="0.0.0.0", has_keys=True),
]


def _store(url: str) -> Deployment:
    return replace(FIT, store=url)


@pytest.mark.parametrize(("code", "about", "deployment"), REFUSED)
def test_shortcut_is_refused_with_its_code(code: str, about: str, deployment: Callable[[], Deployment]) -> None:
    """It and nothing else; no password is shown."""
    (found,) = shortcuts(deployment())
    assert (found.code, found.about, found.kind) == (code, about, REASONS[code].kind)
    assert (found.cause, found.remedy) == (REASONS[code].meaning, REASONS[code].remedy)
    assert "secret" not in str(found)


@pytest.mark.parametrize("deployment", ALLOWED)
def test_what_is_fit_for_production_is_not_refused(deployment: Callable[[], Deployment]) -> None:
    """The other side of every rule."""
    assert shortcuts(deployment()) == []


def test_every_reason_has_a_case() -> None:
    """A code that nothing yields would promise a check that there is not."""
    assert {code for code, _about, _deployment in REFUSED} == set(REASONS)


def test_one_agent_that_does_not_ask_is_enough() -> None:
    """The approval of another agent protects nothing."""
    careful = replace(CLERK, approvals={"pay": AgentApproval()})
    found = shortcuts(replace(FIT, tools=(DROP,), agents={"clerk": CLERK, "careful": replace(careful, name="careful")}))
    assert [shortcut.code for shortcut in found] == ["destructive_unapproved"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "::1", "[::1]", "127.1.2.3"])
def test_loopback_is_this_machine_alone(host: str) -> None:
    """By whatever name."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example.org", "localhost.example.org"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    """Nor is a name that begins like it."""
    assert not is_loopback(host)
