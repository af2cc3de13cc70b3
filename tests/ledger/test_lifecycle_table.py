"""The table of the life of a call: complete, without a step that nothing can take, and obeyed by every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tollhouse.contract.terms import Dedup, Effect
from tollhouse.ledger import approvals, decisions, steps
from tollhouse.ledger.lifecycle import FOLD, FOLDED, TABLE, TRANSITIONS, Event, Forbidden, check, fold, strongest
from tollhouse.ledger.record import SETTLED, Attempt, AttemptOutcome, Lost, State
from tollhouse.testing.conformance.scenes import BEGINNINGS, HAUNTED, PLAIN, TRIALS, attempted
from tollhouse.testing.conformance.story import Story, new_call, terms

NOT_SENT, REJECTED, UNKNOWN = AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED, AttemptOutcome.UNKNOWN
ACCEPTED, HAPPENED = AttemptOutcome.ACCEPTED, AttemptOutcome.HAPPENED
Step = Callable[[Story], Story]
READ = terms(effect=Effect.READ, dedup=Dedup("natural"))


# -- every pair -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", TRIALS)
def test_a_step_takes_place_exactly_where_the_table_has_it(event: Event, state: State) -> None:
    """Legal and illegal pairs alike; where it takes place it ends where the table says."""
    story, took_place = attempted(event, state, Story())
    assert took_place == ((state, event) in TABLE)
    if took_place:
        assert story.state in TABLE[state, event].targets


def test_every_event_is_tried() -> None:
    """An event that joins the table joins the walk of all pairs."""
    assert set(TRIALS) | set(BEGINNINGS) == set(Event)


def test_rows_are_unique() -> None:
    """One row for a state and an event, so that a look-up is an answer."""
    assert len(TABLE) == len(TRANSITIONS)


MORE: list[Callable[[], object]] = [
    lambda: Story().read(REJECTED),
    lambda: Story().depart().end(NOT_SENT),
    lambda: Story().depart().end(ACCEPTED),
    lambda: Story().depart().end_wait().end(NOT_SENT),
    lambda: Story().depart().end_wait().end(REJECTED),
    lambda: Story().depart().end_wait().end(HAPPENED),
    lambda: Story().depart().end_wait().end(ACCEPTED),
    lambda: Story().depart().end_wait().resend().end(HAPPENED, number=1),
    lambda: HAUNTED[State.ACCEPTED](Story()).end(HAPPENED, number=1),
    lambda: HAUNTED[State.DEPARTED](Story()).end(HAPPENED, number=1).end_wait(),
    lambda: HAUNTED[State.DEPARTED](Story()).end(ACCEPTED, number=1).end_wait(),
    lambda: HAUNTED[State.DEPARTED](Story()).end_wait(number=1),
    lambda: HAUNTED[State.DEPARTED](Story()).end(HAPPENED, number=1).lose(),
    lambda: HAUNTED[State.DEPARTED](Story()).end(ACCEPTED, number=1).lose(),
    lambda: Story().depart().end_wait().resend("own_b").lose(),
    lambda: Story().depart().lose(),
    lambda: HAUNTED[State.DEPARTED](Story()).end(HAPPENED, number=1).force(),
    lambda: HAUNTED[State.DEPARTED](Story()).end(ACCEPTED, number=1).force(),
    lambda: Story().depart().end(UNKNOWN).settle("did_not_happen"),
    lambda: Story().depart().end(ACCEPTED).settle("did_not_happen"),
    lambda: Story().depart().end(REJECTED).retry(approval=Story().question()),
    lambda: Story().hold().deny().retry(approval=Story().question()),
    lambda: Story().hold().deny().retry(),
    lambda: Story.of(READ).hold().approve().depart().end_wait().end(HAPPENED),
    lambda: Story.of(READ).hold().approve().depart().end_wait().end(REJECTED),
    lambda: Story.of(READ).hold().approve().depart().end_wait().end(NOT_SENT),
    lambda: Story.of(READ).hold().approve().depart().lose(),
    lambda: Story.of(READ).hold().approve().depart().force(),
]
"""Stories that reach the targets which no trial ends in."""


def test_every_target_is_reached_by_some_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table shows no arrow along which no call can go."""
    reached: set[tuple[State | None, Event, State]] = set()

    def noting(source: State | None, event: Event, target: State | None = None) -> None:
        check(source, event, target)
        if target is not None:
            reached.add((source, event, target))

    monkeypatch.setattr(steps, "check", noting)
    monkeypatch.setattr(approvals, "check", noting)
    monkeypatch.setattr(decisions, "check", noting)
    for begin in BEGINNINGS.values():
        begin(Story())
    for event in TRIALS:
        for state in State:
            attempted(event, state, Story())
    for tell in MORE:
        tell()
    assert reached == {(row.source, row.event, target) for row in TRANSITIONS for target in row.targets}


def test_check_names_the_step_that_does_not_exist() -> None:
    """The words are for people."""
    with pytest.raises(Forbidden, match="A call that is held allows no wait ended") as caught:
        check(State.HELD, Event.WAIT_ENDED)
    assert caught.value.guard == "table"
    with pytest.raises(Forbidden, match="leads from held"):
        check(State.HELD, Event.APPROVE, State.SUCCEEDED)
    with pytest.raises(Forbidden, match="not recorded"):
        check(None, Event.RETRY)


def test_people_lead_out_of_every_open_state_and_only_they_out_of_a_settled_one() -> None:
    """A settled call is left by a named decision, never by a clock, a worker or a reply."""
    deciding = {Event.RETRY, Event.OVERTURN, Event.COMPENSATED}
    for row in TRANSITIONS:
        if row.source in SETTLED and row.targets != {row.source}:
            assert row.event in deciding
    for state in set(State) - SETTLED:
        assert any((state, event) in TABLE for event in (Event.DENY, Event.EVIDENCE, Event.FORCE))


def test_only_departures_lead_to_departed() -> None:
    """Nothing else gives a call an owner; late news of another attempt leaves it departed."""
    departing = {row.event for row in TRANSITIONS if State.DEPARTED in row.targets and row.source is not State.DEPARTED}
    assert departing == {Event.DEPART, Event.RESEND}


# -- the fold ---------------------------------------------------------------------------------------------------------


def with_outcomes(*outcomes: AttemptOutcome | None, effect: Effect = Effect.EXTERNAL) -> Story:
    """A call whose round has attempts with these outcomes."""
    attempts = tuple(Attempt(f"att_{n}", 1, n, "own_a", n, 0, 0, outcome) for n, outcome in enumerate(outcomes, 1))
    return Story(record=new_call(contract=terms(effect=effect), attempts=attempts))


ORDER = [NOT_SENT, REJECTED, UNKNOWN, ACCEPTED, HAPPENED]


@pytest.mark.parametrize("first", ORDER)
@pytest.mark.parametrize("second", [None, *ORDER])
@pytest.mark.parametrize("third", [None, *ORDER])
def test_the_state_is_the_image_of_the_strongest_outcome(
    first: AttemptOutcome, second: AttemptOutcome | None, third: AttemptOutcome | None
) -> None:
    """In whatever order they came; an attempt that is out keeps the call departed."""
    record = with_outcomes(first, second, third).record
    if None in (second, third):
        assert fold(record) is State.DEPARTED
    else:
        expected = [State.READY, State.FAILED, State.IN_DOUBT, State.ACCEPTED, State.SUCCEEDED]
        ranks = [ORDER.index(outcome) for outcome in (first, second, third) if outcome is not None]
        assert fold(record) is expected[max(ranks)]


def test_outcomes_have_one_order() -> None:
    """From the weakest word to the strongest."""
    assert sorted(AttemptOutcome, key=lambda outcome: outcome.rank) == ORDER
    assert strongest([]) is None
    assert strongest([REJECTED, HAPPENED, UNKNOWN]) is HAPPENED
    assert set(FOLD.values()) == FOLDED


def test_a_round_without_attempts_is_ready() -> None:
    """Nothing was sent in it, whatever was sent before."""
    story = Story().depart().end(REJECTED).retry()
    assert fold(story.record) is State.READY


def test_earlier_rounds_do_not_count() -> None:
    """The state is computed from the current round."""
    assert Story().depart().end(REJECTED).retry().depart().end(HAPPENED).state is State.SUCCEEDED


def test_a_settlement_stands_in_for_the_outcomes_it_judged() -> None:
    """And only for those: what an attempt itself proved stays."""
    judged = with_outcomes(UNKNOWN, REJECTED).record
    attempts = (replace(judged.attempts[0], judged=HAPPENED), judged.attempts[1])
    assert fold(replace(judged, attempts=attempts)) is State.SUCCEEDED


def test_a_read_is_never_in_doubt() -> None:
    """An abandoned read runs again."""
    assert fold(with_outcomes(UNKNOWN, REJECTED, effect=Effect.READ).record) is State.READY


# -- ends, in time and late -------------------------------------------------------------------------------------------


def test_an_outcome_in_time_moves_the_call() -> None:
    """With its result or its error."""
    done = Story().depart().end(HAPPENED, result='"cr_1"')
    assert done.record.result is not None
    assert done.record.result.text == '"cr_1"'
    assert done.record.error is None
    assert done.changes[-1].drafts[0].kind == "outcome"
    failed = Story().depart().end(REJECTED, error={"type": "Declined", "message": "no"})
    assert failed.record.error == {"type": "Declined", "message": "no"}


def test_a_call_stays_departed_while_another_attempt_is_out() -> None:
    """It folds when that one ends."""
    story = Story().depart().end_wait().resend()
    assert story.end(UNKNOWN, number=1).state is State.DEPARTED
    assert story.end(REJECTED, number=2).state is State.IN_DOUBT


def test_the_first_result_stands() -> None:
    """Of two replies the first is what callers heard and every replay gets; the second is kept with its attempt."""
    story = Story().depart().end_wait().resend().end(HAPPENED, number=2, result='"first"')
    assert story.end(HAPPENED, number=1, result='"second"').state is State.SUCCEEDED
    assert story.record.result is not None
    assert story.record.result.text == '"first"'
    late = story.attempt(1).late_result
    assert late is not None
    assert late.text == '"second"'


def test_no_error_speaks_over_a_result() -> None:
    """Whatever becomes of the other attempts after one happened."""
    ends: list[Step] = [
        lambda story: story.end(REJECTED, number=2, error={"type": "Declined", "message": "no"}),
        lambda story: story.end_wait(number=2),
        lambda story: story.lose(),
    ]
    for last in ends:
        story = last(Story().depart().end_wait().resend().end(HAPPENED, number=1))
        assert story.state is State.SUCCEEDED
        assert story.record.error is None
        assert story.record.result is not None


@pytest.mark.parametrize("outcome", [NOT_SENT, REJECTED, HAPPENED])
@pytest.mark.parametrize("after", ORDER)
def test_final_outcomes_are_final(outcome: AttemptOutcome, after: AttemptOutcome) -> None:
    """Nothing replaces them."""
    story = Story().depart().end(outcome)
    with pytest.raises(Forbidden, match="already ended"):
        story.end(after)


@pytest.mark.parametrize("outcome", [UNKNOWN, ACCEPTED])
def test_a_first_hand_end_is_given_once(outcome: AttemptOutcome) -> None:
    """An attempt that ended as unknown or accepted has said what it knows; the rest is evidence."""
    story = Story().depart().end(outcome)
    with pytest.raises(Forbidden, match="already ended"):
        story.end(HAPPENED)


@pytest.mark.parametrize("outcome", ORDER)
def test_an_abandoned_attempt_may_still_end(outcome: AttemptOutcome) -> None:
    """After the wait, after the lease, and with whatever it proves."""
    ways: list[Step] = [lambda story: story.end_wait(), lambda story: story.lose()]
    for abandon in ways:
        story = abandon(Story().depart()).end(outcome)
        assert story.attempt().outcome is outcome
        assert story.attempt().ended_at_us is not None
        assert story.attempt().lost is None
        assert story.state is FOLD[outcome]
        assert story.changes[-1].drafts[0].kind == "late_outcome"


@pytest.mark.parametrize("state", sorted(set(State) - {State.DEPARTED}))
def test_a_late_outcome_is_always_written_to_its_attempt(state: State) -> None:
    """In every state, of every round."""
    story = HAUNTED[state](Story()).end(HAPPENED, number=1, result='"late"')
    attempt = story.attempt(1)
    assert (attempt.outcome, attempt.late) == (HAPPENED, True)
    kept = attempt.late_result or story.record.result
    assert kept is not None
    assert kept.text == '"late"'


def test_the_end_of_a_wait_is_not_the_end_of_the_attempt() -> None:
    """The caller hears of a doubt at once; the attempt keeps its owner and its fence."""
    story = Story().depart()
    fence = story.record.fence
    story.end_wait()
    assert story.state is State.IN_DOUBT
    assert story.attempt().running
    assert story.record.fence == fence == story.attempt().fence
    assert story.record.open_owners == "own_a"
    assert story.record.due_at_us == story.now_us


def test_a_lost_owner_leaves_a_doubt_and_can_send_no_more() -> None:
    """Its open attempts become unknown, the fence rises, and what it may send ended with its lease."""
    story = Story().depart().later(10).lose()
    attempt = story.attempt()
    assert story.state is State.IN_DOUBT
    assert (attempt.outcome, attempt.lost, attempt.ended_at_us) == (UNKNOWN, Lost.LEASE, story.now_us)
    assert attempt.send_by_us == story.now_us
    assert story.record.fence == attempt.fence + 1
    assert story.record.open_owners is None
    with pytest.raises(Forbidden, match="no open attempt"):
        story.lose()


def test_a_lost_owner_does_not_end_another_owners_attempt() -> None:
    """The call stays departed with the one who still has it."""
    story = Story().depart("own_a").end_wait().resend("own_b").lose("own_a")
    assert story.state is State.DEPARTED
    assert story.record.open_owners == "own_b"


def test_force_sets_the_owner_aside() -> None:
    """The attempt may still run, so only its outcome is unknown; its fence is gone."""
    story = Story().depart().force()
    assert story.state is State.IN_DOUBT
    assert (story.attempt().outcome, story.attempt().running) == (UNKNOWN, True)
    assert story.record.fence == story.attempt().fence + 1


def test_the_fence_rises_wherever_somebody_may_be_set_aside() -> None:
    """At each departure, settlement and retry, and whenever an owner is set aside; never at an outcome."""
    rising = {"departed", "resent", "owner_lost", "forced", "settled", "overturned", "retried"}
    tales = [scene(Story()) for scene in (*PLAIN.values(), *HAUNTED.values())]
    tales.append(Story().depart().lose().later(900).settle("did_not_happen", "hook").end(HAPPENED).overturn())
    for story in tales:
        for change in story.changes:
            before = 0 if change.before is None else change.before.fence
            assert (change.record.fence > before) == (change.drafts[0].kind in rising)


def test_long_work_that_runs_past_its_deadline_is_a_doubt() -> None:
    """Accepted is provisional."""
    story = Story().depart().end(ACCEPTED)
    assert steps.job_deadline_us(story.record) == story.now_us + 3_600_000_000
    story.later(3600).pass_deadline()
    assert story.state is State.IN_DOUBT
    assert story.attempt().outcome is UNKNOWN
    assert steps.job_deadline_us(story.record) is None


def test_a_departed_call_has_an_owner_in_every_life() -> None:
    """And no other state needs one."""
    for scenes in (PLAIN, HAUNTED):
        for scene in scenes.values():
            for change in scene(Story()).changes:
                assert change.record.open_owners or change.record.state is not State.DEPARTED


def test_versions_and_times_never_run_back() -> None:
    """Each step is one version, and a clock that steps back moves no row's time."""
    story = Story().depart().later(-500).end(UNKNOWN).later(-500).settle("happened")
    assert [change.record.version for change in story.changes] == [1, 2, 3]
    times = [change.record.updated_at_us for change in story.changes]
    assert times == sorted(times)


def test_a_settled_call_leaves_the_repeat_check() -> None:
    """It gives its place up in the step that settles it."""
    assert Story.of(repeat_slot="slot").depart().end(HAPPENED).record.repeat_slot is None
    assert Story.of(repeat_slot="slot").depart().end(UNKNOWN).record.repeat_slot == "slot"
    assert Story.of(repeat_slot="slot").refuse().record.repeat_slot is None
    assert Story.of(repeat_slot="slot").read(HAPPENED).record.repeat_slot is None
