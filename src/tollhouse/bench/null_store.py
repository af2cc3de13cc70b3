"""What a call costs the interpreter: the gate with all its checks over a store that keeps nothing.

It is measured in CPU time of the process, which other programs disturb least. Printed at every run, so that growth
shows long before it costs anybody a bar.
"""

from __future__ import annotations

import gc
import time
from typing import Any, cast

from tollhouse.bench.job import pay
from tollhouse.gate.approval import ApprovalCheck
from tollhouse.gate.core import Core, Toolbox
from tollhouse.gate.gate import Gate
from tollhouse.ledger.clock import StoreClock, boot_us
from tollhouse.ledger.ids import SystemIds
from tollhouse.ledger.lease import Lease, LeaseKeeper
from tollhouse.ledger.record import CallRecord
from tollhouse.ledger.rows import immutable_values, mutable_values
from tollhouse.ledger.store import Counters, Fence, Store, Write, Written

_APPLIED = Written()
_FENCE = Fence(1, cancel_asked=False)
_FAR = 10**15


class NullStore:
    """Makes the row that every store makes of a record, and forgets it."""

    def __init__(self) -> None:
        self.counters = Counters()

    async def write(self, *writes: Write) -> tuple[Written, ...]:
        for write in writes:
            if write.expected is None:
                immutable_values(write.record)
            mutable_values(write.record, write.made)
        return (_APPLIED,) * len(writes)

    async def fence(self, tenant: str, key: str) -> Fence:
        """What the only attempt of a call carries; asked when this process stood still between commit and check."""
        return _FENCE


class _Kept:
    """A lease that needs no keeper."""

    current = Lease("own_bench", _FAR, _FAR)


async def python_us_per_call(calls: int, tries: int = 5) -> float:
    """Microseconds of CPU per call, the best of ``tries`` runs of ``calls`` calls: what disturbs only ever adds."""
    gate = _gate()
    best_s = float("inf")
    await _run(gate, "warm", calls // 10)
    gc.collect()
    for number in range(tries):
        began_s = time.process_time()
        await _run(gate, str(number), calls)
        best_s = min(best_s, time.process_time() - began_s)
    return best_s / calls * 1e6


async def _run(gate: Gate, name: str, calls: int) -> None:
    for number in range(calls):
        await gate.call(pay, {"account_id": "a1", "amount_cents": number}, f"{name}-{number}")


def _gate() -> Gate:
    clock = StoreClock()
    now_us = boot_us()
    clock.calibrate(now_us, int(time.time() * 1e6), now_us)
    core = Core(
        store=cast(Store, NullStore()),
        tenant="default",
        principal="local",
        tools=Toolbox({pay.name: pay}),
        clock=clock,
        ids=SystemIds(),
        keeper=cast(LeaseKeeper, _Kept()),
        gates=(ApprovalCheck(),),
    )

    async def as_it_is(record: CallRecord) -> CallRecord:
        return record

    settle_first: Any = as_it_is
    return Gate(core, settle_first)
