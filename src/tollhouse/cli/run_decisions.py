"""Commands of ``tollhouse runs`` that start something or decide."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from tollhouse.cli.failures import FAILED, OK, UsageMistake
from tollhouse.cli.ledger import run
from tollhouse.cli.next_steps import place_of
from tollhouse.cli.options import By, File, Json, OptionalReason, Store, Tenant, decider
from tollhouse.cli.run_access import deciding_runs, lines_of, reading_runs
from tollhouse.cli.run_options import AgentVersion, RunId, StartKey
from tollhouse.cli.run_text import exit_code_of, show_event, show_rehearsal
from tollhouse.cli.runtime import file_needed, opened
from tollhouse.cli.screen import Screen
from tollhouse.cli.sources import agents_file, tools_from, tools_of_file, url_of
from tollhouse.errors import UnknownAgent
from tollhouse.ledger.keys import DEFAULT_TENANT
from tollhouse.ledger.record import replace
from tollhouse.ledger.run_record import RunQuery
from tollhouse.runs.agent_files import AgentsFile, Draft
from tollhouse.runs.agents import Agent
from tollhouse.runs.reader import RunReader
from tollhouse.runs.registry import agent_version as published_version
from tollhouse.runs.registry import publish
from tollhouse.runs.rehearse import Rehearsal
from tollhouse.runs.rehearse import rehearse as rehearse_run
from tollhouse.runs.service import Runs
from tollhouse.runs.states import RunState
from tollhouse.runs.view import RunView, run_as_json

Effects = Annotated[
    str,
    typer.Option(
        "--effects",
        metavar="HOW",
        help="What happens to effects that the earlier run had: hold (people decide), reuse (the record answers) or "
        "repeat.",
    ),
]

Driver = Annotated[
    str,
    typer.Option(
        "--driver",
        metavar="NAME",
        envvar="TOLLHOUSE_DRIVER",
        help="Who drives it: local or temporal, as the servers of this ledger do.",
    ),
]


CHILDREN_EVERY_S = 0.5
"""How often a run that is driven here is looked at, whose children may wait for people."""


def start(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.", show_default=False)],
    input: Annotated[str, typer.Argument(metavar="INPUT", help="What it is asked to do.", show_default=False)],
    key: StartKey = None,
    by: By = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="NAME", help="The conversation that it continues.")
    ] = None,
    agent_version: AgentVersion = None,
    driver: Driver = "local",
    drive: Annotated[
        bool, typer.Option("--drive", help="Drive it in this process until it ends or waits, and show it.")
    ] = False,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Start a run. It goes on in `tollhouse serve`, or here with --drive.

    The agent is the one that a server, or --drive, published last: a changed file counts from the next start of a
    server.
    """
    screen, who = Screen(as_json=as_json), decider(by)

    async def begin(runs: Runs) -> RunView:
        if agent_version is None:
            await _publish_if_new(runs, agent, agents_file(file))
        driven_by = "local" if drive else driver
        return await runs.start(
            agent, input, by=who, key=key, thread=thread, agent_version=agent_version, driver=driven_by
        )

    if drive:
        return run(_driven(begin, screen, store, file, tenant))
    return _decided(begin, screen, store, file, tenant, "Started {id} of {agent}.", starts=True)


async def _publish_if_new(runs: Runs, agent: str, found: Draft | None) -> None:
    """An agent that no server has published yet is the one of the file; a newer version is the server's to publish."""
    if found is None or agent not in found.file.agents:
        return
    try:
        await published_version(runs.store, runs.tenant, agent)
    except UnknownAgent:
        named = {agent: found.proved().agents[agent]}
        await publish(runs.store, runs.tenant, named, await runs.now_us())


def cancel(
    run_id: RunId,
    by: By = None,
    reason: OptionalReason = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Stop a run at once, and its children. What had left before is listed by `runs show`."""
    who = decider(by)
    return _decided(
        lambda runs: runs.cancel(run_id, by=who, reason=reason or ""),
        Screen(as_json=as_json),
        store,
        file,
        tenant,
        "Cancelled {id}.",
        ended=True,
    )


def answer(
    run_id: RunId,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The id of the question.", show_default=False)],
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="The answer.", show_default=False)],
    by: By = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Answer a question that a run asked; it goes on by itself."""
    who = decider(by)
    return _decided(
        lambda runs: runs.answer(run_id, question, text, by=who),
        Screen(as_json=as_json),
        store,
        file,
        tenant,
        "Answered {id}.",
    )


def limits(
    run_id: RunId,
    changes: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="LIMIT=N",
            help="A limit: turns, calls, tokens, cost (US dollars) or wall_s (seconds); N may be none; may repeat.",
            show_default=False,
        ),
    ],
    by: By = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Let a run that reached a limit go on."""
    who, wanted = decider(by), dict(map(_limit, changes))
    return _decided(
        lambda runs: runs.raise_limits(run_id, wanted, by=who),
        Screen(as_json=as_json),
        store,
        file,
        tenant,
        "{id} goes on.",
    )


def rerun(
    run_id: RunId,
    effects: Effects = "hold",
    key: StartKey = None,
    agent_version: AgentVersion = None,
    by: By = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Start the same run once more, from its inputs in full."""
    who: Any = decider(by)
    how: Any = effects
    return _decided(
        lambda runs: runs.rerun(run_id, by=who, key=key, effects=how, agent_version=agent_version),
        Screen(as_json=as_json),
        store,
        file,
        tenant,
        "Started {id} of {agent}, attempt {attempt}.",
        starts=True,
    )


def rehearse(
    run_id: RunId,
    agent_version: AgentVersion = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Another model than the agent's own.")
    ] = None,
    strict_output: Annotated[
        bool, typer.Option("--strict-output", help="Another output is a difference even where it is free text.")
    ] = False,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Try an agent against a recorded run; nothing leaves.

    The model runs, and tools answer from the record. The agent is that of the agents' file as it is now, or with
    --agent-version one that was published. Exits with 1 when anything went otherwise than recorded.
    """
    screen, found = Screen(as_json=as_json), file_needed(agents_file(file))

    async def play() -> Rehearsal:
        book = found.proved().book()
        try:
            async with reading_runs(store, tenant, file) as reader:
                agent = await _agent_to_rehearse(reader, run_id, found.file, agent_version, model)
                strict = True if strict_output else None
                return await rehearse_run(reader, run_id, agent, book, compare_output=strict)
        finally:
            await book.close()

    played = run(play())
    if as_json:
        screen.document(played.as_json)
    else:
        show_rehearsal(screen, played)
    return FAILED if played.differences else OK


async def _agent_to_rehearse(
    reader: RunReader, run_id: str, file: AgentsFile, version: str | None, model: str | None
) -> Agent:
    name = (await reader.get(run_id)).agent
    if version is not None or name not in file.agents:
        agent = await published_version(reader.store, reader.tenant, name, version)
    else:
        agent = file.agents[name]
    return agent if model is None else replace(agent, model=model, fallback=())


def add_to(app: typer.Typer) -> None:
    """Make them commands of the group."""
    for command in (start, cancel, answer, limits, rerun, rehearse):
        app.command(command.__name__)(command)


def _decided(
    decide: Callable[[Runs], Awaitable[RunView]],
    screen: Screen,
    store: str | None,
    file: str | None,
    tenant: str,
    said: str,
    *,
    ended: bool = False,
    starts: bool = False,
) -> int:
    """Decide, and say so. ``starts``: a run begins, with the tools as they are now on record; other decisions need
    none, so that a tool which cannot be loaded stops nobody from stopping its runs."""

    async def work() -> RunView:
        async with deciding_runs(store, tenant, file, tools_from(None, file) if starts else ()) as runs:
            return await decide(runs)

    found = run(work())
    if screen.as_json:
        screen.document({**run_as_json(found), "started_before": found.started_before})
    else:
        before = " It was started before: nothing was started now." if found.started_before else ""
        screen.line(said.format(id=found.id, agent=found.agent, attempt=found.record.attempt_no) + before)
        if not found.record.finished:
            screen.command(f"tollhouse runs watch {found.id}{place_of(store, tenant, file).tail}")
    return 0 if ended or not found.record.finished else exit_code_of(found)


async def _driven(
    begin: Callable[[Runs], Awaitable[RunView]], screen: Screen, store: str | None, file: str | None, tenant: str
) -> int:
    """Start it and drive it in this process; its story is told as it happens."""
    from tollhouse.runs.drivers.local import LocalDriver

    found = file_needed(agents_file(file))
    async with opened(found, url_of(store, file), tools_of_file(found), tenant=tenant) as runtime:
        runs = runtime.runs
        started = await begin(runs)
        driver = LocalDriver(runs, agents=tuple(runtime.file.agents))
        driver.start()
        try:
            ended, held_up_by = await _told(runs, started.id, screen)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await driver.stop()
    if screen.as_json:
        screen.document(run_as_json(ended))
    elif held_up_by.id != ended.id:
        screen.line(f"It waits for {held_up_by.agent}: {held_up_by.state.sentence}.")
        screen.command(f"tollhouse runs show {held_up_by.id}{place_of(store, tenant, file).tail}")
    return exit_code_of(held_up_by)


async def _told(runs: Runs, run_id: str, screen: Screen) -> tuple[RunView, RunView]:
    """Tell each event as it comes, until the run ends, or it or what it runs waits for people; and which of them."""
    after = 0
    with runs.bus.subscribe(run_id) as moved:
        while True:
            found = await runs.get(run_id)
            for seq, at_us, kind, facts in await lines_of(runs, run_id, after):
                after = seq
                if not screen.as_json:
                    show_event(screen, at_us, found.record.created_at_us, kind, facts)
                    screen.flush()
            if after >= found.record.head_seq and (held_up_by := await _held_up_by(runs, found)) is not None:
                return found, held_up_by
            with contextlib.suppress(TimeoutError):  # what it runs tells only itself
                await asyncio.wait_for(moved.get(), CHILDREN_EVERY_S)


async def _held_up_by(runs: Runs, found: RunView) -> RunView | None:
    """The run itself, where it ended or waits for people; or one below it, where all that it waits for does so."""
    if found.record.finished or exit_code_of(found):
        return found
    if found.state is not RunState.AWAITING_WORK:
        return None
    children = await runs.list(RunQuery(parent_run_id=found.id))
    below = {each.record.parent_key: await _held_up_by(runs, each) for each in children if not each.record.finished}
    held_up = [below.get(each.id) for each in found.waiting]
    return held_up[0] if held_up and all(held_up) else None


def _limit(change: str) -> tuple[str, Any]:
    name, separator, value = change.partition("=")
    if not separator:
        raise UsageMistake(f"--set {change} is not LIMIT=N.", remedy="Give for example --set turns=50.")
    if value == "none":
        return name, None
    try:
        return name, json.loads(value)
    except ValueError:
        raise UsageMistake(f"--set {change}: {value} is no number.", remedy="Give a number, or none.") from None
