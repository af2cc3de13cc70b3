"""``tollhouse check``: what tools promise, what agents may do, and whether that holds; nothing is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollhouse.cli.db import schema_as_json, schema_exit_code, show_schema
from tollhouse.cli.failures import FAILED, OK, UsageMistake, error_as_json, show_error
from tollhouse.cli.ledger import run
from tollhouse.cli.loading import importable, tools_of
from tollhouse.cli.options import DEFAULT_FILE, TOOLS_ENV, File, Json, Store, Tenant, Tools, named_tools
from tollhouse.cli.screen import Screen
from tollhouse.cli.sources import agents_file
from tollhouse.cli.words import count
from tollhouse.contract.tool import Tool
from tollhouse.errors import AgentFileInvalid, InvalidSetting, StoreNotDurable, TollhouseError
from tollhouse.house.access import KeyRing, is_current
from tollhouse.house.as_json import tool_as_json
from tollhouse.ledger.keys import DEFAULT_TENANT, check_tenant
from tollhouse.stores import SchemaReport, open_store, without_password
from tollhouse.stores import check as check_schema

if TYPE_CHECKING:
    from tollhouse.operations.production import Shortcut
    from tollhouse.runs.agent_files import AgentsFile, Draft


PORT_MOST = 65535


@dataclass
class Checked:
    """What there is, and what is wrong with it, by source. ``file`` None: there is none, or it is wrong."""

    tools: list[Tool[Any]]
    problems: list[tuple[str, TollhouseError]]
    file: AgentsFile | None = None
    cautions: dict[str, list[str]] = field(default_factory=dict)
    shortcuts: list[Shortcut] = field(default_factory=list)
    store: str | None = None
    schema: SchemaReport | None = None
    store_is_volatile: bool = False
    has_keys: bool = False

    @property
    def problem_count(self) -> int:
        """Every mistake of a file counts."""
        return sum(max(1, len(getattr(error, "mistakes", ()))) for _source, error in self.problems)

    @property
    def fit(self) -> bool:
        """For production: nothing is wrong or refused, and this release works on the ledger, where there is one."""
        usable = self.schema is None or self.schema.usable
        return usable and not self.problems and not self.shortcuts


def check(
    path: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help=f"The agents' file; by default {DEFAULT_FILE}.", show_default=False),
    ] = None,
    tools: Tools = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    production: Annotated[
        bool, typer.Option("--production", help="Refuse what is fit for a trial only, each with its reason.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Where the server will listen; for --production."),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of agents' files and exit.")] = False,
    as_json: Json = False,
) -> int:
    """Say what tools promise and what agents may do, and prove their file.

    Nothing is called. Exits with 1 when a module cannot be imported, a contract contradicts itself, the file is wrong,
    or, with --production, a shortcut is found or this release cannot work on the ledger. With --tools alone no file is
    looked at. With a ledger its schema is checked too.
    """
    screen = Screen(as_json=as_json)
    if schema:
        return _show_format(screen)
    named = path or file
    found = agents_file(named) if named is not None or not tools else None
    sources = named_tools(tools) or list(found.file.tools if found else ())
    if not sources and found is None:
        raise UsageMistake(
            "No tools are named, and there is no agents' file.",
            remedy=f"Give --tools MODULE, set {TOOLS_ENV}, or write {DEFAULT_FILE}.",
        )
    checked = _load(sources, found)
    checked.store = store or (None if found is None else found.file.store)
    if store or (production and checked.store):
        run(_look_at_store(checked, check_tenant(tenant)))
    _judge(checked, _host(listen))
    if as_json:
        screen.document(_as_json(checked, production=production))
    else:
        _show(screen, checked, production=production)
    broken = store and checked.schema is not None and schema_exit_code(checked.schema) != OK
    return FAILED if checked.problems or broken or (production and not checked.fit) else OK


def _show_format(screen: Screen) -> int:
    from tollhouse.runs.agent_schema import schema

    screen.document(schema())
    return OK


def _host(listen: str | None) -> str | None:
    if listen is None:
        return None
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > PORT_MOST:
        raise UsageMistake(f"--listen {listen} is not HOST:PORT.", remedy="Give for example --listen 0.0.0.0:8080.")
    return host


# -- looking -------------------------------------------------------------------------------------------------------


def _load(sources: Sequence[str], found: Draft | None) -> Checked:
    """Every source, so that one run shows everything there is to mend."""
    loaded: dict[int, Tool[Any]] = {}
    problems: list[tuple[str, TollhouseError]] = []
    if found is not None:
        importable(found.file.path.parent)
    for source in sources:
        try:
            loaded |= {id(tool): tool for tool in tools_of(source)}
        except TollhouseError as error:
            problems.append((source, error))
    tools = sorted(loaded.values(), key=lambda tool: tool.name)
    names = [tool.name for tool in tools]
    problems += [("--tools", _same_name(name)) for name in sorted(set(names)) if names.count(name) > 1]
    checked = Checked(tools, problems)
    if found is not None:
        _prove(checked, found, everything=not problems)
    return checked


def _prove(checked: Checked, found: Draft, *, everything: bool) -> None:
    """Judge the file; what its tools are called only where all of them could be loaded."""
    try:
        checked.file = found.proved({tool.name for tool in checked.tools} if everything else None)
    except AgentFileInvalid as error:
        checked.problems.append((error.file, error))


def _same_name(name: str) -> InvalidSetting:
    return InvalidSetting(f"Two tools are named {name}.", remedy="Give one of them name='...'.")


async def _look_at_store(checked: Checked, tenant: str) -> None:
    """How the ledger stands to this release; and, where it is there, whether it is durable and has keys."""
    assert checked.store is not None
    checked.schema = await check_schema(checked.store)
    if checked.schema.version is None or schema_exit_code(checked.schema) != OK:
        return
    try:
        opened = await open_store(checked.store)
    except StoreNotDurable:
        checked.store_is_volatile = True
        return
    try:
        now_us = await opened.now_us()
        checked.has_keys = any(is_current(key, now_us) for key in await KeyRing(opened, tenant).list())
    finally:
        await opened.close()


def _judge(checked: Checked, host: str | None) -> None:
    """Find the shortcuts; those about agents are cautions in any case."""
    from tollhouse.operations.production import Deployment, shortcuts

    file = checked.file
    checked.shortcuts = shortcuts(
        Deployment(
            checked.store,
            checked.tools,
            {} if file is None else file.agents,
            {} if file is None else file.endpoints,
            store_in_file=None if file is None else file.store,
            store_is_volatile=checked.store_is_volatile,
            host=host,
            has_keys=checked.has_keys,
        )
    )
    if file is None:
        return
    for shortcut in checked.shortcuts:
        if shortcut.kind == "agent":
            checked.cautions.setdefault(shortcut.about, []).append(shortcut.cause)
    book = file.book()
    for agent in file.agents.values():
        for model in (agent.model, *agent.fallback):
            if not (known := book.known(model)):
                checked.cautions.setdefault(agent.name, []).append(f"{model} cannot be asked here: {known.why}")


# -- showing -------------------------------------------------------------------------------------------------------


def _as_json(checked: Checked, *, production: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "tools": [tool_as_json(tool) for tool in checked.tools],
        "problems": [{"source": source, **error_as_json(error)} for source, error in checked.problems],
    }
    if checked.file is not None:
        from tollhouse.runs.agents import agent_as_json

        document["file"] = str(checked.file.path)
        document["agents"] = [
            {**agent_as_json(agent), "cautions": checked.cautions.get(agent.name, [])}
            for agent in checked.file.agents.values()
        ]
    if checked.store and checked.schema is not None:
        document["store"] = {"store": without_password(checked.store), **schema_as_json(checked.schema)}
    if production:
        refused = [shortcut._asdict() for shortcut in checked.shortcuts]
        document["production"] = {"fit": checked.fit, "shortcuts": refused}
    return document


def _show(screen: Screen, checked: Checked, *, production: bool) -> None:
    from tollhouse.cli.check_text import show_agents, show_shortcuts, show_tools

    show_tools(screen, checked.tools)
    agents = () if checked.file is None else tuple(checked.file.agents.values())
    show_agents(screen, agents, {tool.name: tool for tool in checked.tools}, checked.cautions)
    cautions = sum(len(tool.cautions) for tool in checked.tools) + sum(map(len, checked.cautions.values()))
    told = [count(len(checked.tools), "tool"), *([count(len(agents), "agent")] if checked.file else [])]
    told += [count(cautions, "caution"), count(checked.problem_count, "problem")]
    screen.line(f"{', '.join(told)}.")
    for _source, error in checked.problems:
        show_error(error, as_json=False)
    if checked.store and checked.schema is not None:
        screen.line()
        show_schema(screen, checked.store, checked.schema)
    if production:
        screen.line()
        show_shortcuts(screen, checked.shortcuts, fit=checked.fit)
