"""Acknowledgements of commits that are lost on the wire: no commit of a run is made twice, and none is missing.

A proxy before PostgreSQL swallows one. Either the server had committed, or it never saw the statement: nobody can tell.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.crash.runs.office import CREDIT, Office, Opened, credit_of, effects_of, office, opened, questions
from tests.crash.runs.test_failures import with_child
from tests.crash.runs.watching import begun, bundles, finished, side_by_side, some, sound, stands, steps, until
from tollhouse.errors import NotAllowed, RunNotAllowed, StoreUnavailable, UnknownQuestion
from tollhouse.ledger.events import first_break
from tollhouse.ledger.run_record import RunQuery, run_stream
from tollhouse.runs.agents import Limits
from tollhouse.testing.pgwire import Matching, Statement, Trap, Variant
from tollhouse.testing.proxy import Proxy
from tollhouse.testing.receiver import Receiver

pytestmark = [pytest.mark.crash, pytest.mark.postgres]

VARIANTS: tuple[Variant, ...] = ("applied", "not_applied")
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS)
OFTEN_APPLIED = pytest.mark.parametrize("variant", ["applied", pytest.param("not_applied", marks=pytest.mark.slow)])
"""For tests that repeat for each commit what others show of the variant that is slow here."""
TOOLS = {"tests.crash.tools:credits": {"hooks": True}, "tests.crash.tools:guarded": {"hooks": True}}
ASK = ("ask_person", {"question": "How much?"})
DELETE = ("delete_account", {"account": "a1"})
PATIENT = {"store_wait_s": 20.0, "lease_s": 30.0}
AWAY_S = 3.0
"""How long the store of an impatient office waits for its server before it says that it is away."""

WHOLE_LIFE = [
    "run_started", "model_answered", "calls_settled", "question_answered", "calls_settled", "model_failed",
    "model_answered", "calls_settled", "limit_reached", "limits_raised", "model_answered", "run_succeeded",
]  # fmt: skip
COMMITS = (
    "run_started", "run_claimed", "model_answered", "departed", "outcome", "calls_settled", "run_waiting",
    "question_answered", "model_failed", "held", "approved", "limit_reached", "limits_raised", "run_succeeded",
)  # fmt: skip
"""The commits of a run and of its calls, by an event that each has."""
FORGET = "forget"
"""The one write of a run that has no event: the notes of what woke it go."""


def writing(commit: str) -> Matching:
    """Statements that write an event of that kind, alone or in an array with the kinds of others."""
    if commit == FORGET:
        return re.compile(r"^DELETE FROM \S*wakes")
    alone = commit.encode()
    element = len(alone).to_bytes(4, "big") + alone

    def matches(statement: Statement) -> bool:
        given = [each for each in statement.parameters if each is not None]
        return "INTO" in statement.text and any(each == alone or element in each for each in given)

    return matches


@dataclass(frozen=True)
class Place:
    """An office whose way to its ledger may break. ``direct``: the same office by a way that does not."""

    office: Office
    direct: Office
    proxy: Proxy


MakePlace = Callable[..., Any]


@pytest.fixture
def place(shared_postgres_url: str, receiver: Receiver, house_tenant: str, temporal: str) -> MakePlace:
    """Describes an office behind a proxy of its own, as a context."""
    server = urlsplit(shared_postgres_url)
    assert server.hostname is not None
    assert server.port is not None
    target = (server.hostname, server.port)

    @contextmanager
    def made(name: str, plan: Any, **more: Any) -> Iterator[Place]:
        given = {"tools": TOOLS, "settings": PATIENT, "temporal": temporal, **more}
        tenant = f"{house_tenant}-{name.replace(' ', '-')}"
        with Proxy(*target) as proxy:
            direct = office(shared_postgres_url, receiver, tenant, plan, **given)
            yield Place(replace(direct, store=proxy.through(shared_postgres_url)), direct, proxy)

    return made


# -- each commit of a run ----------------------------------------------------------------------------------------------


async def whole_life(mine: Opened, receiver: Receiver) -> str:
    """A run through everything there is: a sibling, a question, a model that is away, an approval, a limit."""
    run_id: str = (await at_last(lambda: begun(mine))).id
    receiver.fault("error_before_effect", collection="questions", key=f"{run_id}:2", status=503)
    (question,) = (await stands(mine.runs, run_id, "awaiting_answer")).waiting
    await at_last(lambda: mine.runs.answer(run_id, question.id, "five", by="bob"), UnknownQuestion)
    (approval,) = (await stands(mine.runs, run_id, "awaiting_approval")).waiting
    await at_last(lambda: mine.house.approve(approval.id, by="bob"))
    await stands(mine.runs, run_id, "limit_reached")
    await at_last(lambda: mine.runs.raise_limits(run_id, {"turns": 9}, by="bob"), RunNotAllowed)
    return run_id


async def at_last(said: Callable[[], Awaitable[Any]], done: type[Exception] = NotAllowed) -> Any:
    """Say it until the store is there. ``done``: what is heard by whoever says it again though it was done."""
    told_away = False
    while True:
        try:
            return await said()
        except StoreUnavailable:
            told_away = True
            await asyncio.sleep(0.1)
        except done:
            assert told_away
            return None


@OFTEN_APPLIED
@pytest.mark.parametrize("commits", bundles((*COMMITS, FORGET), 8))
async def test_lost_acknowledgement_changes_nothing_of_a_run(
    place: MakePlace, receiver: Receiver, variant: Variant, commits: Sequence[str]
) -> None:
    """The write is repeated until it is applied or refused: the history is the one of a run that lost nothing."""

    async def lost(commit: str) -> None:
        account = f"{commit}-{variant}"
        plan = ((*credit_of(account)[0], ASK), (DELETE,))
        with place(account, plan, limits=Limits(turns=2)) as here:
            async with opened(here.office) as mine:
                trap = here.proxy.lose_next_ack(writing(commit), variant=variant)
                run_id = await whole_life(mine, receiver)
                await finished(mine.runs, run_id)
                assert_lost(trap, variant)
                await judged(mine, receiver, run_id, WHOLE_LIFE)
        assert effects_of(receiver, account) == (1, 1)

    await side_by_side(commits, lost)
    assert len(receiver.effects("deletions")) == len(commits)


def assert_lost(trap: Trap, variant: Variant) -> None:
    """The acknowledgement was lost, that of a commit where the server had seen the statement."""
    loss = trap.wait(0)
    assert (loss.variant, loss.error) == (variant, None)
    assert loss.status == ("I" if variant == "applied" else None)


async def judged(mine: Opened, receiver: Receiver, run_id: str, history: list[str]) -> None:
    """The history is this; no event is there twice; the model was asked for each turn as often as it has to be."""
    await sound(mine.runs, run_id)
    assert await steps(mine.runs, run_id) == history
    streams = [run_stream(run_id), *(f"call:{call.key}" for call in await mine.house.list(scope=run_id))]
    for stream in streams:
        events = await mine.runs.store.events(mine.runs.tenant, stream)
        assert first_break(events) is None
        told = [(event.kind, event.facts) for event in events]
        assert not [each for each, before in zip(told[1:], told, strict=False) if each == before]
    wanted = dict.fromkeys(range(1, 1 + history.count("model_answered")), 1)
    assert questions(receiver, run_id) == wanted | ({2: 2} if "model_failed" in history else {})


# -- a cancel, and a hand-over -----------------------------------------------------------------------------------------


@EACH_VARIANT
async def test_lost_acknowledgement_changes_nothing_of_a_cancel(
    place: MakePlace, receiver: Receiver, variant: Variant
) -> None:
    """The run is cancelled once, its held call refused once, and that all is tidied is told once."""

    async def lost(commit: str) -> None:
        account = f"{commit}-{variant}"
        with place(account, ((*credit_of(account)[0], DELETE),)) as here:
            async with opened(here.office) as mine:
                run_id = (await begun(mine)).id
                (approval,) = (await stands(mine.runs, run_id, "awaiting_approval")).waiting
                trap = here.proxy.lose_next_ack(writing(commit), variant=variant)
                run = await mine.runs.cancel(run_id, by="bob", reason="no")
                assert_lost(trap, variant)
                assert (run.state, (await mine.house.get(approval.id)).state) == ("cancelled", "refused")
                ending = ["run_cancelled", "run_tidied"]
                await judged(mine, receiver, run_id, ["run_started", "model_answered", "calls_settled", *ending])
        assert effects_of(receiver, account) == (1, 1)

    await side_by_side(("run_cancelled", "cancelled", "run_tidied"), lost)
    assert receiver.effects("deletions") == []


@EACH_VARIANT
async def test_lost_acknowledgement_changes_nothing_of_a_hand_over(
    place: MakePlace, receiver: Receiver, variant: Variant
) -> None:
    """A process that stops inside a tool hands its run over once; the next one makes the next step."""
    with place(variant, ((CREDIT,),)) as here:
        async with opened(here.direct, drives=False) as desk:
            run_id = (await begun(desk)).id
        receiver.fault("hold_after_effect", collection="credits")
        async with opened(here.office) as old:
            await receiver.await_for_effects(1, collection="credits")
            trap = here.proxy.lose_next_ack(writing("run_released"), variant=variant)
            stopping = asyncio.ensure_future(old.driver.stop(20.0)) if old.driver else None
            await asyncio.sleep(0)  # it takes no more steps from here on
            receiver.release()
            assert stopping is not None
            await stopping
        assert_lost(trap, variant)
        async with opened(here.direct) as new:
            await finished(new.runs, run_id)
            history = ["run_started", "model_answered", "calls_settled", "model_answered", "run_succeeded"]
            await judged(new, receiver, run_id, history)
            kinds = [event.kind for event in await new.runs.events(run_id)]
            assert [kinds.count(each) for each in ("run_claimed", "run_released")] == [2, 1]
    assert effects_of(receiver, "a1") == (1, 1)


@OFTEN_APPLIED
async def test_lost_acknowledgement_changes_nothing_of_a_child(
    place: MakePlace, receiver: Receiver, variant: Variant
) -> None:
    """A run whose tool is another agent's run: the child is started once, and its end is told to the call once."""

    async def lost(at: str) -> None:
        commit, _, nth = at.partition(" ")
        account = f"{at}-{variant}"
        with place(account, (), tools=TOOLS) as here:
            trap = here.proxy.lose_next_ack(writing(commit), variant=variant, skip=int(nth or 1) - 1)
            async with opened(with_child(here.office, account)) as mine:
                run = await finished(mine.runs, (await begun(mine)).id)
                (child,) = await mine.runs.list(RunQuery(parent_run_id=run.id))
                await until(mine.runs, child.id, lambda child: child.record.due_at_us is None)  # it is tidied
                assert_lost(trap, variant)
                history = ["run_started", "model_answered", "calls_settled", "model_answered", "run_succeeded"]
                await judged(mine, receiver, run.id, history)
                await judged(mine, receiver, child.id, [*history, "run_tidied"])
        assert effects_of(receiver, account) == (1, 1)

    await side_by_side(("run_started 2", "outcome", "settled", "run_succeeded", "run_tidied"), lost)


# -- and then the server stays away ------------------------------------------------------------------------------------


@asynccontextmanager
async def away_after(here: Place, commit: str, variant: Variant) -> AsyncIterator[None]:
    """Lose the acknowledgement, and let nobody connect until well after the store has given up."""
    trap = here.proxy.lose_next_ack(writing(commit), variant=variant, then_away=True)

    async def back() -> None:
        await asyncio.to_thread(trap.wait, 60.0)
        await asyncio.sleep(AWAY_S + 1.0)
        here.proxy.pass_through()

    coming = asyncio.ensure_future(back())
    try:
        yield
    finally:
        here.proxy.pass_through()
        await coming
    assert_lost(trap, variant)


GIVEN_UP = ("run_claimed", "model_answered", "calls_settled", "run_succeeded")
"""Those that `make test` tries; the others are slow."""
PEOPLE = ("run_started", "question_answered", "approved", "limits_raised")
"""Commits that somebody waits for: they hear that the store is away, and say it again."""


@OFTEN_APPLIED
@pytest.mark.parametrize("commits", some((*COMMITS, FORGET), GIVEN_UP, 4))
async def test_run_whose_store_gave_up_over_a_commit_goes_on_by_itself(
    place: MakePlace, receiver: Receiver, variant: Variant, commits: Sequence[str]
) -> None:
    """Its process lives, was told that the store is away, and cannot know what is written: it reads, and goes on."""

    async def lost(commit: str) -> None:
        account = f"{commit}-{variant}"
        plan = ((*credit_of(account)[0], ASK), (DELETE,))
        with place(account, plan, limits=Limits(turns=2)) as here:
            impatient = replace(here.office, settings={**PATIENT, "store_wait_s": AWAY_S})
            async with opened(impatient) as mine, opened(here.direct, drives=False) as desk:
                async with away_after(here, commit, variant):
                    run_id = await whole_life(mine if commit in PEOPLE else desk, receiver)
                    await until(desk.runs, run_id, lambda run: run.record.finished, timeout_s=60.0)
                await finished(desk.runs, run_id)
                await judged(desk, receiver, run_id, WHOLE_LIFE)
        assert effects_of(receiver, account) == (1, 1)

    await side_by_side(commits, lost)
    assert len(receiver.effects("deletions")) == len(commits)
