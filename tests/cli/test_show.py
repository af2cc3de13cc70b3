"""`calls show` tells the story of a call in order, and offers what can be done about it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.cli import shop
from tests.cli.conftest import Ran, Run, Shop
from tollhouse import did_not_happen, happened

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def story(done: Ran) -> list[str]:
    """The lines of the story, each as its word and sentence, without times."""
    lines = done.stdout.split("What happened (UTC)\n")[1].split("\n\n")[0].splitlines()[1:]
    return [re.sub(r"^  (\d\d:\d\d:\d\d\.\d{3}|\s{12})  ", "", line) for line in lines]


def words(done: Ran) -> list[str]:
    """What kind of thing happened, line by line."""
    return [re.split(r"\s{2,}", line)[0] for line in story(done)]


def commands(done: Ran) -> list[list[str]]:
    """Every command that is offered, without the program's name."""
    lines = (line.strip() for line in done.stdout.splitlines())
    return [shlex.split(line)[1:] for line in lines if line.startswith("tollhouse calls ")]


def verbs(done: Ran) -> list[str]:
    """Their verbs."""
    return [command[1] for command in commands(done)]


# -- stories -------------------------------------------------------------------------------------------------------


def test_story_of_a_success(run: Run, filled: Shop) -> None:
    """Who asked, what the gates said, what was sent and what came back."""
    filled.credit("order-1")
    done = run("calls", "show", "order-1", *filled.at)
    assert done.exit_code == 0
    assert words(done) == ["asked", "sent", "happened"]
    assert "agent-7 asked for issue_credit; approval said pass" in story(done)[0]
    assert re.search(r"attempt 1; owner own_\w+, fence 1, may leave until \d\d:\d\d:\d\d\.\d{3}", story(done)[1])
    assert "a result came back" in story(done)[2]
    assert "cost 0.25" in story(done)[2]
    assert '{"id": "cr_1", "amount_cents": 2500}' in done.stdout


def test_story_of_a_doubt_settled_by_a_person(run: Run, filled: Shop) -> None:
    """Who settled it, by what word, for what reason; who tried and was too late."""
    filled.credit("order-1", "lost")
    filled.house.resolve("order-1", happened({"id": "cr_9", "amount_cents": 1}, "cr_9"), reason="on the page", by="ada")
    ran = run("calls", "resolve", "order-1", "--did-not-happen", "--reason", "no", "--by", "bob", *filled.at)
    assert ran.exit_code == 1
    done = run("calls", "show", "order-1", *filled.at)
    assert words(done) == ["asked", "sent", "unknown", "settled", "not allowed"]
    assert "ConnectionResetError: connection reset by peer" in story(done)[2]
    assert "ada says it happened: “on the page”; reference cr_9" in story(done)[3]
    assert "bob tried to resolve" in story(done)[4]


def test_story_of_a_doubt_settled_by_its_look_up(run: Run, filled: Shop) -> None:
    """The tool itself was the witness."""
    filled.credit("order-1", "lost")
    filled.house.reconcile("order-1")
    done = run("calls", "show", "order-1", *filled.at)
    assert "the look-up of issue_credit says it happened: reference cr_1" in story(done)[-1]


def test_story_of_look_ups_that_could_not_tell(run: Run, filled: Shop) -> None:
    """What was asked, what it said, when it is asked again."""
    filled.credit("order-1", "silent")
    filled.house.reconcile("order-1")
    done = run("calls", "show", "order-1", *filled.at)
    assert words(done)[-1] == "looked up"
    assert "could not tell (the book is closed today); next look" in story(done)[-1]


def test_story_of_a_contradiction(run: Run, filled: Shop) -> None:
    """A person said no, the tool found it: both are told, and that they disagree."""
    filled.credit("order-1", "lost")
    filled.house.resolve("order-1", did_not_happen("empty page"), reason="not there", by="ada")
    filled.house.reconcile("order-1")
    done = run("calls", "show", "order-1", *filled.at)
    assert done.exit_code == 3
    assert words(done)[-3:] == ["settled", "found", "contradicted"]
    assert "failed, contradicted" in done.stdout
    assert verbs(done)[:2] == ["uphold", "overturn"]
    filled.house.overturn("order-1", by="eve", reason="the book is right")
    after = run("calls", "show", "order-1", *filled.at)
    assert after.exit_code == 0
    assert "eve reversed failed: “the book is right”" in story(after)[-1]


def test_story_of_an_approval(run: Run, filled: Shop) -> None:
    """Who was asked, who agreed, what was changed, and that it went."""
    filled.call("drop_table", "drop-1", name="users")
    filled.house.approve("drop-1", by="ada", reason="it is empty")
    filled.house.edit("drop-1", {"name": "old_users"}, by="bob", reason="the wrong one")
    for name in ("ada", "bob"):
        filled.house.approve("drop-1", by=name, reason="fine")
    filled.call("drop_table", "drop-1", name="users")
    done = run("calls", "show", "drop-1", *filled.at)
    assert words(done) == ["asked", "held", "approved", "edited", "approved", "approved", "asked", "sent", "happened"]
    assert "approval said hold: the contract requires approval" in story(done)[0]
    assert "ada agreed; 1 of 2 needed: “it is empty”" in story(done)[2]
    assert "approvals before are void: “the wrong one”" in story(done)[3]
    assert "it may go: “fine”" in story(done)[5]
    assert 'name: "users" → "old_users"' in story(done)[3]
    assert "these are not the arguments that were asked for" in done.stdout


def test_story_of_two_rounds(run: Run, filled: Shop) -> None:
    """What was sent in which round."""
    filled.credit("order-1", "bad")
    filled.house.retry("order-1", by="ada", reason="the account was opened")
    filled.credit("order-1", "bad")
    done = run("calls", "show", "order-1", *filled.at)
    assert words(done) == ["asked", "sent", "rejected", "retried", "asked", "sent", "rejected"]
    assert "ada opened round 2: “the account was opened”" in story(done)[3]
    assert "attempt 2 (round 2)" in story(done)[5]
    assert "2 in 2 rounds" in done.stdout


def test_story_of_a_read(run: Run, filled: Shop) -> None:
    """One line: it ran."""
    filled.call("balance", "balance-1", account_id="a1")
    done = run("calls", "show", "balance-1", *filled.at)
    assert words(done) == ["asked", "ran"]


def test_story_of_accepted_work_and_of_what_was_undone(run: Run, filled: Shop) -> None:
    """The reference stands on the page; the original names its compensation, and the other way round."""
    filled.call("start_job", "job-1", name="nightly")
    assert (
        "long work confirmed under a reference (reference job-nightly)"
        in run("calls", "show", "job-1", *filled.at).stdout
    )
    filled.credit("order-1")
    filled.house.compensate("order-1", by="ada", reason="wrong customer")
    done = run("calls", "show", "order-1", *filled.at)
    assert "undone by the call order-1:compensate" in story(done)[-1]
    undo = run("calls", "show", "order-1:compensate", *filled.at)
    assert re.search(r"compensates\s+order-1\n", undo.stdout)
    assert "ada asked for issue_credit.compensate: “wrong customer”" in story(undo)[0]


# case H13
def test_gap_in_the_books_is_shown(run: Run, filled: Shop) -> None:
    """The success stands; the story says what is missing."""
    filled.call("meter", "meter-1")
    done = run("calls", "show", "meter-1", *filled.at)
    assert done.exit_code == 0
    assert words(done) == ["asked", "sent", "happened", "gap"]
    assert "its cost could not be computed (LookupError)" in story(done)[-1]


def test_what_others_wrote_cannot_act_on_the_terminal(run: Run, filled: Shop) -> None:
    """Control characters, line breaks and reordering marks of arguments, errors and reasons are spelled out."""
    filled.call("send_letter", "letter-1", to="nobody")
    filled.call("send_letter", "letter-2", to="ab\u202edc\x07\x1b]0;owned\x07")
    filled.house.resolve("letter-1", happened(None), reason="a\x1b[2J\nb", by="a\u202eda")
    shown = run("calls", "show", "letter-1", *filled.at).stdout + run("calls", "show", "letter-2", *filled.at).stdout
    shown += run("calls", "list", *filled.at).stdout
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert r"the \x1b[31mletterbox\x1b[0m\n is on fire" in shown


def test_markup_in_what_others_wrote_stays_text(run: Run, filled: Shop) -> None:
    """Square brackets are square brackets."""
    filled.call("send_letter", "letter-1", to="[bold red]you[/] :warning:")
    assert "[bold red]you[/] :warning:" in run("calls", "show", "letter-1", *filled.at, env={"FORCE_COLOR": "1"}).stdout


def test_long_values_are_cut_for_people_only(run: Run, filled: Shop) -> None:
    """A page stays a page; JSON holds everything."""
    filled.call("send_letter", "letter-1", to="x" * 5000)
    assert "x" * 2001 not in run("calls", "show", "letter-1", *filled.at).stdout
    assert "(5,010 characters)" in run("calls", "show", "letter-1", *filled.at).stdout
    shown = run("calls", "show", "letter-1", "--json", *filled.at).json
    assert shown["arguments"] == {"to": "x" * 5000}


# -- JSON ----------------------------------------------------------------------------------------------------------


def test_json_holds_the_whole_call(run: Run, filled: Shop) -> None:
    """Arguments and result too: they are the user's data."""
    filled.credit("order-1", scope="run-1")
    done = run("calls", "show", "order-1", "--json", *filled.at)
    call = done.json
    assert (call["key"], call["tool"], call["effect"], call["state"]) == (
        "order-1", "issue_credit", "external", "succeeded"
    )  # fmt: skip
    assert call["arguments"] == {"account_id": "a1", "amount_cents": 2500}
    assert call["result"] == {"id": "cr_1", "amount_cents": 2500}
    assert call["result_problem"] is None
    assert call["scope"] == "run-1"
    assert call["requested_by"] == "agent-7"
    assert call["idempotency_key"] == "default:order-1"
    assert call["cost"] == "0.25"
    assert call["digest"] == call["request_digest"]
    assert call["guarantee"] == call["contract"]["guarantee"]
    (attempt,) = call["attempts"]
    assert (attempt["number"], attempt["round"], attempt["outcome"], attempt["cost"]) == (1, 1, "happened", "0.25")
    assert [line["kind"] for line in call["history"]] == ["departed", "outcome"]
    assert call["history"][0]["facts"]["gates"] == {"approval": "pass"}


def test_every_moment_in_json_is_iso_8601_in_utc(run: Run, filled: Shop) -> None:
    """With microseconds, so that sorting them as text sorts them in time."""
    began = datetime.now(UTC)
    filled.credit("order-1", "silent")
    filled.house.reconcile("order-1")
    call = run("calls", "show", "order-1", "--json", *filled.at).json
    moments = [
        call[name] for name in ("created_at", "updated_at", "departed_at", "deadline_at", "doubt_since", "due_at")
    ]
    moments += [call["attempts"][0][name] for name in ("started_at", "send_by", "ended_at")]
    moments += [line["at"] for line in call["history"]]
    moments += [call["history"][0]["facts"]["send_by"], call["history"][-1]["facts"]["next"]]
    assert all(MOMENT.fullmatch(moment) for moment in moments)
    assert "_us" not in str(call)
    seconds = (datetime.fromisoformat(call["created_at"]) - began).total_seconds()
    assert -5 < seconds < 60


def test_json_of_settlements_and_approvals(run: Run, filled: Shop) -> None:
    """Who, why, when, on what."""
    filled.credit("order-1", "lost")
    filled.house.resolve("order-1", did_not_happen({"page": 3}), reason="looked", by="ada")
    (settlement,) = run("calls", "show", "order-1", "--json", *filled.at).json["settlements"]
    assert settlement["kind"] == "evidence"
    assert (settlement["via"], settlement["by"], settlement["finding"]) == ("person", "ada", "did_not_happen")
    assert (settlement["reason"], settlement["result"]) == ("looked", None)
    assert list(settlement["covers"].values()) == ["unknown"]
    assert MOMENT.fullmatch(settlement["at"])
    filled.call("drop_table", "drop-1", name="users")
    filled.house.approve("drop-1", by="ada")
    approval = run("calls", "show", "drop-1", "--json", *filled.at).json["approval"]
    assert (approval["quorum"], approval["approvers"]) == (2, ["ada", "bob", "eve"])
    assert [vote["by"] for vote in approval["votes"]] == ["ada"]
    assert approval["granted_at"] is None
    assert MOMENT.fullmatch(approval["expires_at"])


# -- what can be done ----------------------------------------------------------------------------------------------


def doubt(at: Shop) -> str:
    """Credited, and the reply lost."""
    at.credit("order-1", "lost")
    return "order-1"


def failure(at: Shop) -> str:
    """Rejected by the receiver."""
    at.credit("order-1", "bad")
    return "order-1"


def success(at: Shop) -> str:
    """Credited."""
    at.credit("order-1")
    return "order-1"


def settled(at: Shop) -> str:
    """A doubt that a person settled."""
    at.call("send_letter", "letter-1", to="nobody")
    at.house.resolve("letter-1", happened(None), reason="arrived", by="ada")
    return "letter-1"


def held(at: Shop) -> str:
    """Waits for two people."""
    at.call("drop_table", "drop-1", name="users")
    return "drop-1"


def half_approved(at: Shop) -> str:
    """Waits for one more."""
    at.call("drop_table", "drop-1", name="users")
    at.house.approve("drop-1", by="ada")
    return "drop-1"


def ready(at: Shop) -> str:
    """Approved, and not sent yet."""
    half_approved(at)
    at.house.approve("drop-1", by="bob")
    return "drop-1"


def accepted(at: Shop) -> str:
    """Long work under way."""
    at.call("start_job", "job-1", name="nightly")
    return "job-1"


def contradiction(at: Shop) -> str:
    """A person said no, and the look-up found it."""
    doubt(at)
    at.house.resolve("order-1", did_not_happen("no"), reason="no", by="ada")
    at.house.reconcile("order-1")
    return "order-1"


def undone(at: Shop) -> str:
    """Credited and taken back."""
    success(at)
    at.house.compensate("order-1", by="ada", reason="wrong")
    return "order-1"


SCENES: list[tuple[Callable[[Shop], str], list[str]]] = [
    (doubt, ["reconcile", "resolve", "resolve"]),
    (failure, ["retry"]),
    (success, ["compensate"]),
    (settled, ["overturn"]),
    (held, ["approve", "edit", "deny", "cancel"]),
    (half_approved, ["approve", "edit", "deny", "cancel"]),
    (ready, ["deny", "cancel"]),
    (accepted, ["resolve", "resolve"]),
    (contradiction, ["uphold", "overturn"]),
    (undone, []),
]


@pytest.mark.parametrize(("scene", "expected"), SCENES, ids=[scene.__name__ for scene, _ in SCENES])
def test_steps_offered_are_those_that_the_rules_allow(
    run: Run, filled: Shop, scene: Callable[[Shop], str], expected: list[str]
) -> None:
    """No more, no less, the most likely first."""
    assert verbs(run("calls", "show", scene(filled), *filled.at)) == expected


PLACEHOLDERS = {"MODULE": shop.PATH, "JSON": '{"name": "old_users"}', "NAME": "ada", "WHY": "I looked"}
CHOICES = [
    pytest.param(scene, number, id=f"{scene.__name__}-{verb}-{number}")
    for scene, expected in SCENES
    for number, verb in enumerate(expected)
]


@pytest.mark.parametrize(("scene", "number"), CHOICES)
def test_each_command_offered_works_as_it_stands(
    run: Run, filled: Shop, scene: Callable[[Shop], str], number: int
) -> None:
    """Copied, its placeholders filled in, and run."""
    offered = commands(run("calls", "show", scene(filled), *filled.at))[number]
    done = run(*[PLACEHOLDERS.get(word, word) for word in offered])
    assert done.exit_code in (0, 3), done
    assert done.stderr == "" or "posting" in done.stderr


def test_commands_repeat_only_what_the_environment_does_not_say(run: Run, filled: Shop) -> None:
    """Short where they can be, complete where they must be."""
    filled.call("drop_table", "drop-1", name="users")
    at_hand = {"TOLLHOUSE_STORE": filled.url, "TOLLHOUSE_PRINCIPAL": "ada", "TOLLHOUSE_TOOLS": shop.PATH}
    assert commands(run("calls", "show", "drop-1", env=at_hand))[-1] == ["calls", "cancel", "drop-1"]
    far = commands(run("calls", "show", "drop-1", *filled.at))[-1]
    assert far == ["calls", "cancel", "drop-1", "--by", "NAME", "--store", filled.url]


def test_approval_is_offered_in_the_name_of_one_who_may_still_give_it(run: Run, filled: Shop) -> None:
    """Ada has voted; bob is the next whom the contract names."""
    done = run("calls", "show", half_approved(filled), *filled.at)
    (approve,) = (command for command in commands(done) if command[1] == "approve")
    assert approve[approve.index("--by") + 1] == "bob"
