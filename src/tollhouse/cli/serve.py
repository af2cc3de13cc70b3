"""``tollhouse serve``: one process that drives runs, settles doubts and answers over HTTP.

Without an agents' file it serves a sample: agents with scripted models, and the demo's tools against a billing service
in a process of its own, so that everything can be tried without a key or a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollhouse.cli.failures import OK, UsageMistake
from tollhouse.cli.loading import load_tools
from tollhouse.cli.logs import LOGGER, logging_to_stderr
from tollhouse.cli.next_steps import Place
from tollhouse.cli.options import DEFAULT_FILE, File, Json, Store, Tenant, Tools, Volatile, named_tools
from tollhouse.cli.runtime import Runtime, opened
from tollhouse.cli.screen import Screen
from tollhouse.cli.sources import agents_file, tools_of_file
from tollhouse.cli.words import count
from tollhouse.errors import ExtraMissing
from tollhouse.house.collector import seldom_collected
from tollhouse.ledger.keys import DEFAULT_TENANT
from tollhouse.stores import without_password

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tollhouse.runs.agent_files import Draft
    from tollhouse.runs.proof.anchors import Anchors

log = logging.getLogger(LOGGER)

DEFAULT_PORT = 8787
DEFAULT_STORE = "sqlite:///tollhouse.db"
SAMPLE_FILE = Path(__file__).parent.parent / "demo" / "sample.yaml"
SAMPLE_AGENT, SAMPLE_INPUT = "refunds", "Give the customer of order 1001 the money back."


def serve(
    tools: Tools = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", envvar="TOLLHOUSE_LISTEN", help="Where to answer.")
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    driver: Annotated[
        str,
        typer.Option(
            "--driver", metavar="NAME", envvar="TOLLHOUSE_DRIVER", help="Who drives runs: local, temporal, or none."
        ),
    ] = "local",
    temporal: Annotated[
        str,
        typer.Option("--temporal", metavar="HOST:PORT", envvar="TOLLHOUSE_TEMPORAL", help="The Temporal server."),
    ] = "127.0.0.1:7233",
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease-s",
            metavar="SECONDS",
            envvar="TOLLHOUSE_LEASE_S",
            help="How long this process may go unheard before others take its work over.",
        ),
    ] = 10.0,
    grace_s: Annotated[
        float,
        typer.Option("--grace-s", metavar="SECONDS", min=0, help="How long stopping waits for what is under way."),
    ] = 10.0,
    volatile: Volatile = False,
    as_json: Json = False,
) -> int:
    """Drive runs of agents, settle doubts and answer over HTTP.

    Agents, tools and the ledger are those of tollhouse.yaml. Where there is none, the tools that are named are
    served without agents, and where none are named a sample. Runs until SIGINT or SIGTERM: what is under way gets
    --grace-s, the rest is handed over; a second signal stops it at once.
    """
    screen, began_s = Screen(as_json=as_json), time.monotonic()
    host, port = _address(listen)
    _require_server()
    named, sample = named_tools(tools), False
    found = agents_file(file)
    if found is None:
        sample = not named
        found = _without_file(sample)
    url = store or found.file.store or DEFAULT_STORE
    named_by_file = store is None and found.file.store is not None
    place = Place(None if named_by_file else url, tenant, None if sample else str(found.file.path))
    settings = {"tenant": tenant, "lease_s": lease_s, "grace_s": grace_s, "volatile": volatile}

    async def work() -> int:
        stopping = asyncio.Event()
        with _sample_billing(url) if sample else contextlib.nullcontext():
            offered = load_tools(named) if named else tools_of_file(found)
            async with (
                opened(found, url, offered, anchors=_anchors(url), **settings) as runtime,
                _driven(runtime, driver, temporal, stopping, lease_s=lease_s, grace_s=grace_s) as drives,
            ):
                app = await _app(runtime, drives, host)
                from tollhouse.api.server import serving

                async with serving(app, host, port, grace_s=grace_s) as address:
                    if sample:
                        await _start_sample(runtime)
                    _ready(screen, runtime, place, url, address, sample, began_s)
                    with seldom_collected():
                        await _until_stopped(stopping)
        return OK

    return _run(work(), as_json=as_json)


def _without_file(sample: bool) -> Draft:
    """The sample's agents; or none at all, where tools are named and only calls are to be answered."""
    from tollhouse.runs.agent_files import AgentsFile, Draft, draft
    from tollhouse.runs.yaml_reader import Document

    return draft(SAMPLE_FILE) if sample else Draft(AgentsFile(Path(DEFAULT_FILE)), Document(), ())


def _run(work: Any, *, as_json: bool) -> int:
    from tollhouse.api.server import run as run_fast

    with logging_to_stderr(logging.WARNING if not as_json else logging.INFO, as_json=as_json):
        code: int = run_fast(work)
        return code


def _address(listen: str) -> tuple[str, int]:
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65_535:
        raise UsageMistake(
            f"--listen {listen} is not HOST:PORT.", remedy="Give for example 127.0.0.1:8787; port 0: any."
        )
    return host.strip("[]"), int(port)


def _require_server() -> None:
    try:
        import fastapi  # noqa: F401
        import ruamel.yaml  # noqa: F401
    except ImportError:
        cause = "Serving needs packages that the base install leaves out."
        raise ExtraMissing(cause, remedy="Run pip install 'tollhouse[server]'.") from None


# -- what is served ------------------------------------------------------------------------------------------------


async def _app(runtime: Runtime, driver: Any, host: str) -> FastAPI:
    """The API; without keys it answers to the names of loopback, and to the one that it was told to listen at."""
    from tollhouse.api.app import create_app
    from tollhouse.api.auth import access_of
    from tollhouse.api.guard import LOOPBACK

    access = await access_of(runtime.house)
    hosts = {*LOOPBACK, host} if access.open else None
    probes = {} if driver is None else {"driver": driver.is_well}
    return create_app(runtime.house, runs=runtime.runs, access=access, hosts=hosts, probes=probes)


def _anchors(url: str) -> Anchors:
    """Where the heads of all chains are written down, outside the ledger. The first start makes the signing key."""
    from tollhouse.runs.proof.anchors import Anchors, anchors_file
    from tollhouse.runs.proof.keys import home_of, open_signer

    home = home_of(url)
    return Anchors(anchors_file(home, url), open_signer(home))


@contextlib.asynccontextmanager
async def _driven(
    runtime: Runtime, name: str, temporal: str, stopping: asyncio.Event, *, lease_s: float, grace_s: float
) -> AsyncIterator[Any]:
    """The driver that was asked for, at work until it is ``stopping``; None: other processes drive."""
    if name == "none":
        yield None
        return
    driver = await _driver_of(runtime, name, temporal, lease_s)
    driver.start()
    handing_over = asyncio.create_task(_hand_over(driver, stopping, grace_s))
    try:
        yield driver
    finally:
        stopping.set()
        await handing_over


async def _hand_over(driver: Any, stopping: asyncio.Event, grace_s: float) -> None:
    """From the first signal on, whatever the requests that are under way still take."""
    await stopping.wait()
    await driver.stop(grace_s)


async def _driver_of(runtime: Runtime, name: str, temporal: str, lease_s: float) -> Any:
    agents = tuple(runtime.file.agents)
    if name == "local":
        from tollhouse.runs.drivers.local import LocalDriver

        return LocalDriver(runtime.runs, agents=agents)
    if name != "temporal":
        raise UsageMistake(f"There is no driver {name!r}.", remedy="Give --driver local, temporal or none.")
    from tollhouse.runs.drivers.temporal import TemporalDriver

    return await TemporalDriver.connect(runtime.runs, temporal, agents=agents, heartbeat_s=lease_s)


# -- the sample ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _sample_billing(url: str) -> Iterator[None]:
    """The billing service that the sample's tools send to, with its book beside the ledger."""
    from tollhouse.demo.tools import BILLING_VARIABLE
    from tollhouse.testing.receiver import Receiver

    name = url.removeprefix("sqlite:///")
    book = Path(f"{name}.sample-book") if name != url else Path("tollhouse.sample-book")
    with Receiver.start(book.absolute()) as receiver:
        os.environ[BILLING_VARIABLE] = receiver.url
        yield


async def _start_sample(runtime: Runtime) -> None:
    """One run, so that there is something to look at; a second start of the server finds it there."""
    await runtime.runs.start(SAMPLE_AGENT, SAMPLE_INPUT, by=runtime.house.principal, key="sample-1")


# -- telling -------------------------------------------------------------------------------------------------------


def _ready(
    screen: Screen, runtime: Runtime, place: Place, url: str, address: str, sample: bool, began_s: float
) -> None:
    took_s = time.monotonic() - began_s
    facts = {
        "event": "serve_ready",
        "url": address,
        "store": without_password(url),
        "tenant": runtime.house.tenant,
        "agents": sorted(runtime.file.agents),
        "tools": [tool.name for tool in runtime.house.tools],
        "pid": os.getpid(),
        "took_s": round(took_s, 3),
        "sample": sample,
    }
    if screen.as_json:
        screen.document(facts, indent=None)
    else:
        _say(screen, facts, place.tail)
    screen.flush()


def _say(screen: Screen, facts: dict[str, Any], here: str) -> None:
    agents, store = facts["agents"], facts["store"]
    screen.line(f"Tollhouse serves at {facts['url']} (ready after {facts['took_s']:.1f} s)", "bold")
    has = (
        f"{count(len(agents), 'agent')}: {', '.join(agents)}"
        if agents
        else f"no agents, {count(len(facts['tools']), 'tool')}"
    )
    screen.line(f"The ledger is {store}; {has}.")
    if facts["sample"]:
        screen.line("There is no tollhouse.yaml here, so this is the sample: scripted models, and a real billing")
        screen.line("service in a process of its own. At its first start it is asked for a refund.")
    screen.heading("Where to look")
    screen.command(f"tollhouse runs list{here}")
    screen.command(f"tollhouse calls list{here}")
    screen.command(f"curl {facts['url']}/v1/runs")
    screen.command(f"curl {facts['url']}/readyz")
    if facts["sample"]:
        screen.heading("Have it ask for an approval")
        screen.command(f"tollhouse runs start closing 'Close account a-7.' --by you{here} --file {SAMPLE_FILE}")
    screen.line()
    screen.line("Ctrl-C stops it; runs that are under way go on at the next start.", "dim")


async def _until_stopped(stopping: asyncio.Event) -> None:
    """Return at the first signal, which sets the event; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    await stopping.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    log.info("serve_stopping", extra={"tollhouse": {"pid": os.getpid()}})
