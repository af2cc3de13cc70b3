"""Steps of sending: how calls begin, depart, are sent again by their owner, and when they are looked at next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tollhouse.contract.terms import Dedup, Effect
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, State
from tollhouse.ledger.steps import Ending, end_attempt
from tollhouse.testing.conformance.story import T0, TERMS, Story, new_call, terms

NOT_SENT, REJECTED, UNKNOWN = AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED, AttemptOutcome.UNKNOWN
ACCEPTED, HAPPENED = AttemptOutcome.ACCEPTED, AttemptOutcome.HAPPENED
NO, YES = "did_not_happen", "happened"
SECOND = 1_000_000


# -- beginnings -------------------------------------------------------------------------------------------------------


def test_a_first_departure_is_the_whole_of_commit_1() -> None:
    """Call, attempt, window, deadline and event in one step."""
    story = Story().depart("own_a", send_for_s=30)
    attempt = story.attempt()
    assert (story.state, story.record.version, story.record.fence) == (State.DEPARTED, 1, 1)
    assert (attempt.owner, attempt.fence, attempt.round, attempt.number) == ("own_a", 1, 1, 1)
    assert (attempt.outcome, attempt.running, attempt.send_by_us) == (None, True, T0 + 30 * SECOND)
    assert story.record.departed_at_us == T0
    assert story.record.deadline_at_us == T0 + 120 * SECOND
    assert story.writes[0].expected is None
    assert story.writes[0].owner == "own_a"


def test_a_refused_call_replays_its_refusal() -> None:
    """It is a row, with the error that a caller gets again."""
    story = Story().refuse()
    assert (story.state, story.record.attempts) == (State.REFUSED, ())
    assert story.record.error == {"type": "policy", "message": "No."}


@pytest.mark.parametrize("outcome", [HAPPENED, REJECTED, UNKNOWN, NOT_SENT])
def test_a_read_is_recorded_once_and_never_in_doubt(outcome: AttemptOutcome) -> None:
    """Whatever it came to, after it ran."""
    story = Story.of(terms(effect=Effect.READ)).read(outcome)
    assert story.state is (State.SUCCEEDED if outcome is HAPPENED else State.FAILED)
    assert (story.record.version, story.record.fence) == (1, 1)
    assert not story.record.contradicted


# -- departures -------------------------------------------------------------------------------------------------------


def test_each_departure_raises_the_fence_and_keeps_the_first_moment() -> None:
    """The receiver's window counts from the first request that could have left."""
    story = Story().depart().later(5).end(NOT_SENT).later(5).depart("own_b")
    assert [(a.number, a.owner, a.fence) for a in story.record.attempts] == [(1, "own_a", 1), (2, "own_b", 2)]
    assert story.record.departed_at_us == T0
    assert story.record.deadline_at_us == T0 + 120 * SECOND
    assert story.record.error is None


def test_an_unsent_call_departs_again_without_dedup() -> None:
    """Nothing left, so nothing is repeated."""
    story = Story.of(terms(dedup=Dedup(), max_attempts=1)).depart().end(NOT_SENT)
    assert story.state is State.READY
    assert story.depart().state is State.DEPARTED


def test_numbers_go_on_over_rounds() -> None:
    """A round has its own attempts; their numbers are the call's."""
    story = Story().depart().end(REJECTED).retry().depart()
    assert [(a.round, a.number) for a in story.record.attempts] == [(1, 1), (2, 2)]
    assert [a.number for a in story.record.round_attempts] == [2]


# -- sending again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [UNKNOWN, REJECTED, NOT_SENT])
def test_an_owner_sends_again_in_the_commit_that_ends_its_attempt(outcome: AttemptOutcome) -> None:
    """The call stays departed throughout, so nobody else finds a doubt to settle."""
    story = Story().depart().end_and_resend(outcome)
    change = story.changes[-1]
    assert [draft.kind for draft in change.drafts] == ["outcome", "resent"]
    assert change.before is not None
    assert (change.before.version, change.record.version) == (1, 3)
    assert (story.state, story.attempt(1).outcome, story.attempt(2).outcome) == (State.DEPARTED, outcome, None)


RESENDS: dict[str, tuple[Callable[[], object], str | None]] = {
    "a doubt, by any process": (lambda: Story().depart("own_a").end_wait().resend("own_b"), None),
    "a doubt whose owner was lost": (lambda: Story().depart("own_a").lose().resend("own_b"), None),
    "a departed call, by its owner": (lambda: Story().depart("own_a").resend("own_a"), None),
    "a departed call, by another": (lambda: Story().depart("own_a").resend("own_b"), "fence"),
    "after its reply": (lambda: Story().depart().end_and_resend(HAPPENED), "D"),
    "after another took over": (
        lambda: Story().depart("own_a").end_wait().resend("own_b").end_and_resend(UNKNOWN, 1), "fence"
    ),
    "beyond all attempts": (lambda: Story().depart().resend().resend().resend(), "R"),
    "a rejection, by another": (lambda: Story().depart().end(REJECTED).resend("own_b"), "table"),
    "long work under way": (lambda: Story().depart().end(ACCEPTED).resend(), "table"),
}  # fmt: skip


@pytest.mark.parametrize("case", RESENDS)
def test_who_may_send_again(case: str) -> None:
    """The owner while it is departed, a reconciler once it is in doubt, nobody once the answer is known."""
    step, guard = RESENDS[case]
    if guard is None:
        step()
    else:
        with pytest.raises(Forbidden) as caught:
            step()
        assert caught.value.guard == guard


def test_an_unknown_attempt_ends_nothing() -> None:
    """An id of another call is a defect that says so."""
    with pytest.raises(Forbidden, match="no such attempt"):
        end_attempt(Story().depart().record, "att_9", Ending(HAPPENED), T0)


# -- when it is due ---------------------------------------------------------------------------------------------------

DUE: dict[str, tuple[Callable[[], Story], float | None]] = {
    "departed: its owner will say": (lambda: Story().depart(), None),
    "in doubt: at once": (lambda: Story().depart().later(5).end(UNKNOWN), 5),
    "in doubt by a lost owner: at once": (lambda: Story().depart().later(5).lose(), 5),
    "accepted: soon": (lambda: Story().depart().later(5).end(ACCEPTED), 6),
    "long work past its deadline: at once": (lambda: Story().depart().end(ACCEPTED).later(3600).pass_deadline(), 3600),
    "settled: never": (lambda: Story().depart().end(UNKNOWN).settle(YES), None),
    "failed: never": (lambda: Story().depart().end(REJECTED), None),
    "sent again: its owner will say": (lambda: Story().depart().end_wait().resend(), None),
    "held: when it expires": (lambda: Story().hold(), 3600),
    "approved: when it expires": (lambda: Story().hold().later(5).approve(), 3600),
    "approved, to run by itself: at once": (lambda: Story.of(run_when_approved=True).hold().later(5).approve(), 5),
    "unsent and approved: when it expires": (lambda: Story().hold().approve().depart().end(NOT_SENT), 3600),
    "unsent, to run by itself: soon": (
        lambda: Story.of(run_when_approved=True).hold().approve().depart().later(5).end(NOT_SENT), 6
    ),
    "unsent and cancelled: not by itself": (
        lambda: Story.of(run_when_approved=True).hold().approve().depart().cancel().end(NOT_SENT), 3600
    ),
    "unsent: when somebody asks": (lambda: Story().depart().end(NOT_SENT), None),
    "refused: never": (lambda: Story().hold().approve().cancel(), None),
}  # fmt: skip


@pytest.mark.parametrize("case", DUE)
def test_when_a_worker_looks_next(case: str) -> None:
    """Every state that somebody must move has its hour; the others have none."""
    tale, due_s = DUE[case]
    expected = None if due_s is None else T0 + round(due_s * SECOND)
    assert tale().record.due_at_us == expected


def test_an_approval_that_is_not_this_calls_sends_nothing() -> None:
    """Bound to the digest: a record whose arguments differ from what was approved does not depart."""
    story = Story().hold().approve()
    story.record = replace(story.record, digest="0" * 64)
    with pytest.raises(Forbidden, match="other arguments"):
        story.depart()


def test_a_call_keeps_the_contract_it_was_made_under() -> None:
    """Its terms are read from the row, whatever the tool says today."""
    record = new_call(contract=terms(absent_after_s=7.0))
    assert record.terms.absent_after_s == 7.0
    assert record.terms == terms(absent_after_s=7.0)
    assert TERMS.absent_after_s == 60.0
