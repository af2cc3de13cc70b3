"""Plots: what happens to one call. ``anything`` follows a script drawn from its seed; the others are directed.

A directed plot plays one history that some broken rule needs, however deep, and that the rules survive. All of them
belong to every run; with a mutant they show that the drill notices it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tollhouse.testing.crashpoints import COMMITS
from tollhouse.testing.drill.crew import Lane, Worker
from tollhouse.testing.drill.people import DID_NOT_HAPPEN, HAPPENED, bring_to_end
from tollhouse.testing.drill.stage import Stage, key_of
from tollhouse.testing.drill.tools import DELAY_MOST_S

Plot = Callable[[Stage, int, random.Random], Awaitable[None]]
Acts = list[dict[str, Any]]

TOOLS = ("credit", "transfer", "pay", "notify", "set_limit", "letter", "close_account", "export", "count")
OWN_POINTS = ("departure", "outcome", "wait_end", "resend", "hold")
DESK_POINTS = ("set_aside", "look_up", "decision", "resend", "compensation")
INSIDE = ("inside_before_send", "inside_after_send")
FAULTS: dict[str, dict[str, Any]] = {
    "delay_before_effect": {"seconds": 0.7},
    "delay_after_effect": {"seconds": 0.7},
    "close_before_effect": {},
    "reset_before_effect": {},
    "close_after_effect": {},
    "reset_after_effect": {},
    "close_after_reply": {},
    "truncated_body": {},
    "truncated_chunks": {},
    "garbage": {},
    "error_after_effect": {"status": 502},
    "error_before_effect": {"status": 409},
    "rate_limited": {"retry_after_s": 1},
    "redirect": {},
}


@dataclass(slots=True)
class Script:
    """What a seed says about its call. ``mishap``: what strikes the process that makes it."""

    seed: int
    tool: str
    mishap: str | None
    point: str
    nth: int
    fault: str | None
    acts: Acts = field(default_factory=list)
    overlap: bool = False
    again: bool = True
    people: str = "none"
    after: str = "none"
    skip: int = 0
    applied: bool = True


def script_of(seed: int, rng: random.Random, *, server: bool) -> Script:
    """The script of a seed; the same every time. ``server``: the store has one."""
    mishap = rng.choices(
        ("kill", "kill_in_flight", "kill_desk", "stop", "stop_in_flight", "raise", "in_transaction", "lose_ack", None),
        (24, 8, 4, 3, 2, 5, 0 if server else 1, 6 if server else 0, 54),
    )[0]
    points = [f"{moment}_{name}" for name in OWN_POINTS for moment in ("before", "after")]
    weights = [4, 5, 5, 3, 1, 1, 1, 1, 1, 1]
    point = rng.choices([*points, *INSIDE], [*weights, 4, 4])[0]
    if mishap == "kill_desk":
        point = rng.choice([f"{moment}_{name}" for name in DESK_POINTS for moment in ("before", "after")])
    if mishap == "raise" and (point.startswith("inside") or point.split("_", 1)[1] not in COMMITS):
        point = rng.choice(("before_departure", "after_departure", "before_outcome", "after_outcome"))
    tool = rng.choices(TOOLS, (12, 12, 12, 12, 12, 12, 12, 12, 4))[0]
    if tool == "count" and mishap in ("kill", "stop", "raise"):
        point = rng.choice(("before_record", "after_record"))
    return Script(
        seed,
        tool,
        mishap,
        point,
        1,
        rng.choice(list(FAULTS)) if rng.random() < 0.4 else None,
        overlap=rng.random() < 0.3,
        again=rng.random() < 0.7,
        people=rng.choices(("none", "rash", "two", "cancel", "force"), (70, 8, 8, 8, 6))[0],
        after=rng.choices(("none", "retry", "compensate", "replay"), (55, 15, 15, 15))[0],
        skip=rng.choice((0, 0, 1)),
        applied=rng.random() < 0.6,
    )


async def anything(stage: Stage, seed: int, rng: random.Random) -> None:
    """Whatever the seed says."""
    script = script_of(seed, rng, server=stage.ledger.has_server)
    await Play(stage, script, rng).play()


class Play:
    """One call's script, carried out."""

    def __init__(self, stage: Stage, script: Script, rng: random.Random) -> None:
        self._stage, self._script, self._rng = stage, script, rng
        self._key = key_of(script.seed)
        self._case = stage.case(script.seed, "anything", self._key)
        self._case.facts |= {"tool": script.tool, "acts": script.acts, "script": script}
        self._case.facts["job_cancelled"] = rng.random() < 0.3
        self._beside: list[asyncio.Task[Any]] = []

    async def play(self) -> None:
        """The call with its mishap, people meanwhile, then its end, and what comes after an end."""
        stage, script, key = self._stage, self._script, self._key
        if script.fault is not None:
            await lay_fault(stage, key, script.fault, **FAULTS[script.fault])
        if script.mishap == "kill_desk":
            desk = await stage.desk(self._rng.randrange(2))
            desk.lay(script.point, "kill", key)
        if script.people != "none":
            self._spawn(self._meddle())
        answers = [self._first_call()]
        if script.overlap:
            answers.append(self._second_call())
        first = (await asyncio.gather(*answers))[0]
        if first == "call_held":
            await self._approved()
        elif first == "gone" and script.again:
            await stage.call(await stage.desk(0), script.tool, key)
        await asyncio.gather(*self._beside)
        await bring_to_end(stage, key)
        await self._afterwards()
        await bring_to_end(stage, key)

    async def _first_call(self) -> str:
        stage, script = self._stage, self._script
        async with lane_of(stage, script).place() as worker:
            self._strike(worker)
            return await stage.call(worker, script.tool, self._key, script.acts)

    async def _second_call(self) -> str:
        stage, script = self._stage, self._script
        await asyncio.sleep(self._rng.random() * 0.1)
        async with free(stage.calm).place() as worker:
            return await stage.call(worker, script.tool, self._key, script.acts)

    def _strike(self, worker: Worker) -> None:
        script, stage = self._script, self._stage
        match script.mishap:
            case "kill" | "stop" | "raise" as action:
                worker.lay(script.point, action, self._key, script.nth)
            case "kill_in_flight" | "stop_in_flight" as action:
                self._spawn(self._in_flight(worker, action))
            case "in_transaction":
                self._spawn(self._in_transaction(worker))
            case "lose_ack":
                stage.ledger.lose_ack(self._key, applied=script.applied, skip=script.skip)

    def _spawn(self, step: Any) -> None:
        self._beside.append(asyncio.get_running_loop().create_task(step))

    async def _in_flight(self, worker: Worker, action: str) -> None:
        if not await self._stage.until_sent(self._key, timeout_s=5.0):
            return
        await asyncio.sleep(self._rng.random() * 0.05)
        if action == "kill_in_flight":
            self._stage.kill(worker)
        else:
            await self._stage.freeze(worker)

    async def _in_transaction(self, worker: Worker) -> None:
        number = self._rng.choice(("SIGKILL", "SIGSTOP"))
        if number == "SIGSTOP":
            worker.expect_stop("inside_transaction")
        await asyncio.sleep(self._rng.random() * 0.05)
        await quietly(worker.ask("inside_transaction", signal_name=number))

    async def _meddle(self) -> None:
        """People who do not wait: contrary decisions at once, a force, a cancel."""
        stage, key, kind = self._stage, self._key, self._script.people
        states = ("departed", "in_doubt") if kind in ("force", "cancel") else ("in_doubt",)
        if not await stage.until_state(key, *states, timeout_s=6.0):
            return
        await asyncio.sleep(self._rng.random() * 0.1)
        answers = [HAPPENED, DID_NOT_HAPPEN]
        self._rng.shuffle(answers)
        one, other = await stage.desk(0), await stage.desk(1)
        match kind:
            case "two":
                await two_operators(stage, key, one, other)
            case "cancel":
                await stage.decide(one, "cancel", key, "eve")
            case "force" | "rash":
                await stage.decide(one, "resolve", key, "rash", answer=answers[0], force=kind == "force")

    async def _approved(self) -> None:
        """Two people look; perhaps one edits; then the call goes, in a process that may be struck."""
        stage, key = self._stage, self._key
        seen = await stage.seen(key)
        if seen is None:
            return
        match self._rng.choice(("approve", "approve", "edit", "deny", "race")):
            case "approve":
                await stage.decide(await stage.desk(0), "approve", key, "ada", digest=seen["digest"])
            case "edit":
                await edited(stage, key, seen["digest"])
            case "deny":
                await stage.decide(await stage.desk(0), "deny", key, "ada")
            case "race":
                one, other = await stage.desk(0), await stage.desk(1)
                await asyncio.gather(
                    stage.decide(one, "approve", key, "ada", digest=seen["digest"]),
                    stage.decide(other, "deny", key, "bob", version=seen["version"]),
                )
        async with lane_of(stage, self._script).place() as worker:
            if not self._case.acks or "departed" not in {kind for ack in self._case.acks for kind in ack.kinds}:
                await stage.call(worker, self._script.tool, key, self._script.acts)

    async def _afterwards(self) -> None:
        """What people do with a settled call."""
        stage, key = self._stage, self._key
        seen = await stage.seen(key)
        if seen is None:
            return
        match self._script.after, seen["state"]:
            case "retry", _:
                await stage.decide(await stage.desk(0), "retry", key, "ada", version=seen["version"])
            case "compensate", "succeeded" if self._script.tool in ("credit", "set_limit"):
                await compensate(stage, key)
            case "replay", _:
                await stage.call(await stage.desk(1), self._script.tool, key, self._script.acts)


# -- what plots have in common ----------------------------------------------------------------------------


def lane_of(stage: Stage, script: Script) -> Lane:
    """Where a script's call is made: together with others that die alike, or with those that live."""
    if script.mishap == "lose_ack":
        return free(stage.lossy)
    return free(stage.calm if script.mishap in (None, "kill_desk", "raise") else stage.harsh)


def free(lanes: list[Lane]) -> Lane:
    """A lane with room, if there is one."""
    return next((lane for lane in lanes if not lane.busy), lanes[0])


async def quietly(step: Awaitable[Any]) -> None:
    """Await what may fail because its process dies; the ledger says what became of it."""
    from tollhouse.testing.drill.crew import Gone

    try:
        await step
    except (Gone, TimeoutError):
        return


async def lay_fault(stage: Stage, key: str, fault: str, *, times: int = 1, **options: Any) -> None:
    """Have the receiver misbehave for the next request of that call."""
    await stage.at_receiver(stage.receiver.fault, fault, key=f"default:{key}", times=times, **options)


async def two_operators(stage: Stage, key: str, one: Worker, other: Worker) -> None:
    """Two people look at the same doubt and decide at the same time, each the contrary."""
    await asyncio.gather(
        stage.decide(one, "resolve", key, "ada", answer=HAPPENED),
        stage.decide(other, "resolve", key, "bob", answer=DID_NOT_HAPPEN),
    )


async def edited(stage: Stage, key: str, digest: str) -> None:
    """One looks, another edits, and the first agrees to what they saw."""
    one, other = await stage.desk(0), await stage.desk(1)
    facts = stage.state(key).case.facts
    await stage.decide(other, "edit", key, "bob", arguments={"amount": 900, "acts": facts["acts"]})
    if not await stage.decide(one, "approve", key, "ada", digest=digest):
        seen = await stage.seen(key)
        if seen is not None and seen["state"] == "held":
            await stage.decide(one, "approve", key, "ada", digest=seen["digest"])


async def compensate(stage: Stage, key: str) -> None:
    """Undo it, and see the undoing to its end."""
    await stage.decide(await stage.desk(0), "compensate", key, "ada")
    await bring_to_end(stage, f"{key}:compensate")


def slow(seconds: float = DELAY_MOST_S) -> dict[str, Any]:
    """Options of a network that delivers late."""
    return {"seconds": seconds}
