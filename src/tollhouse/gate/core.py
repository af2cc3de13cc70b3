"""What the gate and the services of doubt share: the store, the clock, the lease, the tools, threads and listeners.

One per opened house. Holds no rule of its own; it is where things live that must exist once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from tollhouse.contract.terms import Terms
from tollhouse.contract.tool import Tool
from tollhouse.gate import http
from tollhouse.gate.context import Context
from tollhouse.gate.threads import ThreadPool
from tollhouse.gate.verdicts import Check
from tollhouse.ledger.clock import StoreClock
from tollhouse.ledger.ids import Ids
from tollhouse.ledger.lease import LeaseKeeper
from tollhouse.ledger.record import CallRecord, Limits
from tollhouse.ledger.store import Fence, Store

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("tollhouse")

NEVER_STARTED_MOST = 100_000

NEW_NAME_S = 5.0
"""How long a call waits for the lease keeper, which needs a round trip to a store that may just have come back."""
NAME_POLL_S = 0.02

Listener = Callable[[str, Mapping[str, Any]], None]
"""``on_event(kind, facts)``: called on the house's loop for every doubt that appears, ages or is contradicted, and for
requests refused without a row. Must return quickly; what it raises is logged."""


def failed(kind: str, error: BaseException, **facts: str) -> None:
    """Log that code of the user's raised: what and where, but no message, which may hold arguments."""
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in walk_tb(error.__traceback__)]
    log.error("%s error_type=%s at=%s", kind, type(error).__name__, lines[-1] if lines else "?", extra=facts)


class Toolbox:
    """The tools a house has, by name: the capability allowlist."""

    def __init__(self, tools: Mapping[str, Tool[Any]]) -> None:
        self._tools = dict(tools)

    def get(self, name: str) -> Tool[Any] | None:
        return self._tools.get(name)

    def names(self) -> list[str]:
        return sorted(self._tools)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def all(self) -> list[Tool[Any]]:
        return [self._tools[name] for name in self.names()]


class Core:
    """See the module's docstring. ``ceilings``: the house's own limits; they tighten every contract."""

    def __init__(
        self,
        *,
        store: Store,
        tenant: str,
        principal: str,
        tools: Toolbox,
        clock: StoreClock,
        ids: Ids,
        keeper: LeaseKeeper,
        gates: tuple[Check, ...] = (),
        ceilings: Mapping[str, float] | None = None,
        on_event: Listener | None = None,
        threads: ThreadPool | None = None,
        secrets: Callable[[str], Mapping[str, str]] = lambda _tool: {},
    ) -> None:
        self.store, self.tenant, self.principal = store, tenant, principal
        self.tools, self.clock, self.ids, self.keeper = tools, clock, ids, keeper
        self.local_us = clock.local_us
        self.gates = gates
        self.shows_arguments = any(getattr(gate, "sees_arguments", True) for gate in gates)
        """Whether any gate looks at arguments, which then are not the objects that the tool gets."""
        self.ceilings: Mapping[str, float] = ceilings or {}
        self.threads = threads or ThreadPool()
        self.secrets = secrets
        self.running: dict[str, Context] = {}
        """Attempts of this process that are under way, by attempt id."""
        self.beginning: set[str] = set()
        """Attempts whose first commit is under way: not running yet, and no leftovers either."""
        self.never_started: dict[str, None] = {}
        """Attempts whose commit 1 was not acknowledged: they sent nothing, whatever the store holds."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.closed = False
        self.left = False
        """The house is gone: no attempt begins any more, whatever the store says of its commit."""
        self._on_event = on_event
        self._transport: httpx2.AsyncHTTPTransport | None = None
        self._transport_sync: httpx2.HTTPTransport | None = None
        self._settled: dict[str, list[asyncio.Future[None]]] = {}
        self._limits: dict[str, Limits] = {}

    # -- owner and time ----------------------------------------------------------------------------------

    @property
    def owner_id(self) -> str:
        assert self.keeper.current is not None
        return self.keeper.current.owner_id

    @property
    def restored_at_us(self) -> int | None:
        """Since when the ledger is marked as restored. Read after :attr:`owner_id` it is no older than that lease."""
        assert self.keeper.current is not None
        return self.keeper.current.restored_at_us

    def to_local_us(self, store_us: int) -> int:
        return self.clock.to_local_us(store_us)

    def lease_until_local_us(self, owner_id: str) -> int:
        """The end of that owner's lease; long ago for an earlier incarnation of this process."""
        lease = self.keeper.current
        return lease.until_local_us if lease is not None and lease.owner_id == owner_id else 0

    async def new_incarnation(self, lost_owner: str) -> None:
        """Wait until this process, taken for lost under that name, has another; for :data:`NEW_NAME_S` at most."""
        loop = asyncio.get_running_loop()
        until = loop.time() + NEW_NAME_S
        while self.owner_id == lost_owner and loop.time() < until:  # noqa: ASYNC110 - a thread sets it, not the loop
            await asyncio.sleep(NAME_POLL_S)

    async def read_fence(self, tenant: str, key: str) -> Fence | None:
        return await self.store.fence(tenant, key)

    def is_at(self, attempt_id: str) -> bool:
        """Whether this process is running that attempt, or about to."""
        return attempt_id in self.running or attempt_id in self.beginning

    def note_never_started(self, attempt_id: str) -> None:
        """Remember an attempt that sent nothing. Beyond the bound the oldest are forgotten: they count as unknown."""
        self.never_started[attempt_id] = None
        if len(self.never_started) > NEVER_STARTED_MOST:
            del self.never_started[next(iter(self.never_started))]

    # -- tasks of the house ------------------------------------------------------------------------------

    def spawn(self, coroutine: Any) -> None:
        """Run in a task that belongs to the house: no caller's cancel reaches it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failed("house_task_failed", error)

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, kind: str, **facts: Any) -> None:
        """One log line with stable fields, and the listener. Never raises."""
        fields = {"tenant": self.tenant, **facts}
        level = logging.WARNING if kind.startswith(("doubt_appeared", "doubt_aged", "contradiction")) else logging.INFO
        with suppress(Exception):  # a handler of somebody's logging may raise, too
            line = " ".join(f"{k}={_on_one_line(v)}" for k, v in fields.items())
            log.log(level, "%s %s", kind, line, extra={"tollhouse": fields})
        if self._on_event is None:
            return
        try:
            self._on_event(kind, fields)
        except Exception:
            with suppress(Exception):
                log.exception("on_event raised")

    def tell_of(self, before: CallRecord | None, record: CallRecord) -> None:
        """Say what everybody must hear about: a doubt that appeared or ended, a contradiction, a hold."""
        self.wake(record.key)
        was = before.state if before is not None else None
        if record.state != was and record.state in _TOLD:
            self.tell(_TOLD[record.state], key=record.key, tool=record.tool, state=record.state.value)
        elif was == "in_doubt" and record.state != was:
            self.tell("doubt_settled", key=record.key, tool=record.tool, state=record.state.value)
        if record.contradicted and not (before is not None and before.contradicted):
            self.tell("contradiction_opened", key=record.key, tool=record.tool, state=record.state.value)

    # -- waiting -----------------------------------------------------------------------------------------

    def wake(self, key: str) -> None:
        """Wake those of this process who wait for that call. A hint: they read the store."""
        for future in self._settled.pop(key, ()):
            if not future.done():
                future.set_result(None)

    async def moved(self, key: str, most_s: float) -> None:
        """Return when the call moved here, or after ``most_s`` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled.setdefault(key, []).append(future)
        try:
            await asyncio.wait_for(future, most_s)
        except TimeoutError:
            pass
        finally:
            waiting = self._settled.get(key, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._settled.pop(key, None)

    # -- sending -----------------------------------------------------------------------------------------

    def prepare_http(self) -> None:
        """Import the client and make its connections ready, in a thread: a first attempt has no time to lose on it."""
        self._transport = http.shared_transport()

    def http_client(self, context: Context) -> httpx2.AsyncClient:
        if self._transport is None:
            self._transport = http.shared_transport()
        return http.client(self._transport, context)

    def http_client_sync(self, context: Context) -> httpx2.Client:
        if self._transport_sync is None:
            self._transport_sync = http.shared_transport_sync()
        return http.client_sync(self._transport_sync, context)

    async def close_connections(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
        if self._transport_sync is not None:
            self._transport_sync.close()

    def limits(self, terms: Terms, asked: Mapping[str, float | None] | None = None) -> Limits:
        """The contract's times, tightened by the house's and the call's. Never loosened."""
        if asked is not None:
            return self._tightened(terms, asked)
        known = self._limits.get(terms.version)
        if known is None:
            known = self._limits[terms.version] = self._tightened(terms, {})
        return known

    def _tightened(self, terms: Terms, asked: Mapping[str, float | None]) -> Limits:
        chosen = {}
        for name in ("max_attempts", "attempt_timeout_s", "deadline_s"):
            values = [getattr(terms, name), self.ceilings.get(name), asked.get(name)]
            chosen[name] = min(value for value in values if value is not None)
        return Limits(
            max_attempts=int(chosen["max_attempts"]),
            attempt_timeout_s=min(chosen["attempt_timeout_s"], chosen["deadline_s"]),
            deadline_s=chosen["deadline_s"],
        )


def _on_one_line(value: Any) -> str:
    """A value as a log line shows it: callers name tools, and no name may look like another line."""
    text = str(value)
    return text if text.isprintable() else ascii(text)[1:-1]


_TOLD = {"in_doubt": "doubt_appeared", "held": "call_held"}
