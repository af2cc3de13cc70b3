"""What people decide: approvals, refusals, retries, settlements by name, compensations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tollhouse.ledger.decisions import Finding
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, State
from tollhouse.testing.conformance.scenes import PLAIN
from tollhouse.testing.conformance.story import Story, digest_of, terms

NOT_SENT, REJECTED, UNKNOWN = AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED, AttemptOutcome.UNKNOWN
ACCEPTED, HAPPENED = AttemptOutcome.ACCEPTED, AttemptOutcome.HAPPENED
NO, YES = "did_not_happen", "happened"
HOUR = 3600.0
Tale = Callable[[], Story]


def forbidden_by(step: Callable[[], object]) -> str | None:
    """The guard that forbade a step; None when it took place."""
    try:
        step()
    except Forbidden as forbidden:
        return forbidden.guard
    return None


# -- approvals --------------------------------------------------------------------------------------------------------


def test_a_quorum_makes_a_call_ready() -> None:
    """Each yes is a vote of its own person, kept in order."""
    story = Story().hold(quorum=3)
    states = [story.approve(by).state for by in ("ada", "bob", "cyd")]
    assert states == [State.HELD, State.HELD, State.READY]
    approval = story.record.approval
    assert approval is not None
    assert [vote.by for vote in approval.votes] == ["ada", "bob", "cyd"]
    assert approval.granted_at_us == story.now_us
    assert [change.drafts[0].kind for change in story.changes] == ["held", "voted", "voted", "approved"]


OTHER = digest_of("{}")
VOTES: dict[str, tuple[Callable[[], object], str | None]] = {
    "another person": (lambda: Story().hold().approve("ada"), None),
    # case H08
    "the requester": (lambda: Story().hold().approve("rita"), "requester"),
    "nobody": (lambda: Story().hold().approve(" "), "name"),
    "the same person twice": (lambda: Story().hold(quorum=2).approve().approve(), "voted"),
    "an approver on the list": (lambda: Story().hold(approvers=("ada",)).approve("ada"), None),
    "somebody not on the list": (lambda: Story().hold(approvers=("bob",)).approve("ada"), "entitled"),
    "the requester, though on the list": (lambda: Story().hold(approvers=("rita",)).approve("rita"), "requester"),
    "in view of the arguments": (lambda: Story().hold().approve(digest=Story().record.digest), None),
    "in view of other arguments": (lambda: Story().hold().approve(digest=OTHER), "digest"),
    "in view of arguments edited since": (
        lambda: Story().hold().edit(by="bob").approve(digest=Story().record.digest), "digest"
    ),
    "just before it expires": (lambda: Story().hold().later(HOUR - 1).approve(), None),
    "when it expires": (lambda: Story().hold().later(HOUR).approve(), "expired"),
    "a call that is ready": (lambda: Story().hold().approve().approve("bob"), "table"),
    "a call that waits for nobody": (lambda: Story().depart().approve(), "table"),
}  # fmt: skip


@pytest.mark.parametrize("case", VOTES)
def test_who_may_approve_what(case: str) -> None:
    """Never the requester, never twice, never something else than was shown, never too late."""
    step, guard = VOTES[case]
    assert forbidden_by(step) == guard


EDITS: dict[str, tuple[Callable[[], object], str | None]] = {
    "an approver": (lambda: Story().hold().edit(), None),
    "the requester": (lambda: Story().hold().edit(by="rita"), "requester"),
    "somebody not on the list": (lambda: Story().hold(approvers=("bob",)).edit(), "entitled"),
    "too late": (lambda: Story().hold().later(HOUR).edit(), "expired"),
    "once something departed": (
        lambda: Story().depart().end(REJECTED).retry(approval=Story().question()).edit(), "departed"
    ),
    "once it is ready": (lambda: Story().hold().approve().edit(), "table"),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITS)
def test_who_may_edit_what(case: str) -> None:
    """Only a held call of which nothing ever departed."""
    step, guard = EDITS[case]
    assert forbidden_by(step) == guard


def test_an_edit_voids_the_votes() -> None:
    """People agreed to something else; what was requested is kept beside what will run."""
    story = Story().hold(quorum=2).approve("ada").edit('{"amount_cents":1}', by="bob")
    assert story.state is State.HELD
    assert story.record.approval is not None
    assert story.record.approval.votes == ()
    assert (story.record.arguments, story.record.digest) == ('{"amount_cents":1}', digest_of('{"amount_cents":1}'))
    assert story.record.request_digest == Story().record.request_digest
    assert story.approve("ada").approve("bob").depart().writes[-1].arguments_changed is False


def test_an_approval_covers_all_sendings_of_its_round() -> None:
    """Consumed by the first, good for the others until it expires."""
    story = Story().hold().approve().depart().end(NOT_SENT).depart()
    assert story.record.approval is not None
    assert story.record.approval.consumed_round == 1
    assert forbidden_by(lambda: story.end_wait().resend()) is None


DEPARTURES: dict[str, tuple[Callable[[], object], str | None]] = {
    "approved": (lambda: Story().hold().approve().depart(), None),
    "approved, just before it expires": (lambda: Story().hold().approve().later(HOUR - 1).depart(), None),
    "approved, but expired": (lambda: Story().hold().approve().later(HOUR).depart(), "approval"),
    "resent, but expired": (lambda: Story().hold().approve().depart().end_wait().later(HOUR).resend(), "approval"),
    "retried without needing one": (lambda: Story().hold().approve().depart().end(REJECTED).retry().depart(), None),
}


@pytest.mark.parametrize("case", DEPARTURES)
def test_approvals_are_checked_at_every_departure(case: str) -> None:
    """What was good once may not be any more."""
    step, guard = DEPARTURES[case]
    assert forbidden_by(step) == guard


@pytest.mark.parametrize("spent", [True, False], ids=["used", "unused"])
def test_a_retry_never_reuses_an_approval(spent: bool) -> None:
    """Not even when the caller passes the old one, and not even when it was never used."""
    story = Story().hold().approve()
    old = story.record.approval
    story = story.depart().end(REJECTED) if spent else story.cancel()
    story.retry(approval=old)
    assert story.state is State.HELD
    approval = story.record.approval
    assert approval is not None
    assert (approval.votes, approval.granted_at_us, approval.consumed_round) == ((), None, None)
    assert forbidden_by(story.depart) == "table"
    story.approve().depart()
    assert story.record.approval is not None
    assert story.record.approval.consumed_round == 2


def test_a_lapse_asks_anew() -> None:
    """What was approved is not what would run now."""
    story = Story().hold().approve().lapse()
    assert story.state is State.HELD
    assert story.record.approval is not None
    assert story.record.approval.votes == ()
    assert story.record.due_at_us == story.record.approval.expires_at_us


def test_every_hold_and_every_approval_expires() -> None:
    """At its hour, and not before."""
    tales: list[Tale] = [lambda: Story().hold(), lambda: Story().hold().approve()]
    for tale in tales:
        story = tale()
        assert story.record.due_at_us == story.now_us + round(HOUR * 1_000_000)
        assert forbidden_by(story.later(HOUR - 1).expire) == "expiry"
        assert story.later(1).expire().state is State.REFUSED
    assert forbidden_by(lambda: Story().depart().end(NOT_SENT).later(HOUR).expire()) == "expiry"


def test_looking_at_a_waiting_call_leaves_the_hour_of_its_end() -> None:
    """A look-up of a held call, whatever it finds, must not keep it from expiring."""
    looks: list[Callable[[Story], Story]] = [
        lambda s: s.look(next_in_s=None),
        lambda s: s.look(),
        lambda s: s.settle(YES, "hook"),
    ]
    for look in looks:
        story = Story().depart().end(REJECTED).retry(approval=Story().question())
        due_at_us = story.record.due_at_us
        assert due_at_us is not None
        assert look(story).record.due_at_us == due_at_us


# -- refusals ---------------------------------------------------------------------------------------------------------

NAMELESS: dict[str, Callable[[str, str], object]] = {
    "deny": lambda by, reason: Story().hold().deny(by, reason),
    "retry": lambda by, reason: Story().refuse().retry(by, reason),
    "overturn": lambda by, reason: Story().depart().end(REJECTED).settle(YES, "hook").overturn(by, reason),
    "uphold": lambda by, reason: Story().depart().end(REJECTED).settle(YES, "hook").uphold(by, reason),
    "force": lambda by, reason: Story().depart().force(by, reason),
    "settle": lambda by, reason: Story().depart().end(UNKNOWN).settle(YES, by=by, reason=reason),
}


@pytest.mark.parametrize("verb", NAMELESS)
def test_a_decision_has_a_name_and_a_reason(verb: str) -> None:
    """Both are kept with it, so neither may be empty."""
    decide = NAMELESS[verb]
    assert forbidden_by(lambda: decide("ada", "because")) is None
    assert forbidden_by(lambda: decide("  ", "because")) == "name"
    assert forbidden_by(lambda: decide("ada", "\n")) == "reason"


def test_only_approvers_deny_where_they_are_named() -> None:
    """Where nobody is named, anybody may; the requester too, as with a cancel."""
    assert forbidden_by(lambda: Story().hold(approvers=("bob",)).deny("ada")) == "entitled"
    assert Story().hold(approvers=("bob",)).deny("bob").state is State.REFUSED
    assert Story().hold().deny("rita").state is State.REFUSED


def test_a_gate_refuses_a_ready_call() -> None:
    """All gates again at departure; the refusal is what the key replays."""
    story = Story().hold().approve().deny_by_gate()
    assert story.state is State.REFUSED
    assert story.record.error == {"type": "policy", "message": "No."}


def test_a_cancel_refuses_what_was_not_sent() -> None:
    """And only marks what may have been."""
    for state in (State.HELD, State.READY):
        story = PLAIN[state](Story()).cancel()
        assert (story.state, story.record.cancel_asked) == (State.REFUSED, False)
    for state in (State.DEPARTED, State.ACCEPTED, State.IN_DOUBT):
        story = PLAIN[state](Story()).cancel()
        assert (story.state, story.record.cancel_asked) == (state, True)
    for state in (State.SUCCEEDED, State.FAILED, State.REFUSED, State.COMPENSATED):
        assert forbidden_by(PLAIN[state](Story()).cancel) == "table"


# -- retries ----------------------------------------------------------------------------------------------------------


def test_a_retry_begins_a_new_round() -> None:
    """With everything of the old one kept, and nothing of it in force."""
    story = Story.of(terms(max_attempts=3)).depart().end_wait(cancel=True).settle(NO, force=True).look()
    fence = story.record.fence
    story.retry("ada", "the bank says no such payment")
    record = story.record
    assert (record.state, record.round, record.fence) == (State.READY, 2, fence + 1)
    assert (record.cancel_asked, record.looks, record.error, record.deadline_at_us) == (False, 0, None, None)
    assert len(record.attempts) == 1
    assert record.departed_at_us is not None
    assert story.changes[-1].drafts[0].data["reason"] == "the bank says no such payment"


def test_a_retry_that_needs_approval_waits() -> None:
    """With an hour at which it ends."""
    story = Story().refuse()
    question = story.question()
    story.retry(approval=question)
    assert story.state is State.HELD
    assert story.record.due_at_us == question.expires_at_us


def test_a_retry_runs_by_itself_where_that_was_asked_for() -> None:
    """``run_when_approved``: a worker finds it at once."""
    assert Story.of(run_when_approved=True).refuse().retry().record.due_at_us == Story().now_us
    assert Story().refuse().retry().record.due_at_us is None


# -- settlements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("finding", "state"), [(YES, State.SUCCEEDED), (NO, State.FAILED)])
@pytest.mark.parametrize("via", ["hook", "person", "callback"])
@pytest.mark.parametrize("tale", [lambda: Story().depart().end(UNKNOWN), lambda: Story().depart().end(ACCEPTED)])
def test_evidence_settles_a_doubt(finding: str, state: State, via: str, tale: Callable[[], Story]) -> None:
    """Whoever brings it; attempts keep what they themselves said."""
    story = tale().later(600)
    said = story.attempt().outcome
    about_the_job = "failed" if finding == NO and story.state is State.ACCEPTED else None
    story.settle(finding, via, evidence={"page": 3}, reference="r-1", job_status=about_the_job)
    settlement = story.record.settlements[-1]
    assert story.state is state
    assert story.attempt().outcome is said
    assert (settlement.kind, settlement.via, settlement.finding) == ("evidence", via, finding)
    assert (settlement.evidence, settlement.reference, settlement.round) == ({"page": 3}, "r-1", 1)
    assert dict(settlement.covers) == {"att_1": said}
    assert story.record.due_at_us is None


def test_a_doubt_is_settled_while_its_attempt_runs() -> None:
    """That it happened, at once; that it did not, only by force."""
    assert Story().depart().end_wait().settle(YES).state is State.SUCCEEDED
    assert forbidden_by(lambda: Story().depart().end_wait().settle(NO)) == "force"
    assert Story().depart().end_wait().settle(NO, force=True).state is State.FAILED


def test_a_departed_call_is_settled_by_force_first() -> None:
    """Force and resolve are one step on top of the other."""
    assert forbidden_by(lambda: Story().depart().settle(YES)) == "table"
    assert forbidden_by(lambda: Story().depart().settle(YES, "hook")) == "table"
    assert Story().depart().force().settle(NO, force=True).state is State.FAILED


def test_a_person_settles_doubts_only() -> None:
    """A settled call is overturned, which asks for evidence."""
    for state in set(State) - {State.IN_DOUBT, State.ACCEPTED}:
        assert forbidden_by(partial(PLAIN[state](Story()).settle, YES)) == "table"


def test_what_is_neither_yes_nor_no_is_no_finding() -> None:
    """An *unknown* settles nothing, and no path may take it for a no."""
    for finding, via in (("unknown", "hook"), ("", "hook"), (YES, "rumour")):
        with pytest.raises(ValueError, match="is no finding"):
            Finding("dec_1", finding, via, began_us=0)


def test_a_look_up_that_settles_nothing_is_history() -> None:
    """It counts towards the backoff, and moves the hour of the next."""
    story = Story().depart().end(UNKNOWN).look(next_in_s=60).look(next_in_s=120)
    assert story.record.looks == 2
    assert story.record.due_at_us == story.now_us + 120_000_000
    assert story.state is State.IN_DOUBT


# -- compensation -----------------------------------------------------------------------------------------------------


def test_an_undone_call_names_what_undid_it() -> None:
    """And stays undone."""
    story = Story().depart().end(HAPPENED).later(600).compensate("order-7:void")
    assert (story.state, story.record.compensated_by) == (State.COMPENSATED, "order-7:void")
    assert story.record.result is not None
    assert forbidden_by(lambda: story.compensate("again")) == "table"
    assert forbidden_by(story.retry) == "table"
