"""Runs by seed: random plans, processes that are killed and stopped at random, people and a receiver in between.

A seed repeats its script, not each instruction, since real processes keep their own time. The judge reads the
receiver's book and the ledger, and gives five verdicts:

- repeated: an item of the plan took effect more than once;
- lost: a run ended well without an item's effect, or an effect has no departed call;
- unexplained: an effect under a call that denies it;
- stuck: a run that does not end though people act;
- unanswered: an ask of a run that ended without exactly one answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash.runs.conftest import Drive
from tests.crash.runs.office import Asked, Office, Opened, office, opened
from tests.crash.runs.process import Driver
from tests.crash.runs.watching import asks, begun, sound, until
from tollhouse import State, did_not_happen, happened
from tollhouse.errors import TollhouseError
from tollhouse.runs.body import Waiting
from tollhouse.testing.crashpoints import FUNCTION_POINTS, RUN_POINTS
from tollhouse.testing.receiver import Receiver

TOOLS: Mapping[str, Mapping[str, Any]] = {
    "tests.crash.tools:credits": {"hooks": True},
    "tests.crash.tools:guarded": {"hooks": True},
    "tests.crash.tools:reading": {},
    "tests.crash.runs.tools:shop": {},
}
COLLECTION = {"credit": "credits", "plain_credit": "credits", "delete_account": "deletions", "notify": "notices"}
"""Where each tool with an effect has it."""
FAULTS = ("reset_after_effect", "close_before_effect", "error_after_effect", "delay_after_effect", "garbage")
CALL_COMMITS = ("departure", "outcome", "record", "hold", "look_up", "set_aside")
POINTS = (
    *(f"{moment}_{name}" for name in CALL_COMMITS for moment in ("before", "after")),
    *FUNCTION_POINTS, "inside_before_send", "inside_after_send", *RUN_POINTS,
)  # fmt: skip
LEASE_S = 1.0
ENDS_S = 90.0
"""A run that has not ended so long after everybody was let go on is stuck, however busy the machine."""


def plan_of(rng: random.Random) -> list[list[Asked]]:
    """One to four items with effects, questions and reads, in one to three answers."""
    items: list[Asked] = []
    for number in range(1, 1 + rng.randint(1, 4)):
        account = {"account": f"item-{number}"}
        tool = rng.choice(
            ("credit", "credit", "plain_credit", "delete_account", "notify", "ask_person", "count_credits")
        )
        arguments: dict[str, Any] = {
            "ask_person": {"question": f"What of item-{number}?"},
            "notify": {"order": f"item-{number}"},
            "delete_account": account,
            "count_credits": account,
        }.get(tool, {**account, "cents": number})
        items.append((tool, arguments))
    turns = rng.randint(1, min(3, len(items)))
    return [items[turn::turns] for turn in range(turns)]


async def play(
    seed: int, folder: Path, drive: Drive, store: str | None = None, *, temporal: str = ""
) -> dict[str, list[str]]:
    """Play one seed over a store of its own (None: SQLite in ``folder``); what was found, by verdict.

    ``temporal``: see :class:`Office`.
    """
    rng = random.Random(f"runs {seed}")
    plan = plan_of(rng)
    with Receiver.start(folder / f"book-{seed}.jsonl") as receiver:
        place = office(
            store or f"sqlite:///{folder / f'seed-{seed}.db'}", receiver, f"seed-{seed}", plan,
            tools=TOOLS, settings={"lease_s": LEASE_S, "store_wait_s": 30.0}, temporal=temporal,
        )  # fmt: skip
        if rng.random() < 0.5:
            for _ in range(rng.randint(1, 2)):
                receiver.fault(rng.choice(FAULTS), collection=rng.choice(sorted(set(COLLECTION.values()))))
        async with opened(place, drives=False) as desk:
            people = asyncio.ensure_future(People(desk, receiver).work(seed))
            try:
                return await _lives(rng, place, plan, drive, desk, receiver)
            finally:
                people.cancel()
                await asyncio.gather(people, return_exceptions=True)


async def _lives(
    rng: random.Random, place: Office, plan: list[list[Asked]], drive: Drive, desk: Opened, receiver: Receiver
) -> dict[str, list[str]]:
    """Processes one after the other, or beside each other, each with its misfortune; then one that lives."""
    left: list[Driver] = []
    for _ in range(rng.randint(1, 3)):
        crash = {"point": rng.choice(POINTS), "action": rng.choice(("kill", "kill", "stop")), "nth": rng.randint(1, 2)}
        driver = await drive(place, crash)
        _ = driver.begin()
        await _until_struck(driver, rng.uniform(0.3, 2.5))
        if not driver.gone and not driver.reached and rng.random() < 0.5:
            await driver.kill()
        left.append(driver)
    await asyncio.sleep(rng.choice((0.0, LEASE_S * 1.5)))
    async with opened(place) as last:
        run_id = (await begun(last)).id
        for driver in left:
            if not driver.gone:
                driver.go_on()
        stuck = ""
        try:
            await until(last.runs, run_id, lambda run: run.record.finished, timeout_s=ENDS_S)
        except TimeoutError as error:
            stuck = str(error)
        for driver in left:
            with suppress(TimeoutError, AssertionError, OSError):
                await driver.close()  # one whose crash point comes only now dies instead
        found = await judge(desk, receiver, run_id, plan)
    return {**found, **({"stuck": [stuck]} if stuck else {})}


async def _until_struck(driver: Driver, within_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await driver.until(lambda: bool(driver.reached) or driver.gone)


class People:
    """Those who approve, answer and look at the receiver, at once and honestly, whatever dies around them."""

    def __init__(self, desk: Opened, receiver: Receiver) -> None:
        self._desk, self._receiver = desk, receiver

    async def work(self, seed: int) -> None:
        """See to every run that waits for people, until nobody needs them any more."""
        rng = random.Random(f"people {seed}")
        while True:
            with suppress(TollhouseError):
                for run in await self._desk.runs.list():
                    for waiting in run.waiting:
                        await self._see_to(run.id, waiting)
            await asyncio.sleep(rng.uniform(0.05, 0.3))

    async def _see_to(self, run_id: str, waiting: Waiting) -> None:
        with suppress(TollhouseError):  # it moved meanwhile
            match waiting.kind:
                case "approval":
                    await self._desk.house.approve(waiting.id, by="bob")
                case "answer":
                    await self._desk.runs.answer(run_id, waiting.id, f"of {waiting.id}", by="bob")
                case "reconciliation":
                    await self._look(waiting.id)
                case _:
                    pass

    async def _look(self, key: str) -> None:
        call = await self._desk.house.get(key)
        if call.tool != "notify" or any(attempt.running for attempt in call.attempts):
            return  # the others are looked up by their hooks
        effects = await asyncio.to_thread(self._receiver.effects, "notices", key=call.idempotency_key)
        answer = happened(effects[0].id) if effects else did_not_happen("not in the book")
        await self._desk.house.resolve(key, answer, by="bob", reason="looked at the book")


# -- judging -------------------------------------------------------------------------------------------------------


async def judge(desk: Opened, receiver: Receiver, run_id: str, plan: Sequence[Sequence[Asked]]) -> dict[str, list[str]]:
    """What is found of a run and of all effects at the receiver, by verdict. ``plan``: what it was to do."""
    run = await desk.runs.get(run_id)
    calls = {call.idempotency_key: call for call in await desk.house.list(scope=run_id, limit=1000)}
    effects = await asyncio.to_thread(receiver.effects)
    effects = [effect for effect in effects if effect.collection in COLLECTION.values()]
    had = Counter((effect.collection, _item(effect.body)) for effect in effects)
    wanted = {(COLLECTION[tool], _item(arguments)) for turn in plan for tool, arguments in turn if tool in COLLECTION}
    denying = (State.FAILED, State.REFUSED, State.READY, State.HELD)
    found = {
        "repeated": [f"{item} {times} times" for item, times in had.items() if times > 1],
        "lost": [
            *(f"{item} never" for item in wanted - set(had) if run.state == "succeeded"),
            *(f"{effect.id} of no call" for effect in effects if effect.key not in calls),
        ],
        "unexplained": [
            f"{effect.id} under a call that is {calls[effect.key].state}"
            for effect in effects
            if effect.key in calls and calls[effect.key].state in denying and not calls[effect.key].contradicted
        ],
        "unanswered": await _unanswered(desk, run_id),
        "stuck": [f"it ended as {run.state}: {run.reason}"] if run.record.finished and run.state != "succeeded" else [],
    }
    return {verdict: told for verdict, told in found.items() if told}


async def _unanswered(desk: Opened, run_id: str) -> list[str]:
    if not (await desk.runs.get(run_id)).record.finished:
        return []
    answered = Counter(each["key"] for each in await sound(desk.runs, run_id))
    return [f"{key} has {answered[key]} answers" for key in await asks(desk.runs, run_id) if answered[key] != 1]


def _item(body: Mapping[str, Any]) -> str:
    return str(body.get("account") or body.get("order"))
