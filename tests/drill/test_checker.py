"""The judge of the drill: each verdict comes for its own reason, and legal histories get none."""

from __future__ import annotations

import pytest

from tests.drill.forged import Forger
from tollhouse.testing.drill.checker import judge
from tollhouse.testing.drill.evidence import Case


def verdicts(case: Case) -> list[str]:
    """The names of what was found."""
    return list(judge(case).found)


def succeeded(**options: object) -> Forger:
    """A call that departed, took effect and says so."""
    forged = Forger(**options)  # type: ignore[arg-type]
    forged.sent("a1")
    forged.sends("a1")
    forged.ended("a1", "happened", "succeeded")
    return forged


def doubted() -> Forger:
    """A call whose sender died after it had sent."""
    forged = Forger()
    forged.sent("a1")
    forged.sends("a1")
    forged.set_aside("a1", 1000)
    return forged


# -- what is legal ------------------------------------------------------------------------------------------


def test_plain_success_gets_no_verdict() -> None:
    """One departure, one effect, one outcome."""
    assert verdicts(succeeded().case()) == []


def test_open_doubt_gets_no_verdict() -> None:
    """*In doubt* is a legal thing to say about an effect."""
    assert verdicts(doubted().case()) == []


def test_wrong_decision_of_a_person_explains_an_effect() -> None:
    """The ledger did what a named person said."""
    forged = doubted()
    forged.settled("did_not_happen")
    assert verdicts(forged.case()) == []


def test_new_round_by_a_person_permits_a_second_effect() -> None:
    """A retry is a named decision."""
    forged = doubted()
    forged.settled("did_not_happen")
    forged.retried()
    forged.sent("a2", 2100)
    forged.sends("a2", 2110)
    forged.ended("a2", "happened", "succeeded", 2200)
    assert verdicts(forged.case()) == []


def test_harmless_repeat_is_permitted() -> None:
    """Where the contract calls repeats harmless, each resend may have an effect."""
    forged = Forger(dedup="natural")
    forged.sent("a1")
    forged.sends("a1")
    forged.ended("a1", "unknown", "in_doubt")
    forged.sent("a2", 200, kind="resent")
    forged.sends("a2", 210)
    forged.ended("a2", "happened", "succeeded", 300)
    assert verdicts(forged.case()) == []


def test_call_that_never_came_to_anything_gets_no_verdict() -> None:
    """No row, no effect: its process died before commit 1."""
    assert verdicts(Forger().case(row=False)) == []


# -- the verdicts -------------------------------------------------------------------------------------------


def test_second_effect_without_a_decision_is_repeated() -> None:
    """Nothing on record permitted it."""
    forged = succeeded()
    forged.effect("a1")
    assert verdicts(forged.case()) == ["repeated"]


def test_repeat_after_a_cancel_is_repeated_although_harmless() -> None:
    """A cancel forbids resends until a new round."""
    forged = Forger(dedup="natural")
    forged.sent("a1")
    forged.sends("a1")
    forged.line("cancel_asked", 50)
    forged.ended("a1", "unknown", "in_doubt")
    forged.sent("a2", 200, kind="resent")
    forged.sends("a2", 210)
    forged.ended("a2", "happened", "succeeded", 300)
    assert verdicts(forged.case()) == ["repeated"]


def test_retry_of_what_is_known_to_have_happened_permits_nothing() -> None:
    """Guard D: evidence against it was on record when the new round began."""
    forged = doubted()
    forged.settled("did_not_happen")
    forged.ended("a1", "happened", "failed", 1500, kind="late_outcome")
    forged.line("contradiction_opened", 1500)
    forged.retried()
    forged.sent("a2", 2100)
    forged.sends("a2", 2110)
    forged.ended("a2", "happened", "succeeded", 2200)
    forged.contradicted = True
    assert verdicts(forged.case()) == ["repeated"]


def test_effect_without_a_row_is_lost() -> None:
    """Sent before commit 1, by a process that died."""
    forged = Forger()
    forged.request("a1", 5)
    forged.effect("a1")
    assert verdicts(forged.case(row=False)) == ["lost"]


def test_effect_of_a_call_that_never_departed_is_lost() -> None:
    """A row is not enough: it must say that something was sent."""
    forged = Forger(approval=True)
    forged.line("held", state="held")
    forged.effect("a1")
    found = judge(forged.case()).found
    assert "lost" in found


def test_effect_under_a_key_of_no_call_is_lost() -> None:
    """A key minted for the attempt is no call's."""
    forged = Forger(dedup="by_key")
    forged.sent("a1")
    forged.checked("a1", 10)
    forged.request("a1", 11, wire_key="a1")
    forged.effect("", wire_key="a1")
    forged.ended("a1", "happened", "succeeded")
    assert verdicts(forged.case()) == ["lost"]


def test_effect_under_failed_by_a_look_up_is_unexplained() -> None:
    """The look-up found nothing too early; nobody decided anything."""
    forged = doubted()
    forged.settled("did_not_happen", via="hook", by="hook:credit")
    assert verdicts(forged.case()) == ["unexplained"]


def test_effect_under_failed_with_an_open_contradiction_is_explained() -> None:
    """Everybody can see it."""
    forged = doubted()
    forged.settled("did_not_happen", via="hook", by="hook:credit")
    forged.contradicted = True
    assert verdicts(forged.case()) == []


def test_effect_after_the_call_was_undone_is_unexplained() -> None:
    """A late request brought back what was taken back."""
    forged = succeeded(dedup="natural")
    forged.undone(3)
    forged.line("compensated", 500, state="compensated")
    forged.request("a1", 600)
    forged.effect("a1")
    assert "unexplained" in verdicts(forged.case())


def test_check_that_passed_after_the_fence_moved_is_unfenced() -> None:
    """The call was settled by force, long before the check began."""
    forged = Forger()
    forged.sent("a1")
    forged.line("forced", 300, state="in_doubt")
    forged.settled("happened", 300)
    forged.sends("a1", 700)
    assert verdicts(forged.case()) == ["unfenced"]


def test_owner_set_aside_while_its_lease_ran_is_unfenced() -> None:
    """Its request came after it was taken for lost, and it was in its right to send."""
    forged = Forger()
    forged.sent("a1")
    forged.checked("a1", 5, lease_until_ms=900)
    forged.set_aside("a1", 20, proof="lease")
    forged.request("a1", 40)
    forged.effect("a1")
    assert verdicts(forged.case()) == ["unfenced"]


def test_fence_moved_by_a_person_within_the_first_moment_is_no_fault() -> None:
    """Commit 1 is the check for a send that starts at once."""
    forged = Forger()
    forged.sent("a1")
    forged.settled("happened", 20)
    forged.sends("a1", 60)
    judgement = judge(forged.case())
    assert (judgement.found, judgement.residual) == ({}, 0)


@pytest.mark.parametrize(("was", "now"), [("happened", "unknown"), ("happened", "not_sent"), ("rejected", "not_sent")])
def test_weaker_outcome_over_a_final_one_is_weakened(was: str, now: str) -> None:
    """Final outcomes stay."""
    forged = Forger()
    forged.sent("a1")
    states = {"happened": "succeeded", "rejected": "failed"}
    forged.ended("a1", was, states[was])
    forged.ended("a1", now, states[was], 200, kind="late_outcome")
    assert verdicts(forged.case()) == ["weakened"]


def test_state_below_an_attempt_that_happened_is_weakened() -> None:
    """The last outcome must not replace the strongest."""
    forged = Forger(dedup="natural")
    forged.sent("a1")
    forged.sends("a1")
    forged.line("wait_ended", 600, attempt="a1", why="timeout", state="in_doubt")
    forged.sent("a2", 600, kind="resent")
    forged.ended("a1", "happened", "departed", 700)
    forged.ended("a2", "unknown", "in_doubt", 900)
    assert verdicts(forged.case()) == ["weakened"]


def test_settled_call_moved_by_a_late_outcome_is_weakened() -> None:
    """A settlement stands, whatever an owner that was set aside writes."""
    forged = succeeded()
    forged.ended("a1", "happened", "ready", 900, kind="late_outcome")
    assert "weakened" in verdicts(forged.case())


def test_row_that_says_something_else_than_its_history_is_weakened() -> None:
    """A state that no line tells of."""
    assert verdicts(succeeded().case(state="in_doubt")) == ["weakened"]


def test_call_that_people_could_not_end_is_stuck() -> None:
    """They acted, and it is where it was."""
    assert verdicts(doubted().case(settled=False)) == ["stuck"]


def test_second_round_on_the_first_approval_is_overspent() -> None:
    """An approval is used up by one round."""
    forged = Forger(approval=True)
    forged.line("held", state="held")
    forged.line("approved", 10, state="ready", by="ada")
    forged.sent("a1", 20)
    forged.ended("a1", "rejected", "failed")
    forged.retried()
    forged.sent("a2", 2100)
    forged.ended("a2", "rejected", "failed", 2200)
    assert verdicts(forged.case()) == ["overspent"]


def test_other_arguments_than_approved_are_overspent() -> None:
    """The vote was for what was shown, which an edit had replaced before."""
    forged = Forger(approval=True)
    forged.line("held", state="held")
    forged.decided("edit", "bob", 5)
    forged.decided("approve", "ada", 10, shown="d0")
    forged.line("approved", 10, state="ready", by="ada")
    forged.sent("a1", 20)
    forged.ended("a1", "rejected", "failed")
    assert verdicts(forged.case()) == ["overspent"]


def test_vote_that_an_edit_made_void_is_not_overspent() -> None:
    """A later vote for what was really shown counts."""
    forged = Forger(approval=True)
    forged.line("held", state="held")
    forged.decided("approve", "eve", 3, shown="d0")
    forged.decided("edit", "bob", 5)
    forged.decided("approve", "ada", 10, shown="d1")
    forged.line("approved", 10, state="ready", by="ada")
    forged.sent("a1", 20)
    forged.ended("a1", "rejected", "failed")
    assert verdicts(forged.case()) == []


def test_late_result_against_a_person_with_no_contradiction_is_silent() -> None:
    """Both are on record, and nobody is told."""
    forged = doubted()
    forged.settled("did_not_happen")
    forged.ended("a1", "happened", "failed", 1500, kind="late_outcome")
    assert verdicts(forged.case()) == ["silent"]


def test_result_that_was_thrown_away_is_silent() -> None:
    """The function returned in a process that lived; the ledger still says unknown."""
    forged = doubted()
    forged.settled("did_not_happen")
    forged.came_back("a1")
    assert verdicts(forged.case()) == ["silent"]


def test_two_people_who_were_both_told_yes_are_silent() -> None:
    """Of two contrary decisions one must be refused."""
    forged = doubted()
    forged.settled("happened")
    forged.decided("resolve", "ada", 1000, finding="happened")
    forged.decided("resolve", "bob", 1001, finding="did_not_happen")
    assert verdicts(forged.case()) == ["silent"]


# -- what cannot be closed ----------------------------------------------------------------------------------


def test_request_overtaken_after_its_check_is_residual() -> None:
    """It passed its check in time, and its process was set aside before the bytes arrived; that is no repeat."""
    forged = Forger()
    forged.sent("a1")
    forged.checked("a1", 10, lease_until_ms=900)
    forged.set_aside("a1", 1000)
    forged.settled("did_not_happen", 5000, via="hook", by="hook:credit")
    forged.request("a1", 5500)
    forged.effect("a1")
    judgement = judge(forged.case())
    assert (judgement.found, judgement.residual) == ({}, 1)


def test_request_after_its_time_is_residual() -> None:
    """Its ``send_by`` passed between the check and the receiver."""
    forged = Forger()
    forged.sent("a1", send_by_ms=50)
    forged.checked("a1", 40)
    forged.request("a1", 60)
    forged.effect("a1")
    forged.ended("a1", "happened", "succeeded")
    judgement = judge(forged.case())
    assert (judgement.found, judgement.residual) == ({}, 1)


def test_effect_of_an_unfenced_send_counts_in_full() -> None:
    """A check that should have refused hides no second effect among the residual ones."""
    forged = doubted()
    forged.settled("did_not_happen", 1500, via="hook", by="hook:credit")
    forged.sends("a1", 3000)
    judgement = judge(forged.case())
    assert judgement.residual == 0
    assert {"repeated", "unexplained", "unfenced"} <= judgement.found.keys()
