"""What ``tollhouse check`` says of tools, agents and shortcuts, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tollhouse.cli.screen import Screen
from tollhouse.cli.words import bounds, count, length
from tollhouse.contract.terms import ApprovalTerms, Effect, Terms
from tollhouse.contract.tool import Tool
from tollhouse.operations.production import Shortcut
from tollhouse.runs.agents import Agent, AgentApproval, Limits

SHORT = 12
"""Characters of a version that are shown."""


def show_tools(screen: Screen, tools: Iterable[Tool[Any]]) -> None:
    """Each tool with what its author declared, in words."""
    for tool in tools:
        screen.grid([((tool.name, "bold"), (tool.effect.value, "cyan"), (_summary(tool), None))])
        screen.pairs(list(_facts(tool)))
        screen.line()


def show_agents(
    screen: Screen, agents: Iterable[Agent], tools: Mapping[str, Tool[Any]], cautions: Mapping[str, list[str]]
) -> None:
    """Each agent with its version, what it may call and when it stops."""
    for agent in agents:
        described = (agent.description or "no description: other agents will not know what it is for").split("\n")[0]
        screen.grid([((agent.name, "bold"), ("agent", "cyan"), (described, None))])
        screen.pairs([*_agent_facts(agent, tools), *(("caution", told) for told in cautions.get(agent.name, ()))])
        screen.line()


def show_shortcuts(screen: Screen, found: Iterable[Shortcut], *, fit: bool) -> None:
    """What a production check refuses, each with its code. ``fit``: what all of the check comes to."""
    every = list(found)
    for shortcut in every:
        screen.error(f"{shortcut.about}: {shortcut.cause}", shortcut.code)
        screen.error_detail("remedy", shortcut.remedy)
    told = f": {count(len(every), 'shortcut')}" if every else ""
    screen.line("Fit for production." if fit else f"Not fit for production{told}.")


# -- agents --------------------------------------------------------------------------------------------------------


def _agent_facts(agent: Agent, tools: Mapping[str, Tool[Any]]) -> Iterator[tuple[str, str]]:
    yield "version", agent.version[:SHORT]
    yield "model", ", else ".join((agent.model, *agent.fallback))
    yield "limits", _limits(agent.limits)
    yield "in doubt", _IN_DOUBT[agent.on_in_doubt]
    for name in agent.tools:
        yield "may call", f"{name}: {_promise(name, tools)}{_asks(agent.approvals.get(name))}"
    if agent.agents:
        yield "may run", ", ".join(agent.agents)
    if agent.questions:
        yield "may ask", f"a person, who answers within {length(agent.question_expires_s)}"
    if agent.output_schema is not None:
        yield "answers", f"by its schema, repaired up to {count(agent.output_repairs, 'time')}"
    if agent.verifier is not None:
        yield "verifier", f"{agent.verifier.model}, up to {count(agent.verifier.rounds, 'round')}"


_IN_DOUBT = {
    "pause": "waits until the doubt is settled",
    "tell_model": "tells the model that the outcome is unknown",
    "fail": "ends the run",
}


def _limits(limits: Limits) -> str:
    told = [count(limits.turns, "turn")]
    told += [] if limits.calls is None else [count(limits.calls, "call")]
    told += [] if limits.tokens is None else [count(limits.tokens, "token")]
    told += [] if limits.cost is None else [f"{limits.cost} USD"]
    told += [] if limits.wall_s is None else [length(limits.wall_s)]
    return ", ".join(told)


def _promise(name: str, tools: Mapping[str, Tool[Any]]) -> str:
    tool = tools.get(name)
    return "not loaded" if tool is None else f"{tool.effect.value}, {tool.terms.guarantee}"


def _asks(asked: AgentApproval | None) -> str:
    return "" if asked is None else f"; asks {_people(asked)}"


def _people(asked: AgentApproval | ApprovalTerms) -> str:
    who = "" if asked.approvers is None else f" of {', '.join(asked.approvers)}"
    return f"{'one person' if asked.quorum == 1 else f'{asked.quorum} people'}{who}, within {length(asked.expires_s)}"


# -- tools ---------------------------------------------------------------------------------------------------------


def _summary(tool: Tool[Any]) -> str:
    return (tool.description or "no description: a model will not know what it is for").split("\n")[0]


def _facts(tool: Tool[Any]) -> Iterator[tuple[str, str]]:
    terms = tool.terms
    yield "promise", terms.guarantee
    yield "arguments", ", ".join(tool.schema.parameters) or "none"
    yield "attempts", bounds(terms)
    if terms.effect is not Effect.READ:
        yield "dedup", _dedup(terms)
        yield "approval", _approval(terms)
        yield "hooks", _hooks(terms)
        yield "repeats", _repeats(terms)
    if terms.accepts:
        yield "long work", f"may be accepted under a reference, then ends within {length(terms.job_deadline_s)}"
    for caution in tool.cautions:
        yield "caution", caution


def _dedup(terms: Terms) -> str:
    kinds = {
        "none": "none: the receiver takes a repeat for a new request",
        "by_key": f"by key, for {terms.dedup.hours or 0:g} h less a margin of {length(terms.resend_margin_s)}",
        "natural": "natural: repeating is harmless",
    }
    return kinds[terms.dedup.kind]


def _approval(terms: Terms) -> str:
    return "not needed" if terms.approval is None else _people(terms.approval)


def _hooks(terms: Terms) -> str:
    looks = f"look-up, absence counts after {length(terms.absent_after_s)}" if terms.has_reconcile else "no look-up"
    undo = f"undone by {terms.compensate}" if terms.compensate else "no compensation"
    return f"{looks}; {undo}"


def _repeats(terms: Terms) -> str:
    if terms.on_repeat.mode == "allow":
        return "allowed"
    settled = "" if terms.on_repeat.within_s is None else f", or settled within {length(terms.on_repeat.within_s)}"
    return f"held while the first of the same scope is unsettled{settled}"
