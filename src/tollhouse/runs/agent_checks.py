"""What a well-formed agents' file may still get wrong: names that nothing bears, and promises that cannot be kept.

Called by ``agent_files`` once the tools are known. Each rule is one function over one agent that yields what is wrong,
at the place it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from tollhouse.errors import Mistake, TollhouseError
from tollhouse.models.book import SCRIPTED, ModelBook
from tollhouse.models.provider import BUILT_IN
from tollhouse.runs.agent_schema import like, listed, schema_problem
from tollhouse.runs.agents import Agent
from tollhouse.runs.builtin import ASK_PERSON, WAIT
from tollhouse.runs.calls import agent_tool_name
from tollhouse.runs.yaml_reader import Document, Path, words_of

KnownModel = Callable[[str], str | None]
"""What is wrong with a model's name, in one sentence; None: nothing."""

YEAR_S = 365 * 86_400.0


class Wrong(NamedTuple):
    """A mistake before it has its line. ``path``: below the agent."""

    path: Path
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Names:
    """What a file may refer to.

    ``agents``: those that could be built; ``folder``: where scripts in files are. ``tools`` None: taken on trust.
    ``left_out``: an agent's fields that are wrong already, by its name.
    """

    agents: Mapping[str, Agent]
    agent_names: Collection[str]
    endpoints: Collection[str]
    scripts: Collection[str]
    folder: FilePath
    tools: Collection[str] | None
    left_out: Mapping[str, frozenset[str]]
    model: KnownModel

    def has_left_out(self, agent: Agent, name: str) -> bool:
        """Whether the agent's field was wrong already, so that nothing follows from its absence."""
        return name in self.left_out.get(agent.name, ())


def known_provider(name: str) -> str | None:
    """Whether the provider of a model is one that needs no declaration."""
    provider = name.partition(":")[0]
    return None if provider in BUILT_IN else f"There is no provider {provider!r}."


def mistakes_of_scripts(document: Document, scripts: Mapping[str, Any]) -> Iterator[Mistake]:
    """Scripted models that ``models`` cannot play."""
    for name, script in scripts.items():
        try:
            ModelBook(scripts={name: script})
        except TollhouseError as error:
            line, column = document.place(("scripts", name))
            yield Mistake(line, column, words_of(("scripts", name)), error.cause, error.remedy)


def mistakes_of_meaning(document: Document, names: Names) -> Iterator[Mistake]:
    """Everything that is wrong with agents that are well-formed."""
    for agent in names.agents.values():
        for rule in _RULES:
            for wrong in rule(agent, names):
                yield _placed(document, agent.name, wrong)


def _placed(document: Document, name: str, wrong: Wrong) -> Mistake:
    """What a default brought in is shown where the default stands."""
    path: Path = ("agents", name, *wrong.path)
    default: Path = ("defaults", *wrong.path)
    if path not in document.places and wrong.path and default in document.places:
        path = default
    line, column = document.place(path, of_key=wrong.path == ())
    return Mistake(line, column, words_of(path), wrong.cause, wrong.remedy)


def _models(agent: Agent, known: Names) -> Iterator[Wrong]:
    if not agent.model and not known.has_left_out(agent, "model"):
        remedy = "Give it `model: provider:name`, or give all agents one under `defaults`."
        yield Wrong((), f"{agent.name} has no model.", remedy)
    asked: list[tuple[Path, str]] = [(("model",), agent.model)] if agent.model else []
    asked += [(("fallback", number), name) for number, name in enumerate(agent.fallback)]
    if agent.verifier is not None:
        asked.append((("verifier", "model"), agent.verifier.model))
    for path, name in asked:
        yield from _model(path, name, known)


def _model(path: Path, name: str, known: Names) -> Iterator[Wrong]:
    provider, _, model = name.partition(":")
    if provider == SCRIPTED:
        if model not in known.scripts and not (found := ModelBook(base=known.folder).known(name)):
            remedy = f"{like(model, known.scripts)}Scripts of this file: {listed(known.scripts)}."
            yield Wrong(path, found.why, remedy)
    elif provider not in known.endpoints and (problem := known.model(name)) is not None:
        every = [*BUILT_IN, SCRIPTED, *known.endpoints]
        remedy = f"{like(provider, every)}Correct it, or add it to endpoints; there are: {listed(every)}."
        yield Wrong(path, problem, remedy)


def _tools(agent: Agent, known: Names) -> Iterator[Wrong]:
    own = {**({ASK_PERSON: "questions"} if agent.questions else {}), **({WAIT: "timers"} if agent.timers else {})}
    for number, name in enumerate(agent.tools):
        if name in own:
            remedy = f"Rename the tool, or leave out {own[name]}."
            yield Wrong(("tools", number), f"The tool {name!r} has the name of what {own[name]} adds.", remedy)
        elif known.tools is not None and name not in known.tools:
            remedy = f"{like(name, known.tools)}Tools: {listed(sorted(known.tools), none='none are loaded')}."
            yield Wrong(("tools", number), f"There is no tool {name!r}.", remedy)


def _agents(agent: Agent, known: Names) -> Iterator[Wrong]:
    for number, name in enumerate(agent.agents):
        path: Path = ("agents", number)
        if name not in known.agent_names:
            remedy = f"{like(name, known.agent_names)}Agents of this file: {listed(known.agent_names)}."
            yield Wrong(path, f"There is no agent {name!r}.", remedy)
        elif (tool := agent_tool_name(name)) in agent.tools:
            yield Wrong(path, f"The tool {tool!r} has the name of what runs {name}.", "Rename one of them.")
        elif (circle := _way_back(agent.name, name, known.agents)) is not None:
            way = " → ".join((agent.name, *circle))
            yield Wrong(path, f"{agent.name} would run itself: {way}.", "Break the circle.")


def _way_back(home: str, start: str, agents: Mapping[str, Agent]) -> list[str] | None:
    """The names on a way from ``start`` to ``home``; None: there is none."""
    came_from: dict[str, str | None] = {start: None}
    waiting = [start]
    while waiting and home not in came_from:
        here = waiting.pop()
        further = agents[here].agents if here in agents else ()
        waiting += [name for name in further if name not in came_from]
        came_from |= {name: here for name in further if name not in came_from}
    way: list[str] = []
    step: str | None = home if home in came_from else None
    while step is not None:
        way.insert(0, step)
        step = came_from[step]
    return way or None


def _approvals(agent: Agent, known: Names) -> Iterator[Wrong]:
    for tool, asked in agent.approvals.items():
        path: Path = ("approvals", tool)
        if tool not in agent.tools and not known.has_left_out(agent, "tools"):
            remedy = f"{like(tool, agent.tools)}Tools of {agent.name}: {listed(agent.tools)}."
            yield Wrong(path, f"{agent.name} may not use {tool!r}, so nobody can approve it.", remedy)
        if asked.approvers is not None and asked.quorum > len(asked.approvers):
            cause = f"{asked.quorum} must agree, but only {len(asked.approvers)} may."
            yield Wrong(path, cause, "Lower quorum, or name more approvers.")
        yield from _time((*path, "expires"), asked.expires_s)


def _times(agent: Agent, _known: Names) -> Iterator[Wrong]:
    if agent.limits.wall_s is not None:
        yield from _time(("limits", "wall"), agent.limits.wall_s)
    if agent.questions:
        yield from _time(("questions", "expires"), agent.question_expires_s)
    if agent.limits.cost is not None and agent.limits.cost <= Decimal(0):
        yield Wrong(("limits", "cost"), "A cost of 0 lets no run begin.", "Give more than 0, or null for no limit.")


def _time(path: Path, length_s: float) -> Iterator[Wrong]:
    """Bounds of a length that was written with its unit, which the schema cannot add up."""
    if not 1 <= length_s <= YEAR_S:
        yield Wrong(path, f"{words_of(path)} is {length_s:.15g} s.", "Give 1 second to 365 days.")


def _output(agent: Agent, _known: Names) -> Iterator[Wrong]:
    if agent.output_schema is not None and (problem := schema_problem(agent.output_schema)) is not None:
        yield Wrong(("output",), f"The output is no JSON Schema: {problem}.", "Correct it (draft 2020-12).")


_RULES: tuple[Callable[[Agent, Names], Iterable[Wrong]], ...] = (
    _models,
    _tools,
    _agents,
    _approvals,
    _times,
    _output,
)
