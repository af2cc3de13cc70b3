"""Opening and closing a house: the store, the lease, the tools with those that undo them, the services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, cast

from tollhouse.contract.tool import Tool
from tollhouse.doubt.compensation import compensating_tool
from tollhouse.errors import InvalidSetting
from tollhouse.gate.approval import ApprovalCheck
from tollhouse.gate.core import Core, Toolbox
from tollhouse.gate.threads import ThreadPool
from tollhouse.gate.view import RecordedCall
from tollhouse.house.house import Tollhouse
from tollhouse.ledger.clock import StoreClock, boot_us
from tollhouse.ledger.ids import Prefix, SystemIds
from tollhouse.ledger.lease import LeaseKeeper, check_lease
from tollhouse.ledger.store import Store
from tollhouse.runs.lineage import RunCheck
from tollhouse.settings import HouseSettings
from tollhouse.stores import open_store


class Opening:
    """A house about to be opened: ``async with Tollhouse.open(...) as house``, or ``await`` it and close it."""

    def __init__(self, url: str, settings: HouseSettings) -> None:
        self._url, self._settings = url, settings
        self._house: Tollhouse | None = None

    def __await__(self) -> Generator[Any, None, Tollhouse]:
        return open_house(self._url, self._settings).__await__()

    async def __aenter__(self) -> Tollhouse:
        self._house = await open_house(self._url, self._settings)
        return self._house

    async def __aexit__(self, *_exc: object) -> None:
        assert self._house is not None
        await self._house.close()


async def open_house(url: str, settings: HouseSettings) -> Tollhouse:
    """Open the store at ``url`` and the house over it."""
    return await open_house_over(
        lambda: open_store(url, volatile=settings.volatile, busy_timeout_s=settings.store_wait_s), settings
    )


async def open_house_over(
    opened: Callable[[], Awaitable[Store]], settings: HouseSettings, local_us: Callable[[], int] = boot_us
) -> Tollhouse:
    """Open the store by ``opened``, take the lease, start the services. The house closes the store in the end.

    ``local_us``: this process's own clock, for tests that let time pass.
    """
    check_lease(settings.lease_s, settings.renew_every_s)
    holder: dict[str, Tollhouse] = {}

    async def load(key: str) -> RecordedCall:
        return await holder["house"].get(key)

    toolbox = Toolbox(_with_compensations(settings.tools, load))
    store = await opened()
    try:
        core = await _core(store, toolbox, settings, local_us)
    except BaseException:
        await store.close()
        raise
    house = holder["house"] = Tollhouse(core, settings)
    if settings.background:
        house.services.start()
    return house


async def _core(store: Store, toolbox: Toolbox, settings: HouseSettings, local_us: Callable[[], int]) -> Core:
    clock, ids = StoreClock(local_us), SystemIds()
    told: dict[str, Core] = {}

    def new_incarnation(old: str, new: str) -> None:
        told["core"].tell("owner_renewed", old=old, new=new)

    keeper = LeaseKeeper(
        store.lease_connection,
        settings.tenant,
        lambda: ids.new(Prefix.OWNER),
        clock,
        lease_s=settings.lease_s,
        renew_every_s=settings.renew_every_s,
        on_new_incarnation=new_incarnation,
    )
    core = told["core"] = Core(
        store=store,
        tenant=settings.tenant,
        principal=settings.principal,
        tools=toolbox,
        clock=clock,
        ids=ids,
        keeper=keeper,
        gates=(*settings.gates, RunCheck(store), ApprovalCheck()),
        ceilings=settings.ceilings,
        on_event=settings.on_event,
        threads=ThreadPool(settings.threads),
        secrets=settings.secrets or (lambda _tool: {}),
    )
    if any(each.is_async and each.schema.context_parameter is not None for each in toolbox.all()):
        await asyncio.to_thread(core.prepare_http)
    await asyncio.to_thread(keeper.start)
    return core


def _with_compensations(
    tools: Iterable[Tool[Any]], load: Callable[[str], Awaitable[RecordedCall]]
) -> dict[str, Tool[Any]]:
    """All tools by name, with those that undo them. Raises :class:`InvalidSetting` for two of one name."""
    named: dict[str, Tool[Any]] = {}
    given = list(tools)
    for each in given:
        if not isinstance(cast(object, each), Tool):
            raise InvalidSetting(f"{each!r} is no tool.", remedy="Decorate the function with @tool(...).")
        if named.get(each.name, each) is not each:
            raise InvalidSetting(f"Two tools are named {each.name}.", remedy="Give one of them name='...'.")
        named[each.name] = each
    for each in given:
        if (undo := compensating_tool(each, load)) is not None:
            named.setdefault(undo.name, undo)
    return named
