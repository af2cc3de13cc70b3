"""Directed plots: each plays the one history that a certain broken rule needs, in real processes.

Every plot names the mutant that it is there for. Without a mutant they are ordinary seeds, and must pass.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from tollhouse.testing.drill.crew import Worker
from tollhouse.testing.drill.people import DID_NOT_HAPPEN, HAPPENED, bring_to_end
from tollhouse.testing.drill.plots import Acts, Plot, anything, compensate, edited, free, lay_fault, quietly, slow
from tollhouse.testing.drill.stage import Stage, key_of


class Scene:
    """One call of a directed plot, and the short ways to act on it."""

    def __init__(self, stage: Stage, seed: int, plot: str, tool: str, acts: Acts | None = None) -> None:
        self.stage, self.key, self.tool, self.acts = stage, key_of(seed), tool, acts or []
        self.alone = False
        """Whether workers send it, once they may, without its caller."""
        case = stage.case(seed, plot, self.key)
        case.facts |= {"tool": tool, "acts": self.acts}

    async def call(self, worker: Worker) -> str:
        """Ask for it there."""
        return await self.stage.call(worker, self.tool, self.key, self.acts, alone=self.alone)

    def begin(self, worker: Worker) -> asyncio.Task[str]:
        """Ask for it there, beside what follows."""
        return asyncio.get_running_loop().create_task(self.call(worker))

    async def say(self, answer: dict[str, str], by: str = "ada", *, force: bool = False, desk: int = 0) -> bool:
        """Have a person settle it."""
        return await self.stage.decide(await self.stage.desk(desk), "resolve", self.key, by, answer=answer, force=force)

    async def end(self) -> None:
        """Bring it to its end."""
        await bring_to_end(self.stage, self.key)


async def died_before_departure(stage: Stage, seed: int, rng: random.Random) -> None:
    """The process dies just before commit 1: nothing can have been sent, so nobody asks again."""
    scene = Scene(stage, seed, "died_before_departure", rng.choice(("credit", "letter", "transfer")))
    async with free(stage.harsh).place() as worker:
        worker.lay("before_departure", "kill", scene.key)
        await scene.call(worker)


async def brisk(stage: Stage, seed: int, rng: random.Random) -> None:
    """The tool takes its time before it sends, within the time in which commit 1 is the check; its lease is good."""
    scene = Scene(stage, seed, "brisk", "credit", [{"before": 0.02 + rng.random() * 0.05}])
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
    await scene.end()


async def contrary_operators(stage: Stage, seed: int, rng: random.Random) -> None:
    """Two people look at one doubt and say the contrary; one of them is slow between reading and writing."""
    scene = Scene(stage, seed, "contrary_operators", "letter", [{"fails": True}])
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
    async with free(stage.harsh).place() as slow_desk:
        reached = slow_desk.lay("before_decision", "stop", scene.key)
        late = asyncio.get_running_loop().create_task(
            stage.decide(slow_desk, "resolve", scene.key, "bob", answer=DID_NOT_HAPPEN)
        )
        waiting = asyncio.get_running_loop().create_task(reached.wait())
        await asyncio.wait([waiting, late], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await scene.say(HAPPENED)
        await late
    await scene.end()


async def forced_aside(stage: Stage, seed: int, rng: random.Random) -> None:
    """A person sets a slow attempt aside and settles the call; then the attempt comes to its send."""
    scene = Scene(stage, seed, "forced_aside", rng.choice(("credit", "notify")), [{"before": 0.8}])
    async with free(stage.calm).place() as worker:
        begun = scene.begin(worker)
        if await stage.until_state(scene.key, "departed"):
            await scene.say(DID_NOT_HAPPEN, force=True)
        await begun
    await scene.end()


async def woken_after_a_no(stage: Stage, seed: int, rng: random.Random) -> None:
    """A process is stopped after its request was answered; a person says no; it wakes and knows better."""
    scene = Scene(stage, seed, "woken_after_a_no", "credit")
    async with free(stage.harsh).place() as worker:
        worker.lay("inside_after_send", "stop", scene.key)
        begun = scene.begin(worker)
        if await stage.until_state(scene.key, "in_doubt"):
            await scene.say(DID_NOT_HAPPEN)
        await begun
    if rng.random() < 0.5:
        await _retried(scene)
    await scene.end()


async def _retried(scene: Scene) -> None:
    """Somebody wants to send it again, whatever is known, and workers do so where they may."""
    if await scene.stage.decide(await scene.stage.desk(0), "retry", scene.key, "eve"):
        await scene.stage.until(scene.key, lambda watch: watch.state not in ("ready", "failed"), 3.0)


async def retried_in_spite(stage: Stage, seed: int, rng: random.Random) -> None:
    """As before, and then somebody retries what is known to have happened."""
    scene = Scene(stage, seed, "retried_in_spite", "credit")
    scene.alone = True
    async with free(stage.harsh).place() as worker:
        worker.lay("inside_after_send", "stop", scene.key)
        begun = scene.begin(worker)
        if await stage.until_state(scene.key, "in_doubt"):
            await scene.say(DID_NOT_HAPPEN)
        await begun
    await _retried(scene)
    await scene.end()


async def cancelled_while_out(stage: Stage, seed: int, rng: random.Random) -> None:
    """The caller cancels while the request is out; then its answer is lost, and a repeat would be harmless."""
    scene = Scene(stage, seed, "cancelled_while_out", "set_limit", [{"after": 0.3, "fails": True}])
    async with free(stage.calm).place() as worker:
        begun = scene.begin(worker)
        if await stage.until_sent(scene.key):
            await asyncio.sleep(0.1)
            await stage.decide(await stage.desk(0), "cancel", scene.key, "eve")
        await begun
    await scene.end()


async def edited_meanwhile(stage: Stage, seed: int, rng: random.Random) -> None:
    """One person is shown a call, another edits it, and the first agrees to what they were shown."""
    scene = Scene(stage, seed, "edited_meanwhile", "close_account")
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
        seen = await stage.seen(scene.key)
        if seen is not None:
            await edited(stage, scene.key, seen["digest"])
        await scene.call(worker)
    await scene.end()


async def answered_too_late(stage: Stage, seed: int, rng: random.Random) -> None:
    """The answer comes after the time is up; the effect is there all the same."""
    tool = rng.choice(("set_limit", "letter"))
    scene = Scene(stage, seed, "answered_too_late", tool, [{"after": 1.3}, {"after": 1.3}])
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
    await scene.end()


async def approved_once(stage: Stage, seed: int, rng: random.Random) -> None:
    """What people approved is rejected by the receiver; a retry is another round, which they have not approved."""
    scene = Scene(stage, seed, "approved_once", "close_account")
    await lay_fault(stage, scene.key, "error_before_effect", status=409)
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
        seen = await stage.seen(scene.key)
        if seen is not None:
            await stage.decide(await stage.desk(0), "approve", scene.key, "ada", digest=seen["digest"])
        await scene.call(worker)
        await stage.decide(await stage.desk(1), "retry", scene.key, "ada")
        await scene.call(worker)
    await scene.end()


async def better_then_worse(stage: Stage, seed: int, rng: random.Random) -> None:
    """The first attempt answers while the second is out; then the second fails."""
    acts: Acts = [{"after": 0.75}, {"after": 0.35, "fails": True}]
    scene = Scene(stage, seed, "better_then_worse", "set_limit", acts)
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
    await scene.end()


async def woken_after_a_resend(stage: Stage, seed: int, rng: random.Random) -> None:
    """A process is stopped before it sends; another one sends; the first wakes with its proof that it did not."""
    scene = Scene(stage, seed, "woken_after_a_resend", "pay")
    async with free(stage.harsh).place() as worker:
        worker.lay("inside_before_send", "stop", scene.key)
        await scene.call(worker)
    await scene.end()


async def late_request(stage: Stage, seed: int, rng: random.Random) -> None:
    """The network delivers a request after its process has died and was set aside."""
    scene = Scene(stage, seed, "late_request", "credit")
    await lay_fault(stage, scene.key, "delay_before_effect", **slow())
    async with stage.alone("doomed") as worker:
        begun = scene.begin(worker)
        if await stage.until_arrived(scene.key):
            stage.kill(worker)
        await begun
    await scene.end()


async def undone_too_early(stage: Stage, seed: int, rng: random.Random) -> None:
    """The first request is late on its way, a second one took effect, and somebody undoes the call."""
    acts: Acts = [{"patience": 0.2}, {}]
    scene = Scene(stage, seed, "undone_too_early", "set_limit", acts)
    await lay_fault(stage, scene.key, "delay_before_effect", **slow())
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
    await compensate(stage, scene.key)
    await scene.end()


async def sent_twice_by_key(stage: Stage, seed: int, rng: random.Random) -> None:
    """A request took effect and its sender does not know; it is sent again, since the receiver recognises its key."""
    scene = Scene(stage, seed, "sent_twice_by_key", rng.choice(("pay", "notify")), [{"fails": True}])
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
    await scene.end()


async def refused_beside_another(stage: Stage, seed: int, rng: random.Random) -> None:
    """A process hears nothing of its commit 1, while the call is under way in another one."""
    scene = Scene(stage, seed, "refused_beside_another", "credit", [{"before": 0.5}])
    async with free(stage.calm).place() as first, free(stage.harsh).place() as second:
        begun = scene.begin(first)
        if await stage.until_state(scene.key, "departed"):
            second.lay("before_departure", "raise", scene.key)
            await scene.call(second)
        await begun
    await scene.end()


async def after_the_window(stage: Stage, seed: int, rng: random.Random) -> None:
    """A resend begins while the receiver remembers the key, and comes to its send when it has forgotten it."""
    acts: Acts = [{"fails": True}, {"before": 4.2}]
    scene = Scene(stage, seed, "after_the_window", "brief", acts)
    async with free(stage.calm).place() as worker:
        await scene.call(worker)
    await scene.end()


async def stale_look_up(stage: Stage, seed: int, rng: random.Random) -> None:
    """A slow look-up found nothing; before it says so, another process has sent the call again."""
    acts: Acts = [{}, {"fails": True}]
    scene = Scene(stage, seed, "stale_look_up", "odd", acts)
    async with (
        stage.alone("slow", only=["odd"], hook_pause_s=1.5) as slow_one,
        stage.alone("blind", only=["odd"], blind=True) as blind,
    ):
        async with stage.alone("first", only=["odd"]) as first:
            first.lay("inside_before_send", "kill", scene.key)
            await scene.call(first)
        if await stage.until_state(scene.key, "in_doubt"):
            await asyncio.sleep(0.5)  # silence, so that an absence counts
            looking = asyncio.get_running_loop().create_task(quietly(slow_one.ask("reconcile", key=scene.key)))
            await asyncio.sleep(0.4)
            await quietly(blind.ask("reconcile", key=scene.key))
            await looking
        await bring_to_end(stage, scene.key, patience_s=0.0)


DIRECTED: Mapping[str, Plot] = {
    "send_before_commit_1": died_before_departure,
    "sweep_ignores_lease": brisk,
    "settle_without_compare_and_set": contrary_operators,
    "no_store_fence_at_check": forced_aside,
    "late_outcome_discarded": woken_after_a_no,
    "resend_after_cancel": cancelled_while_out,
    "approval_without_digest": edited_meanwhile,
    "timeout_taken_as_failure": answered_too_late,
    "approval_survives_its_round": approved_once,
    "last_outcome_replaces_fold": better_then_worse,
    "stale_owner_writes": woken_after_a_resend,
    "negative_evidence_without_silence": late_request,
    "compensation_without_silence": undone_too_early,
    "retry_despite_happened": retried_in_spite,
    "key_minted_per_attempt": sent_twice_by_key,
    "reread_by_key_after_lost_ack": refused_beside_another,
    "send_by_beyond_window": after_the_window,
    "hook_compares_state_not_version": stale_look_up,
}
"""The plot that shows each mutant, by the mutant's name."""

DIRECTED_SHARE = 0.12


def plot_of(rng: random.Random) -> Plot:
    """The plot of a seed: mostly anything, sometimes a directed one (the costly ones rarely)."""
    if rng.random() >= DIRECTED_SHARE:
        return anything
    plots = list(DIRECTED.values())
    return rng.choices(plots, [0.2 if plot is stale_look_up else 1.0 for plot in plots])[0]
