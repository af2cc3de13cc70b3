"""The guards on both sides: what they let through, and what they stop, as tables of cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tollhouse.contract.terms import Dedup, Effect, Terms
from tollhouse.ledger.guards import guard_d, guard_r, guard_s, silent_from_us, used_attempts
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import AttemptOutcome, Lost
from tollhouse.testing.conformance.story import T0, TERMS, Story, terms

NOT_SENT, REJECTED, UNKNOWN = AttemptOutcome.NOT_SENT, AttemptOutcome.REJECTED, AttemptOutcome.UNKNOWN
ACCEPTED, HAPPENED = AttemptOutcome.ACCEPTED, AttemptOutcome.HAPPENED
NO, YES = "did_not_happen", "happened"

Tale = Callable[[], Story]


def abandoned() -> Story:
    """Failed on a person's word while the attempt still runs."""
    return Story().depart().end_wait().settle(NO, force=True)


# -- guard D ----------------------------------------------------------------------------------------------------------

GUARD_D: dict[str, tuple[Tale, bool]] = {
    "nothing was sent": (lambda: Story().hold().approve(), True),
    "rejected": (lambda: Story().depart().end(REJECTED), True),
    "unknown, out or accepted": (lambda: Story().depart().end(UNKNOWN), True),
    "judged not to have happened": (abandoned, True),
    "happened": (lambda: Story().depart().end(HAPPENED), False),
    "judged to have happened": (lambda: Story().depart().end_wait().settle(YES), False),
    "happened beside one that is out": (lambda: Story().depart().end_wait().resend().end(HAPPENED, 1), False),
    "happened late, against a settlement": (lambda: abandoned().end(HAPPENED), False),
    "happened in an earlier round": (lambda: abandoned().retry().end(HAPPENED, 1), False),
    "happened late, and upheld": (lambda: abandoned().end(HAPPENED).uphold(), True),
    "happened in an earlier round, and upheld": (lambda: abandoned().retry().end(HAPPENED, 1).uphold(), True),
    "found by a look-up since": (lambda: abandoned().settle(YES, "hook"), False),
    "found by a look-up, and upheld": (lambda: abandoned().settle(YES, "hook").uphold(), True),
    "absent by a look-up that agrees": (lambda: abandoned().later(600).settle(NO, "hook"), True),
    "upheld, then happened": (lambda: abandoned().settle(YES, "hook").uphold().end(HAPPENED), False),
}


@pytest.mark.parametrize("case", GUARD_D)
def test_guard_d(case: str) -> None:
    """No departure, resend or retry while an effect is known or a contradiction is open."""
    tale, passes = GUARD_D[case]
    story = tale()
    if passes:
        guard_d(story.record)
    else:
        with pytest.raises(Forbidden) as caught:
            guard_d(story.record)
        assert caught.value.guard == "D"


@pytest.mark.parametrize(
    "send",
    [
        lambda: abandoned().retry().end(HAPPENED, 1).depart(),
        lambda: abandoned().retry().depart().end_wait().end(HAPPENED, 1).resend(),
        lambda: abandoned().retry().depart().end(HAPPENED, 1).end_and_resend(UNKNOWN),
        lambda: abandoned().end(HAPPENED).retry(),
    ],
    ids=["departure", "resend", "resend by its owner", "retry"],
)
def test_every_way_to_send_asks_guard_d(send: Tale) -> None:
    """An effect that is known, in whatever round, stops them all."""
    with pytest.raises(Forbidden) as caught:
        send()
    assert caught.value.guard == "D"


# -- guard R ----------------------------------------------------------------------------------------------------------

NATURAL, NONE = Dedup("natural"), Dedup()
HOUR, MARGIN = 3600.0, 300.0


def doubt(contract: Terms = TERMS) -> Story:
    """A call in doubt under these terms."""
    return Story.of(contract).depart().end_wait()


def dedup(kind: Dedup, **more: object) -> Terms:
    """Terms with that dedup and as many attempts as it defaults to."""
    return terms(dedup=kind, max_attempts=3 if kind.allows_resend else 1, **more)


GUARD_R: dict[str, tuple[Terms, Terms, float, bool]] = {
    # contract then, contract today, seconds after the first departure, allowed
    "by key": (TERMS, TERMS, 0, True),
    "by key, just inside": (TERMS, TERMS, 24 * HOUR - MARGIN - 1, True),
    "by key, at the margin": (TERMS, TERMS, 24 * HOUR - MARGIN, False),
    "by key, today shorter": (TERMS, dedup(Dedup("by_key", 1.0)), HOUR - MARGIN, False),
    "by key, then shorter": (dedup(Dedup("by_key", 1.0)), TERMS, HOUR - MARGIN, False),
    "by key, then shorter, inside": (dedup(Dedup("by_key", 1.0)), TERMS, HOUR - MARGIN - 1, True),
    "the wider margin counts": (TERMS, terms(resend_margin_s=HOUR), 23 * HOUR, False),
    "the wider margin of then counts": (terms(resend_margin_s=HOUR), TERMS, 23 * HOUR, False),
    "natural": (dedup(NATURAL), dedup(NATURAL), 0, True),
    "natural, just inside the deadline": (dedup(NATURAL), dedup(NATURAL), 119, True),
    "natural, at the deadline": (dedup(NATURAL), dedup(NATURAL), 120, False),
    "by key then, natural today": (TERMS, dedup(NATURAL), 120, False),
    "natural then, by key today": (dedup(NATURAL), TERMS, 120, False),
    "none": (dedup(NONE), dedup(NONE), 0, False),
    "none then, though today allows it": (dedup(NONE), TERMS, 0, False),
    "none today, though it was allowed": (TERMS, dedup(NONE), 0, False),
    "one attempt today": (TERMS, terms(max_attempts=1), 0, False),
}


@pytest.mark.parametrize("case", GUARD_R)
def test_guard_r(case: str) -> None:
    """Sent again only while the receiver recognises it, by the contract of then and by that of today."""
    then, today, after_s, allowed = GUARD_R[case]
    story = doubt(then).later(after_s)
    if allowed:
        end_us = guard_r(story.record, today, story.now_us)
        assert end_us is not None
        assert end_us > story.now_us
    else:
        with pytest.raises(Forbidden) as caught:
            guard_r(story.record, today, story.now_us)
        assert caught.value.guard == "R"


def test_the_window_counts_from_the_first_departure_of_all() -> None:
    """Not from a later round's: the receiver has known the key since then."""
    story = doubt().settle(NO, force=True).retry().later(24 * HOUR - MARGIN).depart().end_wait()
    with pytest.raises(Forbidden, match="has ended"):
        story.resend()


def test_a_resend_may_send_no_longer_than_the_window() -> None:
    """``send_by`` of a resend ends with the window less its margin; a departure's does not."""
    story = doubt(dedup(Dedup("by_key", 1.0))).later(HOUR - MARGIN - 10).resend(send_for_s=30)
    assert story.attempt().send_by_us == story.now_us + 10_000_000
    natural = doubt(dedup(NATURAL)).later(110).resend(send_for_s=30)
    assert natural.attempt().send_by_us == natural.now_us + 10_000_000


def test_nothing_is_sent_again_after_a_cancel() -> None:
    """Until a new round."""
    story = doubt().cancel()
    with pytest.raises(Forbidden, match="cancelled"):
        story.resend()
    story.settle(NO, force=True).retry().depart().end_wait().resend()


def test_a_cancel_of_an_unsent_attempt_forbids_resends_for_the_whole_round() -> None:
    """The caller who asks anew takes the cancel back for one departure, whose check before bytes leave then passes."""
    story = Story().depart().end_wait(cancel=True).end(NOT_SENT)
    assert story.record.cancel_asked
    assert not story.depart().record.cancel_asked
    story.end_wait()
    with pytest.raises(Forbidden, match="cancelled"):
        story.resend()
    story.settle(NO, force=True).retry().depart().end_wait().resend()


def test_attempts_are_counted_by_round_and_without_the_unsent() -> None:
    """``not_sent`` uses up no attempt; a new round has all of them again."""
    story = Story().depart().end(NOT_SENT).depart().end_wait().resend().end_wait().resend()
    assert used_attempts(story.record) == 3
    story.end_wait()
    with pytest.raises(Forbidden, match="used up"):
        story.resend()
    story.settle(NO, force=True).retry()
    assert used_attempts(story.record) == 0


def test_what_never_departed_cannot_be_sent_again() -> None:
    """There is no window to be inside."""
    with pytest.raises(Forbidden, match="Nothing was sent yet"):
        guard_r(Story().hold().record, TERMS, T0)


# -- guard S ----------------------------------------------------------------------------------------------------------

CHECKED, UNCHECKED = TERMS, terms(departs="at_start")
ABSENT = 60.0

GUARD_S: dict[str, tuple[Terms, Callable[[Story], Story], float | None]] = {
    # contract, what happened in the first ten seconds, when silence is long enough (None: not knowable yet)
    "ended by itself": (CHECKED, lambda s: s.depart().later(10).end(UNKNOWN), 10 + ABSENT),
    "still running, until it may not send": (CHECKED, lambda s: s.depart().later(10).end_wait(), 30 + ABSENT),
    "lost, until its lease ended": (CHECKED, lambda s: s.depart().later(10).lose(), 10 + ABSENT),
    "lost after it might have sent": (CHECKED, lambda s: s.depart(send_for_s=5).later(10).lose(), 5 + ABSENT),
    "lost and proven dead": (CHECKED, lambda s: s.depart().later(10).lose(proof=Lost.DEAD), 10 + ABSENT),
    "lost, but heard of since": (CHECKED, lambda s: s.depart().later(5).lose().later(5).end(UNKNOWN), 10 + ABSENT),
    "unchecked, ended by itself": (UNCHECKED, lambda s: s.depart().later(10).end(UNKNOWN), 10 + ABSENT),
    "unchecked, still running": (UNCHECKED, lambda s: s.depart().later(10).end_wait(), None),
    "unchecked, lost": (UNCHECKED, lambda s: s.depart().later(10).lose(), None),
    "unchecked, lost by a dead process": (UNCHECKED, lambda s: s.depart().later(10).lose(proof=Lost.DEAD), 10 + ABSENT),
    "unchecked, proven dead later": (UNCHECKED, lambda s: s.depart().lose().later(10).prove_dead(), 10 + ABSENT),
    "the latest of several": (CHECKED, lambda s: s.depart().end_wait().later(10).resend().end(UNKNOWN), 30 + ABSENT),
    "a settled attempt is no doubt": (CHECKED, lambda s: s.depart().end(REJECTED), -T0 / 1e6 + ABSENT),
    "zero, written out": (terms(absent_after_s=0.0), lambda s: s.depart().later(10).end(UNKNOWN), 10),
}


@pytest.mark.parametrize("case", GUARD_S)
def test_guard_s(case: str) -> None:
    """A look-up that began in time counts; one that began a moment earlier does not."""
    contract, tale, silent_s = GUARD_S[case]
    record = tale(Story.of(contract)).record
    if silent_s is None:
        assert silent_from_us(record) is None
        with pytest.raises(Forbidden, match="may still be running"):
            guard_s(record, T0 + 10**15)
        return
    silent_us = T0 + round(silent_s * 1_000_000)
    assert silent_from_us(record) == silent_us
    guard_s(record, silent_us)
    with pytest.raises(Forbidden, match="too early") as caught:
        guard_s(record, silent_us - 1)
    assert caught.value.guard == "S"


def test_a_death_counts_from_its_proof_where_sends_are_unchecked() -> None:
    """A frozen process may have sent long after its lease, up to its death, and the request is on its way since."""
    story = Story.of(UNCHECKED).depart().lose().later(1000).prove_dead()
    assert silent_from_us(story.record) == story.now_us + 60_000_000
    again = silent_from_us(story.later(500).prove_dead().record)
    assert again == story.now_us - 500_000_000 + 60_000_000


def test_doubts_of_every_round_need_silence() -> None:
    """An attempt that nobody judged counts, whichever round it belongs to."""
    story = Story().depart().end_wait()
    later_round = replace(story.record, round=2)
    assert silent_from_us(later_round) == silent_from_us(story.record)


SILENCE: dict[str, tuple[Terms, Callable[[Story], Story], str, bool]] = {
    # contract, the doubt, via whom "did not happen" is said at once, whether it counts
    "hook, at once": (CHECKED, lambda s: s.depart().end(UNKNOWN), "hook", False),
    "hook, after silence": (CHECKED, lambda s: s.depart().end(UNKNOWN).later(60), "hook", True),
    "hook, unchecked and lost": (UNCHECKED, lambda s: s.depart().lose().later(9999), "hook", False),
    "hook, unchecked and dead": (UNCHECKED, lambda s: s.depart().lose().prove_dead().later(60), "hook", True),
    "hook, on a tool that accepts": (terms(accepts=True), lambda s: s.depart().end(UNKNOWN).later(60), "hook", False),
    "person, at once": (CHECKED, lambda s: s.depart().end(UNKNOWN), "person", True),
    "person, unchecked and lost": (UNCHECKED, lambda s: s.depart().lose(), "person", True),
    "person, while it runs": (CHECKED, lambda s: s.depart().end_wait(), "person", False),
}


@pytest.mark.parametrize("case", SILENCE)
def test_who_may_say_that_it_did_not_happen(case: str) -> None:
    """Look-ups need silence; a person only that every attempt has ended."""
    contract, tale, via, counts = SILENCE[case]
    story = tale(Story.of(contract))
    if counts:
        assert story.settle(NO, via).state == "failed"
    else:
        with pytest.raises(Forbidden):
            story.settle(NO, via)


def test_anybody_may_say_at_once_that_it_happened() -> None:
    """A presence needs no silence, and stops every attempt by the fence."""
    for via in ("hook", "person", "callback"):
        story = Story().depart().end_wait().settle(YES, via)
        assert story.state == "succeeded"
        assert story.record.fence > story.attempt().fence


@pytest.mark.parametrize("accepts", [True, False], ids=["as declared", "undeclared"])
@pytest.mark.parametrize("status", ["cancelled", "failed", "never_queued"])
def test_long_work_is_settled_by_a_statement_about_the_job(status: str, accepts: bool) -> None:
    """Where a tool can answer *accepted*, or did so undeclared, absence is no evidence."""
    story = Story.of(terms(accepts=accepts)).depart().end(ACCEPTED).later(60)
    with pytest.raises(Forbidden, match="statement about the job"):
        story.settle(NO, "hook")
    assert story.settle(NO, "hook", job_status=status).state == "failed"


# -- guard S, before a compensation -----------------------------------------------------------------------------------

UNDOING: dict[str, tuple[Terms, Callable[[Story], Story], bool]] = {
    "it happened first-hand": (CHECKED, lambda s: s.depart().end(HAPPENED), True),
    "another may still arrive": (CHECKED, lambda s: s.depart().end_wait().resend().end(HAPPENED), False),
    "another can arrive no more": (CHECKED, lambda s: s.depart().end_wait().resend().end(HAPPENED).later(90), True),
    "one was judged to have happened": (CHECKED, lambda s: s.depart().end_wait().settle(YES), True),
    "two were judged, by key": (CHECKED, lambda s: s.depart().end_wait().resend().end(UNKNOWN).settle(YES), True),
    "two were judged, by nature": (
        dedup(NATURAL), lambda s: s.depart().end_wait().resend().end(UNKNOWN).settle(YES), False
    ),
    "two were judged, by nature, long ago": (
        dedup(NATURAL), lambda s: s.depart().end_wait().resend().end(UNKNOWN).settle(YES).later(90), True
    ),
    "contradicted": (CHECKED, lambda s: s.depart().end(UNKNOWN).settle(YES).later(90).settle(NO, "hook"), False),
}  # fmt: skip


@pytest.mark.parametrize("case", UNDOING)
def test_when_an_effect_may_be_undone(case: str) -> None:
    """Not while a request is under way that would bring it back."""
    contract, tale, allowed = UNDOING[case]
    story = tale(Story.of(contract))
    if allowed:
        assert story.compensate().state == "compensated"
    else:
        with pytest.raises(Forbidden):
            story.compensate()


def test_reads_are_sent_again_as_naturally_harmless() -> None:
    """A read that departed with a row (it was held) has its attempts, too."""
    read = terms(effect=Effect.READ, dedup=NATURAL)
    story = Story.of(read).hold().approve().depart()
    assert story.end_and_resend(UNKNOWN).state == "departed"
