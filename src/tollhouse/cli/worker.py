"""``tollhouse worker``: sweeper and reconciler as a process of their own.

It holds nothing between rounds, so any number of workers may run over one ledger, and any of them may be killed. Its
log lines are on stderr; stdout has one line when it is ready, or the account of the round with ``--once``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import typer

from tollhouse.cli.failures import IN_DOUBT, OK, UsageMistake
from tollhouse.cli.ledger import run
from tollhouse.cli.logs import LOGGER
from tollhouse.cli.options import File, Json, Store, Tenant, Tools, Volatile
from tollhouse.cli.screen import Screen
from tollhouse.cli.sources import tools_from, url_of
from tollhouse.cli.words import count
from tollhouse.house import Tollhouse
from tollhouse.house.collector import seldom_collected
from tollhouse.ledger.keys import DEFAULT_TENANT
from tollhouse.ledger.record import State
from tollhouse.stores import without_password

log = logging.getLogger(LOGGER)


def worker(
    once: Annotated[bool, typer.Option("--once", help="Do one round and exit: with 3 if doubts remain.")] = False,
    tools: Tools = None,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease-s",
            metavar="SECONDS",
            envvar="TOLLHOUSE_LEASE_S",
            help="How long this process may go unheard before its calls are in doubt.",
        ),
    ] = 30.0,
    every_s: Annotated[
        float | None,
        typer.Option("--every-s", metavar="SECONDS", help="Pause between rounds; by default an eighth of the lease."),
    ] = None,
    grace_s: Annotated[
        float,
        typer.Option("--grace-s", metavar="SECONDS", help="How long stopping waits for attempts under way."),
    ] = 10.0,
    doubt_alarm_s: Annotated[
        float,
        typer.Option("--doubt-alarm-s", metavar="SECONDS", help="Age from which a doubt is logged again and again."),
    ] = 3600.0,
    health: Annotated[
        str | None,
        typer.Option("--health", metavar="HOST:PORT", help="Serve /healthz and /metrics there; port 0: a free one."),
    ] = None,
    volatile: Volatile = False,
    as_json: Json = False,
) -> int:
    """Settle doubts, expire holds and run approved calls until stopped.

    Tools are needed to ask what became of their calls and to run approved ones; without any, lost owners are still set
    aside and holds still expire. Stops gracefully at SIGINT or SIGTERM; a second signal stops it at once.
    """
    screen, url = Screen(as_json=as_json), url_of(store, file)
    if health is not None and once:
        raise UsageMistake("--once serves nothing.", remedy="Leave out --once or --health.")
    opening = Tollhouse.open(
        url,
        tools=tools_from(tools, file),
        tenant=tenant,
        lease_s=lease_s,
        every_s=every_s,
        grace_s=grace_s,
        doubt_alarm_s=doubt_alarm_s,
        volatile=volatile,
        background=not once,
    )

    async def work() -> int:
        async with opening as house:
            if once:
                return await _one_round(house, screen)
            async with _served(house, url, tenant, health) as place:
                with seldom_collected():
                    return await _until_stopped(house, screen, url, tenant, place)

    return run(work(), level=logging.INFO, as_json=as_json)


async def _one_round(house: Tollhouse, screen: Screen) -> int:
    await house.services.adopt_old_doubts()
    looked_at = await house.services.round()
    states = await house.count()
    contradicted = len([call async for call in house.list(contradicted=True, limit=None)])
    account = {
        "looked_at": looked_at,
        "in_doubt": states[State.IN_DOUBT],
        "held": states[State.HELD],
        "contradicted": contradicted,
    }
    _say(screen, account, f"Looked at {count(looked_at, 'call')}; {_left(account)}.")
    return IN_DOUBT if account["in_doubt"] or contradicted else OK


@contextlib.asynccontextmanager
async def _served(house: Tollhouse, url: str, tenant: str, place: str | None) -> AsyncIterator[str | None]:
    """Serve the health of this worker where that was asked for."""
    if place is None:
        yield None
        return
    from tollhouse.operations.health import serving

    async with serving(house, url, tenant, place) as address:
        yield address


async def _until_stopped(house: Tollhouse, screen: Screen, url: str, tenant: str, health: str | None) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await _ready(house, screen, url, tenant, health)
    await stopped.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    _log("worker_stopping", pid=os.getpid())
    return OK


async def _ready(house: Tollhouse, screen: Screen, url: str, tenant: str, health: str | None) -> None:
    states = await house.count()
    names = [tool.name for tool in house.tools]
    facts: dict[str, Any] = {
        "event": "worker_ready",
        "store": without_password(url),
        "tenant": tenant,
        "tools": names,
        "pid": os.getpid(),
        "in_doubt": states[State.IN_DOUBT],
        "held": states[State.HELD],
        "health": health,
    }
    has = f"{count(len(names), 'tool')} ({', '.join(names)})" if names else "no tools"
    text = f"Worker ready: {facts['store']}, tenant {tenant}, {has}; {_left(facts)}."
    if health is not None:
        text += f" Health at http://{health}/healthz, metrics at /metrics."
    _say(screen, facts, text, indent=None)


def _left(facts: Mapping[str, Any]) -> str:
    words = [f"{facts[name]} {name}" for name in ("in_doubt", "held", "contradicted") if name in facts]
    return ", ".join(words)


def _say(screen: Screen, facts: Mapping[str, Any], text: str, *, indent: int | None = 2) -> None:
    """Said at once: whoever started the worker waits for it."""
    if screen.as_json:
        screen.document(facts, indent=indent)
    else:
        screen.line(text)
        screen.flush()


def _log(event: str, **fields: Any) -> None:
    log.info("%s %s", event, " ".join(f"{k}={v}" for k, v in fields.items()), extra={"tollhouse": fields})
