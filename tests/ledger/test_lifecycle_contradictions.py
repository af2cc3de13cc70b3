"""Late outcomes and contradictions: what opens one, what does not, and that only a person closes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tollhouse.contract.terms import Dedup, Effect
from tollhouse.ledger.guards import contradicted
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, State, Stored
from tollhouse.testing.conformance.scenes import CONTRADICTED
from tollhouse.testing.conformance.story import Story, terms

NOT_SENT, REJECTED, UNKNOWN = AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED, AttemptOutcome.UNKNOWN
ACCEPTED, HAPPENED = AttemptOutcome.ACCEPTED, AttemptOutcome.HAPPENED
NO, YES = "did_not_happen", "happened"

Tale = Callable[[], Story]
Step = Callable[[Story], Story]


def doubt() -> Story:
    """A call in doubt whose attempt still runs."""
    return Story().depart().end_wait()


def denied(via: str = "person") -> Story:
    """Settled as not having happened while the attempt may still run."""
    return doubt().later(600).settle(NO, via, force=True)


def affirmed(via: str = "person") -> Story:
    """Settled as having happened while the attempt may still run."""
    return doubt().settle(YES, via)


def accepted_then(finding: str) -> Story:
    """Long work that a person settled."""
    return Story().depart().end(ACCEPTED).settle(finding)


CASES: dict[str, tuple[Tale, State, bool]] = {
    # what happened, where the call stands, whether a contradiction is open
    # -- against a person's or a hook's "did not happen"
    "it happened after a person's no": (lambda: denied().end(HAPPENED), State.FAILED, True),
    "it happened after a hook's no": (lambda: denied("hook").end(HAPPENED), State.FAILED, True),
    "it was accepted after a person's no": (lambda: denied().end(ACCEPTED), State.FAILED, True),
    "unknown after a no": (lambda: denied().end(UNKNOWN), State.FAILED, False),
    "rejected after a no": (lambda: denied().end(REJECTED), State.FAILED, False),
    "not sent after a no": (lambda: denied().end(NOT_SENT), State.FAILED, False),
    "a job known to be accepted was denied": (lambda: accepted_then(NO), State.FAILED, False),
    # -- against a person's or a hook's "happened"
    "it happened after a person's yes": (lambda: affirmed().end(HAPPENED), State.SUCCEEDED, False),
    "rejected after a person's yes": (lambda: affirmed().end(REJECTED), State.SUCCEEDED, True),
    "not sent after a hook's yes": (lambda: affirmed("hook").end(NOT_SENT), State.SUCCEEDED, True),
    "unknown after a yes": (lambda: affirmed().end(UNKNOWN), State.SUCCEEDED, False),
    "accepted after a yes": (lambda: affirmed().end(ACCEPTED), State.SUCCEEDED, False),
    "one of two was not sent after a yes": (
        lambda: doubt().resend().end_wait().settle(YES).end(NOT_SENT, 1), State.SUCCEEDED, False
    ),
    "none of two was sent after a yes": (
        lambda: doubt().resend().end_wait().settle(YES).end(NOT_SENT, 1).end(REJECTED, 2), State.SUCCEEDED, True
    ),
    # -- in another round
    "happened in the round before, ready": (lambda: denied().retry().end(HAPPENED, 1), State.READY, True),
    "happened in the round before, held": (
        lambda: denied().retry(approval=Story().question()).end(HAPPENED, 1), State.HELD, True
    ),
    "happened in the round before, departed": (
        lambda: denied().retry().depart().end(HAPPENED, 1), State.DEPARTED, True
    ),
    "happened in the round before, succeeded": (
        lambda: denied().retry().depart().end(HAPPENED, 2).end(HAPPENED, 1), State.SUCCEEDED, True
    ),
    "accepted in the round before": (lambda: denied().retry().depart().end(ACCEPTED, 1), State.DEPARTED, True),
    "rejected in the round before": (lambda: denied().retry().depart().end(REJECTED, 1), State.DEPARTED, False),
    # -- a hook's finding against what stands
    "found to have happened after a rejection": (
        lambda: Story().depart().end(REJECTED).settle(YES, "hook"), State.FAILED, True
    ),
    "found to have happened after a person's no": (lambda: denied().settle(YES, "hook"), State.FAILED, True),
    "found absent after a person's yes": (lambda: affirmed().later(600).settle(NO, "hook"), State.SUCCEEDED, True),
    "found absent after a reply": (
        lambda: Story().depart().end(HAPPENED).later(600).settle(NO, "hook"), State.SUCCEEDED, True
    ),
    "found absent after it was undone": (
        lambda: Story().depart().end(HAPPENED).later(600).compensate().settle(NO, "hook"), State.COMPENSATED, True
    ),
    "called back that it happened after a no": (lambda: denied().settle(YES, "callback"), State.FAILED, True),
    "found to have happened while held again": (
        lambda: denied().retry(approval=Story().question()).settle(YES, "hook"), State.HELD, True
    ),
    "found absent, as settled": (lambda: denied().settle(NO, "hook"), State.FAILED, False),
    "found present, as settled": (lambda: affirmed().settle(YES, "hook"), State.SUCCEEDED, False),
    # -- a finding says nothing about what began after it
    "found absent, then sent and happened": (
        lambda: Story().depart().end(NOT_SENT).settle(NO, "hook").depart().end(HAPPENED), State.SUCCEEDED, False
    ),
    "found absent, then retried and happened": (
        lambda: denied().settle(NO, "hook").retry().depart().end(HAPPENED), State.SUCCEEDED, False
    ),
    # -- nothing to disagree with
    "a late reply in doubt": (lambda: doubt().end(HAPPENED), State.SUCCEEDED, False),
    "a lost owner's late reply": (lambda: Story().depart().lose().end(HAPPENED), State.SUCCEEDED, False),
    "two replies of one round": (
        lambda: doubt().resend().end(HAPPENED, 2).end(HAPPENED, 1), State.SUCCEEDED, False
    ),
    "a failure beside a reply": (lambda: doubt().resend().end(HAPPENED, 2).end(REJECTED, 1), State.SUCCEEDED, False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_opens_a_contradiction(case: str) -> None:
    """An outcome or a finding against a settlement does; what agrees, or knows nothing, does not."""
    tale, state, is_open = CASES[case]
    story = tale()
    assert story.state is state
    assert story.record.contradicted == is_open
    told = [draft.kind for change in story.changes for draft in change.drafts]
    assert ("contradiction_opened" in told) == is_open


@pytest.mark.parametrize("case", [name for name, (_, _, is_open) in CASES.items() if is_open])
def test_only_a_person_closes_a_contradiction(case: str) -> None:
    """It is sticky: no later reply, look-up, lost owner or passing of time takes it back."""
    story = CASES[case][0]()
    later: list[Step] = [
        lambda s: s.settle(NO, "hook"),
        lambda s: s.settle(YES, "hook"),
        lambda s: s.look(),
        lambda s: s.lose(),
        lambda s: s.end(UNKNOWN, 1),
        lambda s: s.cancel(),
    ]
    for step in later:
        try:
            step(story.later(600))
        except Forbidden:
            continue
        assert story.record.contradicted
    story.uphold()
    assert not story.record.contradicted


@pytest.mark.parametrize("state", State)
def test_a_contradiction_is_a_function_of_the_record(state: State) -> None:
    """Recomputed, never remembered: the stored flag is what the rule says of the rest."""
    for change in CONTRADICTED[state](Story()).changes:
        assert change.record.contradicted == contradicted(change.record)


def test_each_contradiction_is_told_once() -> None:
    """A second piece of the same disagreement is history; after a decision a new one is told again."""
    story = denied().end(HAPPENED)
    story.settle(YES, "hook")
    told = [draft.kind for change in story.changes for draft in change.drafts]
    assert told.count("contradiction_opened") == 1
    story.uphold().settle(YES, "hook")
    told = [draft.kind for change in story.changes for draft in change.drafts]
    assert told.count("contradiction_opened") == 2


# -- decisions --------------------------------------------------------------------------------------------------------


def test_an_overturn_follows_the_recorded_effect() -> None:
    """To succeeded, with the late reply's result; what it decided stays decided."""
    story = denied().end(HAPPENED, result='"cr_1"').overturn()
    assert story.state is State.SUCCEEDED
    assert not story.record.contradicted
    assert story.record.result is not None
    assert story.record.result.text == '"cr_1"'
    assert story.record.error is None
    assert story.record.settlements[-1].kind == "overturn"


@pytest.mark.parametrize("via", ["hook", "callback"])
def test_an_overturn_follows_a_finding(via: str) -> None:
    """From every state in which nothing is under way, with what the look-up found."""
    tales: list[Tale] = [
        lambda: Story().depart().end(REJECTED),
        denied,
        lambda: denied().retry(),
        lambda: denied().retry(approval=Story().question()),
        lambda: denied().retry().cancel(),
    ]
    for tale in tales:
        assert tale().settle(YES, via).overturn().state is State.SUCCEEDED


def test_a_persons_word_alone_overturns_nothing() -> None:
    """To succeeded it needs a reply or a look-up; to failed, something that says it did not happen."""
    with pytest.raises(Forbidden, match="Nothing on record says that it happened"):
        denied().overturn()
    with pytest.raises(Forbidden, match="Nothing on record says that it did not"):
        affirmed().overturn()
    assert affirmed().overturn(evidence="statement of 3 May, no such payment").state is State.FAILED


def test_contrary_evidence_overturns_a_success() -> None:
    """A look-up that found nothing, or replies that prove nothing left; also after it was once upheld."""
    tales: list[Tale] = [
        lambda: affirmed().later(600).settle(NO, "hook"),
        lambda: affirmed().end(NOT_SENT),
        lambda: affirmed().later(600).settle(NO, "hook").uphold(),
    ]
    for tale in tales:
        story = tale().overturn()
        assert (story.state, story.record.contradicted, story.record.result) == (State.FAILED, False, None)
        assert story.retry().state is State.READY


def test_a_reply_is_never_overturned_to_failed() -> None:
    """What came back first-hand happened, whatever a look-up says."""
    story = Story().depart().end(HAPPENED).later(600).settle(NO, "hook")
    with pytest.raises(Forbidden, match="came back with a result"):
        story.overturn()
    assert story.uphold().state is State.SUCCEEDED


def test_new_information_opens_a_decided_contradiction_again() -> None:
    """What the person knew stays decided; what they did not know does not."""
    upheld = denied().settle(YES, "hook").uphold()
    assert not upheld.record.contradicted
    assert upheld.end(HAPPENED).record.contradicted
    overturned = affirmed().later(600).settle(NO, "hook").overturn()
    assert not overturned.record.contradicted
    assert overturned.end(HAPPENED).record.contradicted
    back = overturned.overturn()
    assert (back.state, back.record.contradicted) == (State.SUCCEEDED, False)


def test_an_upheld_no_allows_another_round() -> None:
    """A person decided in full view of the reply; a retry needs no more than that."""
    story = denied().end(HAPPENED).uphold()
    assert story.retry().depart().state is State.DEPARTED
    assert not story.record.contradicted


def test_the_result_of_a_settlement_survives_its_reversal() -> None:
    """Overturned to failed and back, the value that the look-up found is not lost."""
    found = Stored(text='"cr_9"', size=6)
    story = doubt().settle(YES, "hook", result=found).later(600).settle(NO, "hook").overturn()
    assert story.record.result is None
    assert story.overturn().record.result == found


def test_nothing_is_sent_under_an_open_contradiction() -> None:
    """In every state: no departure, no resend, no retry, no compensation."""
    sending: list[Step] = [lambda s: s.depart(), lambda s: s.resend(), lambda s: s.retry(), lambda s: s.compensate()]
    for state in State:
        for step in sending:
            story = CONTRADICTED[state](Story())
            with pytest.raises(Forbidden):
                step(story)


def test_uphold_needs_something_to_decide() -> None:
    """Where nothing disagrees there is nothing to uphold."""
    with pytest.raises(Forbidden, match="No contradiction"):
        denied().uphold()


def test_a_read_that_answers_after_it_was_given_up_is_a_success() -> None:
    """An abandoned read is ready; its late reply is welcome, and contradicts nothing."""
    read = terms(effect=Effect.READ, dedup=Dedup("natural"))
    story = Story.of(read).hold().approve().depart().end_wait()
    assert story.state is State.READY
    assert story.end(HAPPENED).state is State.SUCCEEDED
    assert not story.record.contradicted
