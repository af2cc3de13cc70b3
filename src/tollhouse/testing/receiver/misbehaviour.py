"""Carries out the faults of the table around whatever a request asks for; one instance serves a receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from .faults import Fault, FaultPlan, Planned
from .wire import Manner, Reply

_MANNERS: Final = {
    Fault.TRUNCATED_BODY: Manner.TRUNCATED_BODY,
    Fault.TRUNCATED_CHUNKS: Manner.TRUNCATED_CHUNKS,
    Fault.SLOW_DRIP: Manner.SLOW_DRIP,
    Fault.CLOSE_AFTER_REPLY: Manner.CLOSE_AFTER,
}


class Hangup(Exception):
    """End the connection without a reply: by an RST if `reset`, else by closing it."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__("the receiver hangs up")
        self.reset = reset


class Misbehaviour:
    """The plan of faults and the requests that they hold back."""

    def __init__(self) -> None:
        self.plan = FaultPlan()
        self._held: list[asyncio.Event] = []
        self._era = 0

    async def around(self, planned: Planned | None, act: Callable[[], Reply]) -> Reply:
        """Act, with the fault before or after; None behaves well. Raises Hangup where no reply is due."""
        if planned is None:
            return act()
        era = self._era
        early = await self._before(planned)
        if era != self._era:
            raise Hangup(reset=True)  # forgotten meanwhile: a late effect would belong to another test
        return early or await self._after(planned, act())

    def release(self, times: int | None) -> None:
        """Let the oldest `times` held requests go on; None lets all go."""
        count = len(self._held) if times is None else times
        for event in self._held[:count]:
            event.set()
        del self._held[:count]

    def forget(self) -> None:
        """Drop the plan, and hang up on requests that wait before their effect."""
        self._era += 1
        self.plan.clear()
        self.release(None)

    async def _before(self, planned: Planned) -> Reply | None:
        fault, options = planned.fault, planned.options
        match fault:
            case Fault.DELAY_BEFORE_EFFECT:
                await asyncio.sleep(options["seconds"])
            case Fault.HOLD_BEFORE_EFFECT:
                await self._hold()
            case Fault.CLOSE_BEFORE_EFFECT | Fault.RESET_BEFORE_EFFECT:
                raise Hangup(reset=fault is Fault.RESET_BEFORE_EFFECT)
            case Fault.ERROR_BEFORE_EFFECT:
                return _refusal(planned)
            case Fault.RATE_LIMITED:
                return _refusal(planned, {"Retry-After": str(options["retry_after_s"])})
            case Fault.REDIRECT:
                return _refusal(planned, {"Location": options["location"]})
        return None

    async def _after(self, planned: Planned, reply: Reply) -> Reply:
        fault, options = planned.fault, planned.options
        match fault:
            case Fault.DELAY_AFTER_EFFECT:
                await asyncio.sleep(options["seconds"])
            case Fault.HOLD_AFTER_EFFECT:
                await self._hold()
            case Fault.CLOSE_AFTER_EFFECT | Fault.RESET_AFTER_EFFECT:
                raise Hangup(reset=fault is Fault.RESET_AFTER_EFFECT)
            case Fault.ERROR_AFTER_EFFECT:
                return _refusal(planned)
            case Fault.GARBAGE | Fault.NOT_UTF8 | Fault.WRONG_SHAPE | Fault.HUGE_BODY:
                return replace(reply, body=_bad_body(fault, options.get("size_bytes", 0)))
        return replace(reply, manner=_MANNERS.get(fault, Manner.WELL), pause_s=options.get("seconds", 0.0))

    async def _hold(self) -> None:
        event = asyncio.Event()
        self._held.append(event)
        await event.wait()


def _refusal(planned: Planned, headers: dict[str, Any] | None = None) -> Reply:
    reply = Reply.json(planned.options["status"], {"error": planned.fault.value, "message": planned.fault.sentence})
    return replace(reply, headers=headers or {})


def _bad_body(fault: Fault, size_bytes: int) -> bytes:
    if fault is Fault.HUGE_BODY:
        return b'{"filler": "%b"}' % (b"x" * (size_bytes - len(b'{"filler": ""}')))
    bodies = {
        Fault.GARBAGE: b'{"id": "cre',
        Fault.NOT_UTF8: b'{"id": "cr\xe9dit-\xff"}',
        Fault.WRONG_SHAPE: b"[1, 2, 3]",
    }
    return bodies[fault]
