"""The lease of this process: one row, renewed from a thread and a connection of its own.

The event loop may be blocked and the writers busy; neither stops a renewal. When the store says that the owner was
ended (the process was frozen beyond its lease), the keeper begins a new incarnation: what the old one had under way
reports as late, and never sends again.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tollhouse.errors import InvalidSetting, TollhouseError
from tollhouse.ledger.clock import StoreClock
from tollhouse.ledger.store import LeaseConnection, Owner, Renewal

log = logging.getLogger("tollhouse")

LEASE_S_LEAST = 0.2
LEASE_S_MOST = 3600.0


@dataclass(frozen=True, slots=True)
class Lease:
    """What this process knows of its lease. ``until_local_us`` is on its own clock and never too late.

    ``restored_at_us``: since when the ledger is marked as restored from a backup; None when it is not.
    """

    owner_id: str
    until_local_us: int
    until_us: int
    restored_at_us: int | None = None


def check_lease(lease_s: float, renew_every_s: float | None) -> float:
    """The renewal interval; raises :class:`InvalidSetting` unless a lost renewal or two cannot end a healthy lease."""
    if not LEASE_S_LEAST <= lease_s <= LEASE_S_MOST:
        raise InvalidSetting(f"lease_s={lease_s!r} is outside {LEASE_S_LEAST:g} to {LEASE_S_MOST:g} seconds.")
    every = lease_s / 4 if renew_every_s is None else renew_every_s
    if every <= 0 or every * (1 + JITTER) > lease_s / 2:
        raise InvalidSetting(
            f"renew_every_s={every:g} leaves no room for one lost renewal inside lease_s={lease_s:g}.",
            remedy="Renew at least twice as often as the lease ends; leave renew_every_s out for a quarter of it.",
        )
    return every


JITTER = 0.1


class LeaseKeeper:
    """Registers an owner and keeps its lease. ``current`` may be read from any thread."""

    def __init__(
        self,
        connect: Callable[[], LeaseConnection],
        tenant: str,
        new_owner_id: Callable[[], str],
        clock: StoreClock,
        *,
        lease_s: float,
        renew_every_s: float | None = None,
        label: str = "",
        on_new_incarnation: Callable[[str, str], None] = lambda _old, _new: None,
    ) -> None:
        self._every_s = check_lease(lease_s, renew_every_s)
        self._connect, self._tenant, self._new_owner_id = connect, tenant, new_owner_id
        self._clock, self._lease_s, self._label = clock, lease_s, label
        self._on_new_incarnation = on_new_incarnation
        self._stopped = False
        self._asked = False
        self._begun = self._done = 0
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: LeaseConnection | None = None
        self.current: Lease | None = None
        self.failures = 0

    def start(self) -> Lease:
        """Register, blocking; then renew in the background. Raises what the store raises when it cannot register."""
        self._connection = self._connect()
        try:
            lease = self._register()
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._run, name="tollhouse-lease", daemon=True)
        self._thread.start()
        return lease

    def stop(self, *, end: bool) -> None:
        """Stop renewing. ``end``: give the lease up at once, right only when nothing is running any more."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=max(2.0, self._lease_s))
        if self._connection is None:
            return
        try:
            if end and self.current is not None:
                self._connection.end(self._tenant, self.current.owner_id)
        except TollhouseError:
            pass  # the lease ends by itself
        finally:
            self._connection.close()

    def renew_now(self) -> None:
        """Have the keeper renew at once, and wait for it, at most one lease. For tests that let time pass."""
        with self._turn:
            self._asked, wanted = True, self._begun + 1
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._done >= wanted, self._lease_s)

    def _is_time(self) -> bool:
        """Wait for the next renewal; False when the keeper is stopped."""
        with self._turn:
            pause_s = self._every_s * (1 + JITTER * (2 * random.random() - 1))
            self._turn.wait_for(lambda: self._stopped or self._asked, pause_s)
            self._asked = False
            self._begun += 1
            return not self._stopped

    def _end_turn(self) -> None:
        with self._turn:
            self._done = self._begun
            self._turn.notify_all()

    def _run(self) -> None:
        while self._is_time():
            try:
                self._renew()
                self.failures = 0
            except Exception as error:  # whatever a driver raises, this thread must try again
                self.failures += 1  # the lease runs on until its end; senders look at that, not at this
                if self.failures == 1:
                    log.warning("lease_not_renewed error_type=%s", type(error).__name__)
            self._end_turn()

    def _renew(self) -> None:
        assert self._connection is not None
        lease = self.current
        assert lease is not None
        before_us = self._clock.local_us()
        renewal = self._connection.renew(self._tenant, lease.owner_id, self._lease_s)
        if renewal.alive:
            self._take(lease.owner_id, before_us, renewal)
            return
        fresh = self._register()
        self._on_new_incarnation(lease.owner_id, fresh.owner_id)

    def _register(self) -> Lease:
        assert self._connection is not None
        owner = Owner(
            tenant=self._tenant,
            id=self._new_owner_id(),
            host=host_id(),
            pid=os.getpid(),
            pid_started=process_started(os.getpid()) or "",
            label=self._label or f"{socket.gethostname()}:{os.getpid()}",
        )
        before_us = self._clock.local_us()
        renewal = self._connection.register(owner, self._lease_s)
        return self._take(owner.id, before_us, renewal)

    def _take(self, owner_id: str, before_us: int, renewal: Renewal) -> Lease:
        after_us = self._clock.local_us()
        steady_after_us = round(self._lease_s * 1_000_000)
        self._clock.calibrate(before_us, renewal.now_us, after_us, steady_after_us=steady_after_us)
        # Counted from before the request, so that this end is never later than the store's.
        until_local_us = before_us + steady_after_us
        self.current = Lease(owner_id, until_local_us, renewal.lease_until_us, renewal.restored_at_us)
        return self.current


# -- proof that a process is gone ------------------------------------------------------------------------------------


def host_id() -> str:
    """This machine and this boot of it. Only a process seen under the same id can be proven dead from here."""
    boot = _read("/proc/sys/kernel/random/boot_id") or "boot-unknown"
    namespace = _link("/proc/self/ns/pid") or "ns-unknown"
    return f"{socket.gethostname()}/{boot}/{namespace}"


def process_started(pid: int) -> str | None:
    """When the process began, as the kernel counts it; None when there is no such process or no way to know."""
    stat = _read(f"/proc/{pid}/stat")
    return None if stat is None else _start_in(stat)


def proven_dead(owner: Owner) -> bool:
    """Whether the owner's process certainly does not exist any more. False means: not known."""
    if owner.host != host_id() or not owner.pid_started:
        return False
    stat = _read(f"/proc/{owner.pid}/stat")
    # Where it shows nothing it may hide the processes of other users; whether there is one can still be asked.
    return not _may_exist(owner.pid) if stat is None else _start_in(stat) != owner.pid_started


def _start_in(stat: str) -> str | None:
    fields = stat.rsplit(")", 1)[-1].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def _may_exist(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="latin-1").strip()  # a process may have any bytes for a name
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return str(Path(path).readlink())
    except OSError:
        return None
