"""The house: the public face of the gate, the doubt services and the ledger, opened over one store for one tenant."""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from tollhouse.contract.answers import Answer
from tollhouse.contract.tool import Tool
from tollhouse.doubt.callbacks import report
from tollhouse.doubt.compensation import Compensator
from tollhouse.doubt.people import People
from tollhouse.doubt.reconciler import Reconciler
from tollhouse.doubt.services import Services
from tollhouse.doubt.sweeper import Sweeper
from tollhouse.errors import HouseClosed, InvalidSetting, UnknownCall
from tollhouse.gate.core import Core
from tollhouse.gate.gate import Gate
from tollhouse.gate.outcome import Outcome, error_of
from tollhouse.gate.request import Options
from tollhouse.gate.view import RecordedCall
from tollhouse.house.listing import Listing, seen
from tollhouse.ledger.keys import check_key
from tollhouse.ledger.process import pid
from tollhouse.ledger.record import SETTLED, CallRecord, State
from tollhouse.ledger.store import Query, Store
from tollhouse.settings import HouseSettings, settings_of

if TYPE_CHECKING:
    from tollhouse.house.opening import Opening
    from tollhouse.house.sync import SyncTollhouse

R = TypeVar("R")

PAGE = 100
CROSSED_FORK = "This house was opened in another process; a handle does not cross a fork."
DRAIN_POLL_S = 0.02
STOP_S = 2.0
"""How long closing waits for what it has stopped."""


class CallOptions(TypedDict, total=False):
    """The options of :meth:`Tollhouse.call`, for signatures; what each means is said there."""

    by: str | None
    scope: str | None
    group: str | None
    wait: bool
    run_when_approved: bool | None
    max_attempts: int | None
    attempt_timeout_s: float | None
    deadline_s: float | None


class Tollhouse:
    """An opened house. Make one with :meth:`open` or :meth:`open_sync`; close it by leaving its ``with`` block.

    One per process and store is enough: calls from any number of tasks share its commits. It belongs to the event loop
    it was opened on. Every method that takes a key raises :class:`InvalidKey` or :class:`UnknownCall`; every method may
    raise :class:`StoreUnavailable`.
    """

    def __init__(self, core: Core, settings: HouseSettings) -> None:
        self._core, self._settings = core, settings
        self._reconciler = Reconciler(core, doubt_alarm_s=settings.doubt_alarm_s)
        visible = settings.visible or (lambda _principal, _tool: True)
        self._gate = Gate(core, self._reconciler.settle_first, visible)
        self._reconciler.gate = self._gate
        self._gate.look_up = self._reconciler.look_up
        self._people = People(core)
        self._compensator = Compensator(core, self._gate)
        sweeper = Sweeper(core, settings.lease_s)
        self.services = Services(core, self._reconciler, sweeper, every_s=settings.round_every_s)
        self._pid = pid()
        self._closing: asyncio.Task[None] | None = None

    # -- opening and closing -----------------------------------------------------------------------------

    @staticmethod
    def open(store: str, **settings: Any) -> Opening:
        """Open a house over ``store`` (``sqlite:///file.db`` or ``postgresql://…``), to be used with ``async with``.

        ``settings`` are those of :class:`HouseSettings`. An empty store is set up. Raises :class:`InvalidSetting`,
        :class:`StoreURLInvalid`, :class:`StoreNotDurable`, :class:`StoreSchema` or :class:`StoreUnavailable`.
        """
        from tollhouse.house.opening import Opening

        return Opening(store, settings_of(settings))

    @staticmethod
    def open_sync(store: str, **settings: Any) -> SyncTollhouse:
        """The same without ``await``: ``with Tollhouse.open_sync(...) as house``. Safe to use from any thread."""
        from tollhouse.house.sync import SyncTollhouse

        return SyncTollhouse(store, settings_of(settings))

    async def close(self) -> None:
        """Refuse new calls, wait ``grace_s`` for attempts under way, stop the rest (*unknown*), give up the lease.

        Cancelling it ends the wait only: the house closes all the same.
        """
        if pid() != self._pid:
            self._core.closed = True  # a forked child: everything in here is its parent's
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        core = self._core
        try:
            await self.services.stop()
            core.closed = True
            await _drain(core, self._settings.grace_s)
            await self.services.leave(STOP_S)
        finally:  # also where the whole loop ends: a lease that goes on would keep its calls from everybody
            core.closed = core.left = True
            await asyncio.to_thread(core.keeper.stop, end=not core.running)
            core.threads.close()
            await core.close_connections()
            await core.store.close()

    # -- calling -----------------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        tool: Tool[R],
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Outcome[R]: ...

    @overload
    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Outcome[Any]: ...

    async def call(
        self,
        tool: Tool[Any] | str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        by: str | None = None,
        scope: str | None = None,
        group: str | None = None,
        wait: bool = True,
        run_when_approved: bool | None = None,
        max_attempts: int | None = None,
        attempt_timeout_s: float | None = None,
        deadline_s: float | None = None,
    ) -> Outcome[Any]:
        """Pass one call through the gate.

        ``key``: who this call is, required but for reads; the same key again replays or waits, it never sends twice.
        ``by``: who asks (default: the house's principal). ``scope``: where a repeat by a model is looked for;
        ``group``: siblings that are no repeats of each other. ``wait`` False: raise :class:`CallInFlight` at once
        instead of waiting for another caller's attempt. Limits tighten the contract only.

        On return the outcome is durable, in state ``succeeded`` or ``accepted``. Otherwise raises :class:`InDoubt`,
        :class:`Held`, :class:`Refused`, :class:`CallFailed`, :class:`CallNotSent`, :class:`CallInFlight`,
        :class:`CallConflict`, :class:`Contradicted`, :class:`Compensated`, :class:`ResultPurged`,
        :class:`InvalidArguments`, :class:`InvalidKey`, :class:`UnknownTool` or :class:`StoreUnavailable`; ``.sent``
        says whether anything left, and the tool's own exception is ``__cause__``. Cancelling ends the wait only.
        """
        self._check_open()
        options = Options(
            by=by,
            scope=scope,
            group=group,
            wait=wait,
            run_when_approved=self._settings.run_when_approved if run_when_approved is None else run_when_approved,
            max_attempts=max_attempts,
            attempt_timeout_s=attempt_timeout_s,
            deadline_s=deadline_s,
        )
        return await self._gate.call(tool, arguments if arguments is not None else {}, key, options)

    # -- looking -----------------------------------------------------------------------------------------

    async def get(self, key: str) -> RecordedCall:
        """The recorded call with its history."""
        return await self._view(await self._record(key), with_history=True)

    def list(
        self,
        *,
        state: State | str | None = None,
        tool: str | None = None,
        scope: str | None = None,
        contradicted: bool | None = None,
        limit: int | None = PAGE,
        before: tuple[int, str] | None = None,
    ) -> Listing:
        """Recorded calls, newest first: ``await`` it for a list, or ``async for`` over it. ``limit`` None: all.

        ``before``: (``raw.created_at_us``, key) of the last call seen; the list goes on after it.
        """
        self._check_open()
        wanted = None if state is None else _state(state)
        query = Query(wanted, tool, scope, contradicted, PAGE if limit is None else min(limit or 1, PAGE), before)
        return Listing(self._core, query, limit)

    async def count(self) -> dict[State, int]:
        """How many calls stand in each state."""
        self._check_open()
        counted = await self._core.store.count(self._core.tenant)
        return {state: counted.get(state, 0) for state in State}

    async def wait(self, key: str, *, timeout_s: float | None = None) -> RecordedCall:
        """Wait until the call is settled, by whoever and in whatever process. ``timeout_s`` None: for ever.

        After ``timeout_s`` raises what its state means (:class:`Held`, :class:`InDoubt`, :class:`CallInFlight`, ...):
        that is no denial, and the call goes on.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        pause_s = 0.02
        while True:
            record = await self._record(key)
            if record.state in SETTLED:
                return await self._view(record, with_history=True)
            left_s = 1.0 if until is None else until - loop.time()
            if left_s <= 0:
                raise error_of(record)
            await self._core.moved(key, min(left_s, pause_s * (0.75 + random.random() / 2)))
            pause_s = min(1.0, pause_s * 2)

    # -- settling ----------------------------------------------------------------------------------------

    async def reconcile(self, key: str) -> RecordedCall:
        """Ask the tool's look-up now, and send again where the receiver recognises the key. Returns what came of it."""
        return await self._view(await self._reconciler.reconcile(await self._record(key)))

    async def resolve(
        self, key: str, answer: Answer, *, reason: str, by: str, force: bool = False, version: int | None = None
    ) -> RecordedCall:
        """Settle a doubt by name: ``happened(value)`` or ``did_not_happen(evidence)``.

        ``force`` is needed while an attempt may still be running, and sets it aside. ``version``: what was shown; a
        call that changed since raises :class:`DecisionConflict`, naming who decided what. :class:`NotAllowed` where the
        state allows no resolution, :class:`NotEntitled` without a name.
        """
        self._check_open()
        return await self._view(
            await self._people.resolve(key, answer, reason=reason, by=by, force=force, version=version)
        )

    async def report(self, key: str, answer: Answer, *, reference: str) -> RecordedCall:
        """The receiver's callback about accepted long work. ``reference`` must be the one it was accepted under."""
        self._check_open()
        return await self._view(await report(self._core, check_key(key), answer, reference))

    async def approve(
        self, key: str, *, by: str, reason: str | None = None, version: int | None = None, digest: str | None = None
    ) -> RecordedCall:
        """One person's yes to a held call; at the quorum it is ready. Never the requester (:class:`NotEntitled`)."""
        self._check_open()
        return await self._view(await self._people.approve(key, by=by, reason=reason, version=version, digest=digest))

    async def deny(self, key: str, *, by: str, reason: str, version: int | None = None) -> RecordedCall:
        """One person's no to a call that is held or ready: it is refused."""
        self._check_open()
        return await self._view(await self._people.deny(key, by=by, reason=reason, version=version))

    async def edit(
        self, key: str, arguments: Mapping[str, Any], *, by: str, reason: str | None = None, version: int | None = None
    ) -> RecordedCall:
        """Replace the arguments of a held call; votes given so far become void, and the difference is on record."""
        self._check_open()
        return await self._view(await self._people.edit(key, arguments, by=by, reason=reason, version=version))

    async def retry(self, key: str, *, by: str, reason: str, version: int | None = None) -> RecordedCall:
        """A new round of a failed or refused call: ready, or held where approval is required. Sends nothing itself."""
        self._check_open()
        return await self._view(await self._people.retry(key, by=by, reason=reason, version=version))

    async def cancel(self, key: str, *, by: str, reason: str | None = None) -> RecordedCall:
        """Refuse what has not left; where something has, forbid that it is sent again."""
        self._check_open()
        return await self._view(await self._people.cancel(key, by=by, reason=reason))

    async def overturn(
        self, key: str, *, by: str, reason: str, evidence: Any = None, version: int | None = None
    ) -> RecordedCall:
        """Reverse a settlement: to *succeeded* on a recorded effect, to *failed* where no result ever came back."""
        self._check_open()
        return await self._view(
            await self._people.overturn(key, by=by, reason=reason, evidence=evidence, version=version)
        )

    async def uphold(self, key: str, *, by: str, reason: str, version: int | None = None) -> RecordedCall:
        """Confirm a settlement in view of what contradicts it."""
        self._check_open()
        return await self._view(await self._people.uphold(key, by=by, reason=reason, version=version))

    async def compensate(self, key: str, *, by: str, reason: str) -> Outcome[Any]:
        """Undo a call that took effect, by a call of its own; returns that call's outcome. Asking again replays it."""
        self._check_open()
        return await self._compensator.compensate(key, by=by, reason=reason)

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def tools(self) -> builtins.list[Tool[Any]]:
        """The tools this house has, compensating ones included, by name."""
        return self._core.tools.all()

    def sees(self, principal: str, tool: str) -> bool:
        """Whether this principal may see that tool at all (the setting ``visible``)."""
        return self._gate._planner.sees(principal, tool)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is being closed: new calls are refused."""
        return self._core.closed

    @property
    def tenant(self) -> str:
        """Whose calls these are."""
        return self._core.tenant

    @property
    def principal(self) -> str:
        """Who asks, where a call says nothing else."""
        return self._core.principal

    @property
    def store(self) -> Store:
        """The opened store, for operations and measurements."""
        return self._core.store

    def renew_lease(self) -> None:
        """Renew the lease now, beside its schedule. Blocks for one round trip to the store."""
        self._core.keeper.renew_now()

    def _check_open(self) -> None:
        if self._core.closed:
            raise HouseClosed("The house is closed.")
        if pid() != self._pid:
            raise HouseClosed(CROSSED_FORK)

    async def _record(self, key: str) -> CallRecord:
        self._check_open()
        record = await self._core.store.get(self._core.tenant, check_key(key))
        if record is None:
            raise UnknownCall(f"No call is recorded under {key}.", key=key)
        return record

    async def _view(self, record: CallRecord, *, with_history: bool = False) -> RecordedCall:
        return await seen(self._core, record, with_history=with_history)


async def _drain(core: Core, grace_s: float) -> None:
    """Let what is under way end; then stop tasks (threads cannot be stopped: their lease runs out)."""
    loop = asyncio.get_running_loop()
    until = loop.time() + grace_s
    while (core.tasks or core.beginning) and (left_s := until - loop.time()) > 0:
        # What is beginning becomes a task of the house only once its commit is acknowledged.
        pause_s = min(left_s, DRAIN_POLL_S)
        await (asyncio.wait(core.tasks, timeout=pause_s) if core.tasks else asyncio.sleep(pause_s))
    for task in list(core.tasks):
        task.cancel()
    if core.tasks:
        await asyncio.wait(core.tasks, timeout=STOP_S)


def _state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        known = ", ".join(member.value for member in State)
        raise InvalidSetting(f"There is no state {state!r}.", remedy=f"Known states: {known}.") from None
