"""The verbs of `calls`: each does what the house's method of its name does, and says how the call then stands."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.cli import shop
from tests.cli.conftest import Ran, Run, Shop
from tollhouse import did_not_happen

TOOLS = ("--tools", shop.PATH)


def decide(run: Run, at: Shop, verb: str, key: str, *options: str, by: str = "ada") -> Ran:
    """Run a verb as somebody."""
    return run("calls", verb, key, *options, "--by", by, *at.at)


# -- resolve -------------------------------------------------------------------------------------------------------


def test_resolve_happened_records_value_and_reference(run: Run, filled: Shop) -> None:
    """In the tool's type where the tool is at hand."""
    filled.credit("order-1", "lost")
    value = json.dumps({"id": "cr_9", "amount_cents": 2500})
    done = decide(
        run,
        filled,
        "resolve",
        "order-1",
        "--happened",
        "--value",
        value,
        "--reference",
        "cr_9",
        "--reason",
        "r",
        *TOOLS,
    )
    assert done.exit_code == 0
    assert done.stdout == "order-1  succeeded  took effect, result recorded (version 3)\n"
    record = filled.house.get("order-1")
    assert record.result == shop.Credit(id="cr_9", amount_cents=2500)
    assert record.reference == "cr_9"
    assert (record.settlements[0].by, record.settlements[0].reason) == ("ada", "r")


def test_resolve_did_not_happen_keeps_the_evidence(run: Run, filled: Shop) -> None:
    """The call is failed, and says what showed it."""
    filled.credit("order-1", "gone")
    done = decide(run, filled, "resolve", "order-1", "--did-not-happen", "--evidence", "page 3", "--reason", "r")
    assert done.exit_code == 0
    record = filled.house.get("order-1")
    assert record.state == "failed"
    assert record.settlements[0].evidence == "page 3"


def test_resolve_takes_its_value_from_a_file_or_from_stdin(run: Run, filled: Shop, tmp_path: Path) -> None:
    """For results that are too long for a command line."""
    file = tmp_path / "value.json"
    file.write_text('{"id": "cr_9", "amount_cents": 1}')
    for key, source in (("order-1", f"@{file}"), ("order-2", "@-")):
        filled.credit(key, "lost")
        done = run(
            "calls", "resolve", key, "--happened", "--value", source, "--reason", "r", "--by", "ada", *filled.at,
            stdin=file.read_text(),
        )  # fmt: skip
        assert done.exit_code == 0, done
        assert filled.house.get(key).result.id == "cr_9"


# case H01
def test_version_makes_a_decision_compare_and_set(run: Run, filled: Shop) -> None:
    """Of two operators who saw the same page one wins, and the other is told who decided what."""
    filled.credit("order-1", "lost")
    seen = str(filled.house.get("order-1").version)
    yes = ("--happened", "--reason", "on the page", "--version", seen)
    no = ("--did-not-happen", "--reason", "not there", "--version", seen)
    assert decide(run, filled, "resolve", "order-1", *yes).exit_code == 0
    late = run("calls", "resolve", "order-1", *no, "--by", "bob", "--json", *filled.at)
    assert late.exit_code == 1
    assert late.json["error"]["code"] == "decision_conflict"
    assert "ada decided 'happened' (on the page)" in late.json["error"]["cause"]
    record = filled.house.get("order-1")
    assert record.state == "succeeded"
    assert [line.kind for line in record.history[-2:]] == ["settled", "decision_refused"]


STALE = {
    "resolve": ["--happened", "--reason", "r"],
    "approve": [],
    "deny": ["--reason", "r"],
    "edit": ["--arguments", '{"name": "x"}'],
    "retry": ["--reason", "r"],
    "overturn": ["--reason", "r"],
    "uphold": ["--reason", "r"],
}


@pytest.mark.parametrize("verb", STALE)
def test_decision_on_another_version_than_the_one_shown_is_refused(run: Run, filled: Shop, verb: str) -> None:
    """Even where the decision itself would be allowed; the call stays as it is."""
    filled.credit("resolve", "lost")
    filled.credit("retry", "bad")
    for key in ("approve", "deny", "edit"):
        filled.call("drop_table", key, name=key)
    for key in ("overturn", "uphold"):
        filled.credit(key, "lost")
        filled.house.resolve(key, did_not_happen("no"), reason="no", by="bob")
        filled.house.reconcile(key)
    before = filled.house.get(verb)
    options = (*STALE[verb], "--version", str(before.version + 1), "--by", "ada", "--json")
    done = run("calls", verb, verb, *options, *filled.at)
    assert (done.exit_code, done.json["error"]["code"]) == (1, "decision_conflict")
    assert filled.house.get(verb).state == before.state
    again = (*STALE[verb], "--version", str(filled.house.get(verb).version), "--by", "ada")
    assert run("calls", verb, verb, *again, *filled.at).exit_code in (0, 3)


def test_decision_with_json_answers_with_the_call(run: Run, filled: Shop) -> None:
    """The same shape as `show`, without its history."""
    filled.credit("order-1", "lost")
    done = run("calls", "resolve", "order-1", "--happened", "--reason", "r", "--by", "ada", "--json", *filled.at)
    shown = run("calls", "show", "order-1", "--json", *filled.at).json
    del shown["history"]
    assert done.json == shown
    assert done.stderr == ""


def test_decider_may_come_from_the_environment(run: Run, filled: Shop) -> None:
    """A flag outranks it."""
    filled.credit("order-1", "bad")
    run("calls", "retry", "order-1", "--reason", "r", *filled.at, env={"TOLLHOUSE_PRINCIPAL": "eve"})
    filled.credit("order-2", "bad")
    run("calls", "retry", "order-2", "--reason", "r", "--by", "bob", *filled.at, env={"TOLLHOUSE_PRINCIPAL": "eve"})
    by = [filled.house.get(key).history[-1].facts["by"] for key in ("order-1", "order-2")]
    assert by == ["eve", "bob"]


# case H02
def test_force_sets_aside_an_attempt_that_is_still_out(run: Run, filled: Shop) -> None:
    """Without it nothing is decided over a running attempt; what comes back later contradicts, and is told."""
    shop.started.clear()
    shop.let_go.clear()
    caller = threading.Thread(target=filled.call, args=("hang", "hang-1"))
    caller.start()
    try:
        assert shop.started.wait(30)
        page = run("calls", "show", "hang-1", *filled.at)
        assert page.stdout.count("--force") == 2
        no = ("--did-not-happen", "--reason", "the line is dead")
        assert decide(run, filled, "resolve", "hang-1", *no).exit_code == 1
        assert decide(run, filled, "resolve", "hang-1", *no, "--force").exit_code == 0
    finally:
        shop.let_go.set()
        caller.join()
    after = run("calls", "show", "hang-1", *filled.at)
    assert after.exit_code == 3
    assert [word in after.stdout for word in ("forced", "late happened", "contradicted")] == [True, True, True]


# -- reconcile and compensate --------------------------------------------------------------------------------------


def test_reconcile_settles_by_the_look_up_and_says_what_it_found(run: Run, filled: Shop) -> None:
    """What was written since is told as in the story."""
    filled.credit("order-1", "lost")
    done = run("calls", "reconcile", "order-1", *TOOLS, *filled.at)
    assert done.exit_code == 0
    assert done.stdout.startswith("order-1  succeeded")
    assert "the look-up of issue_credit says it happened: reference cr_1" in done.stdout
    assert len(shop.book()) == 1


def test_reconcile_that_cannot_tell_leaves_the_doubt_and_exits_with_3(run: Run, filled: Shop) -> None:
    """An unknown is no answer."""
    filled.credit("order-1", "silent")
    done = run("calls", "reconcile", "order-1", *TOOLS, *filled.at)
    assert done.exit_code == 3
    assert "could not tell (the book is closed today)" in done.stdout
    as_json = run("calls", "reconcile", "order-1", "--json", *TOOLS, *filled.at)
    assert (as_json.exit_code, as_json.json["state"]) == (3, "in_doubt")


def test_reconcile_needs_the_tool_at_hand(run: Run, filled: Shop) -> None:
    """Without it nobody could be asked, and silence would look like an answer."""
    filled.credit("order-1", "lost")
    done = run("calls", "reconcile", "order-1", "--json", *filled.at)
    assert done.exit_code == 2
    assert done.json["error"]["code"] == "unknown_tool"
    assert "--tools" in done.json["error"]["remedy"]


def test_compensate_undoes_the_effect_once(run: Run, filled: Shop) -> None:
    """Asked again it replays."""
    filled.credit("order-1")
    done = decide(run, filled, "compensate", "order-1", "--reason", "wrong customer", *TOOLS)
    assert done.exit_code == 0
    assert "order-1:compensate  succeeded  the compensation\n" in done.stdout
    assert "order-1  compensated" in done.stdout
    again = run("calls", "compensate", "order-1", "--reason", "r", "--by", "ada", "--json", *TOOLS, *filled.at)
    assert again.json == {
        "key": "order-1:compensate", "state": "succeeded", "result": {"voided": "cr_1"}, "result_problem": None,
        "result_detail": None, "replayed": True, "attempts": 1, "reference": None,
    }  # fmt: skip
    assert [sorted(effect) for effect in shop.book()] == [["amount_cents", "id", "key"], ["key", "voids"]]


def test_compensate_of_a_doubt_is_not_allowed(run: Run, filled: Shop) -> None:
    """What may not have happened cannot be undone."""
    filled.credit("order-1", "lost")
    done = run("calls", "compensate", "order-1", "--reason", "r", "--by", "ada", "--json", *TOOLS, *filled.at)
    assert (done.exit_code, done.json["error"]["code"]) == (1, "not_allowed")


# -- approvals -----------------------------------------------------------------------------------------------------


def test_approval_goes_by_quorum(run: Run, filled: Shop) -> None:
    """Below it the call stays held and the exit code says so."""
    filled.call("drop_table", "drop-1", name="users")
    assert decide(run, filled, "approve", "drop-1").exit_code == 3
    last = decide(run, filled, "approve", "drop-1", by="bob")
    assert last.exit_code == 0
    assert last.stdout.startswith("drop-1  ready")


# case H08
@pytest.mark.parametrize("by", ["agent-7", "mallory"])
def test_requester_and_strangers_are_not_entitled(run: Run, filled: Shop, by: str) -> None:
    """Whoever types the command."""
    filled.call("drop_table", "drop-1", name="users")
    done = run("calls", "approve", "drop-1", "--by", by, "--json", *filled.at)
    assert (done.exit_code, done.json["error"]["code"]) == (1, "not_entitled")
    record = filled.house.get("drop-1")
    assert (record.state, record.history[-1].facts["by"]) == ("held", by)


def test_approval_of_a_digest_that_is_not_there_any_more_is_refused(run: Run, filled: Shop) -> None:
    """The arguments were edited in between."""
    filled.call("drop_table", "drop-1", name="users")
    digest = filled.house.get("drop-1").digest
    assert decide(run, filled, "edit", "drop-1", "--arguments", '{"name": "x"}', *TOOLS).exit_code == 3
    done = run("calls", "approve", "drop-1", "--digest", digest, "--by", "bob", "--json", *filled.at)
    assert (done.exit_code, done.json["error"]["code"]) == (1, "not_allowed")


def test_deny_refuses_with_its_reason(run: Run, filled: Shop) -> None:
    """The reason is what the caller is told."""
    filled.call("drop_table", "drop-1", name="users")
    assert decide(run, filled, "deny", "drop-1", "--reason", "not on a Friday").exit_code == 0
    error = filled.house.get("drop-1").error
    assert error is not None
    assert "not on a Friday" in error["message"]


def test_edit_is_checked_against_the_tool_where_it_is_at_hand(run: Run, filled: Shop) -> None:
    """A wrong argument is a usage error that names it, and changes nothing."""
    filled.call("drop_table", "drop-1", name="users")
    bad = run("calls", "edit", "drop-1", "--arguments", '{"nam": "x"}', "--by", "ada", "--json", *TOOLS, *filled.at)
    assert (bad.exit_code, bad.json["error"]["code"]) == (2, "invalid_arguments")
    assert bad.json["error"]["path"] == "name"
    good = run("calls", "edit", "drop-1", "--arguments", '{"name": "x"}', "--by", "ada", "--json", *TOOLS, *filled.at)
    assert good.json["arguments"] == {"name": "x"}
    assert good.json["digest"] != good.json["request_digest"]


@pytest.mark.parametrize("text", ["[1]", '"x"', "x", '{"name": 1,}'])
def test_edit_takes_one_object(run: Run, filled: Shop, text: str) -> None:
    """Anything else names no argument."""
    filled.call("drop_table", "drop-1", name="users")
    done = run("calls", "edit", "drop-1", "--arguments", text, "--by", "ada", "--json", *filled.at)
    assert (done.exit_code, done.json["error"]["code"]) == (2, "usage")


# -- after the end -------------------------------------------------------------------------------------------------


def test_retry_opens_a_round_and_sends_nothing(run: Run, filled: Shop) -> None:
    """Where approval is required it waits for people again, and the exit code says so."""
    filled.credit("order-1", "bad")
    done = decide(run, filled, "retry", "order-1", "--reason", "account opened")
    assert (done.exit_code, filled.house.get("order-1").raw.round) == (0, 2)
    filled.call("drop_table", "drop-1", name="users")
    filled.house.deny("drop-1", by="ada", reason="no")
    assert decide(run, filled, "retry", "drop-1", "--reason", "yes after all").exit_code == 3
    assert shop.book() == []


def test_cancel_refuses_what_is_held_and_marks_what_has_left(run: Run, filled: Shop) -> None:
    """What has left stays in doubt."""
    filled.call("drop_table", "drop-1", name="users")
    assert decide(run, filled, "cancel", "drop-1", "--reason", "not needed").exit_code == 0
    assert filled.house.get("drop-1").state == "refused"
    filled.credit("order-1", "lost")
    assert decide(run, filled, "cancel", "order-1").exit_code == 3
    assert filled.house.get("order-1").raw.cancel_asked


@pytest.mark.parametrize(("verb", "state"), [("overturn", "succeeded"), ("uphold", "failed")])
def test_contradiction_is_closed_by_a_named_person(run: Run, filled: Shop, verb: str, state: str) -> None:
    """Either way; the exit code is 0 again."""
    filled.credit("order-1", "lost")
    filled.house.resolve("order-1", did_not_happen("no"), reason="no", by="bob")
    filled.house.reconcile("order-1")
    assert run("calls", "show", "order-1", *filled.at).exit_code == 3
    done = decide(run, filled, verb, "order-1", "--reason", "I looked myself")
    assert done.exit_code == 0
    record = filled.house.get("order-1")
    assert (record.state, record.contradicted) == (state, False)


def test_uphold_without_a_contradiction_is_not_allowed(run: Run, filled: Shop) -> None:
    """There is nothing to confirm."""
    filled.credit("order-1")
    done = run("calls", "uphold", "order-1", "--reason", "r", "--by", "ada", "--json", *filled.at)
    assert (done.exit_code, done.json["error"]["code"]) == (1, "not_allowed")


# -- over PostgreSQL -----------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_same_answers_over_postgresql(run: Run, filled_postgres: Shop) -> None:
    """List, show, settle and undo: same code, same results."""
    at = filled_postgres
    at.credit("order-1", "lost")
    at.credit("order-2")
    assert run("calls", "list", *at.at).exit_code == 3
    assert [call["key"] for call in run("calls", "list", "--json", *at.at).json["calls"]] == ["order-2", "order-1"]
    assert run("calls", "reconcile", "order-1", *TOOLS, *at.at).exit_code == 0
    assert decide(run, at, "compensate", "order-2", "--reason", "r", *TOOLS).exit_code == 0
    shown = run("calls", "show", "order-2", "--json", *at.at).json
    assert (shown["state"], shown["compensated_by"]) == ("compensated", "order-2:compensate")
    assert run("calls", "list", *at.at).exit_code == 0


@pytest.mark.postgres
def test_empty_postgresql_database_is_no_ledger(run: Run, postgres_url: str) -> None:
    """Looking does not create one there either."""
    for _ in range(2):
        done = run("calls", "list", "--store", postgres_url)
        assert done.exit_code == 2
        assert "There is no ledger at" in done.stderr
