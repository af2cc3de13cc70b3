"""``tollhouse runs``: runs are started, driven, told, decided about and rehearsed from the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli import shop
from tests.cli.conftest import Ran, Run
from tollhouse.cli.next_steps import Place
from tollhouse.cli.run_story import TELLERS, tell_event
from tollhouse.runs.states import RunEvent

FILE = """\
version: 1
tools: [tests.cli.shop]
scripts:
  credit:
    - say: I credit the account.
      call: [{tool: issue_credit, arguments: {account_id: a1, amount_cents: 2500}}]
    - say: Done.
  lost:
    - call: [{tool: issue_credit, arguments: {account_id: lost, amount_cents: 1}}]
    - say: Done.
  ask:
    - call: [{tool: ask_person, arguments: {question: "Which account?"}}]
    - say: "So be it: {{ results.0 }}."
  long:
    - call: [{tool: issue_credit, arguments: {account_id: a2, amount_cents: 1}}]
    - say: Done after all.
  boss:
    - {call: [{tool: agent_ask_no_one, arguments: {input: go}}], cost: "1"}
    - {say: Done., cost: "0.5", tokens: [2, 1]}
  ask_no_one:
    - {say: Done., cost: "0.25", tokens: [40, 2]}
  chief:
    - call: [{tool: agent_ask, arguments: {input: Ask them.}}]
    - say: Asked.
agents:
  credit: {model: scripted:credit, tools: [issue_credit]}
  lost: {model: scripted:lost, tools: [issue_credit]}
  ask: {model: scripted:ask, questions: true}
  long: {model: scripted:long, tools: [issue_credit], limits: {turns: 1}}
  boss: {model: scripted:boss, agents: [ask_no_one]}
  ask_no_one: {model: scripted:ask_no_one}
  chief: {model: scripted:chief, agents: [ask]}
"""


class Desk:
    """An agents' file and a ledger; ``do`` runs a command about runs there."""

    def __init__(self, run: Run, url: str, file: Path) -> None:
        self._run, self.file, self.at = run, file, ("--store", url, "--file", str(file))

    def do(self, *arguments: str) -> Ran:
        return self._run("runs", *arguments, *self.at)

    def start(self, agent: str, *more: str) -> dict[str, Any]:
        """A run of that agent, driven until it ends or waits."""
        found: dict[str, Any] = self.do("start", agent, "go", "--by", "ada", "--drive", "--json", *more).json
        return found


@pytest.fixture
def desk(run: Run, url: str, tmp_path: Path) -> Desk:
    """Agents with scripted models and the shop's tools, over a ledger of their own."""
    file = tmp_path / "agents.yaml"
    file.write_text(FILE)
    run("db", "upgrade", "--store", url)
    return Desk(run, url, file)


def test_driven_run_ends_and_its_effect_is_single(desk: Desk) -> None:
    """The whole way: a start, the model, a tool, the end."""
    found = desk.start("credit")
    assert (found["state"], found["output"]) == ("succeeded", "Done.")
    assert found["spent"]["calls"] == 1
    assert len(shop.book()) == 1


def test_spending_of_children_is_shown_apart(desk: Desk) -> None:
    """The sum holds what other agents spent for the run; how much that was is said beside it."""
    found = desk.start("boss")
    assert (found["spent"]["cost"], found["spent"]["by_children"]["cost"]) == ("1.75", "0.25")
    told = desk.do("show", found["id"]).stdout
    assert "2 turns, 1 call, 45 tokens, $1.75" in told
    assert "of children" in told
    assert "42 tokens, $0.25" in told
    assert "by that run: 42 tokens, $0.25" in told


def test_purged_run_says_so(desk: Desk, run: Run) -> None:
    """It is listed with its state, shown by its outline, and cannot be gone through again."""
    found = desk.start("credit")
    place = desk.at[:2]
    purge = ("db", "purge", "--runs", "--older-than", "0s", *place)
    assert "Would purge 1 run, 1 succeeded." in run(*purge, "--dry-run").stdout
    assert run(*purge, "--state", "failed", "--json").json["purged"] == 0
    assert run(*purge, "--json").json == {
        "purged": 1, "by_state": {"succeeded": 1}, "bodies": 0, "dry_run": False, "results_only": False,
    }  # fmt: skip
    assert "succeeded (purged)" in desk.do("list").stdout
    assert desk.do("list", "--json").json["runs"][0]["purged_at"] is not None
    shown = desk.do("show", found["id"])
    assert shown.exit_code == 0
    assert "(its details were erased)" in shown.stdout
    assert "purged" in shown.stdout
    assert "Done." not in shown.stdout
    assert "rerun" not in shown.stdout
    assert desk.do("watch", found["id"]).exit_code == 0
    for verb, more in (("rerun", ("--by", "bob")), ("rehearse", ())):
        refused = desk.do(verb, found["id"], *more, "--json")
        assert (refused.exit_code, refused.json["error"]["code"]) == (1, "run_purged")


def test_driven_run_is_told_as_it_happens(desk: Desk) -> None:
    """Each event in words, in order."""
    told = desk.do("start", "credit", "go", "--by", "ada", "--drive")
    assert told.exit_code == 0
    words = ["started", "model", "asks", "result", "succeeded"]
    places = [told.stdout.index(f" {word} ") for word in words]
    assert places == sorted(places)


def test_command_that_is_offered_leads_to_the_run(desk: Desk, run: Run) -> None:
    """Wherever the ledger was named, and with what a shell would take apart."""
    told = desk.do("start", "credit", "go", "--by", "ada", "--tenant", "a-tenant").stdout.splitlines()[-1]
    program, *words = shlex.split(told)
    assert (program, words[:2]) == ("tollhouse", ["runs", "watch"])
    assert run("runs", "show", *words[2:], "--json").json["state"] == "queued"


def test_url_with_a_password_is_never_offered() -> None:
    """It is named by its variable, which the shell must be left to read."""
    place = Place("postgresql://ada:secret@db/ledger", "a tenant")
    assert place.tail == " --store $TOLLHOUSE_STORE --tenant 'a tenant'"


def test_driven_run_stops_where_its_child_waits_for_people(desk: Desk, run: Run) -> None:
    """Nothing goes on without them, so nobody waits at a terminal; the child is named, with where to look."""
    told = desk.do("start", "chief", "go", "--by", "ada", "--drive")
    assert told.exit_code == 3, told
    assert "It waits for ask: " in told.stdout
    _, *words = shlex.split(told.stdout.splitlines()[-1])
    child = run(*words, "--json").json
    assert (child["agent"], child["state"]) == ("ask", "awaiting_answer")
    assert desk.start("chief")["state"] == "awaiting_work"


def test_same_key_starts_nothing(desk: Desk) -> None:
    """Said in words and as a field; another start under the key is a conflict."""
    first = desk.do("start", "credit", "go", "--by", "ada", "--key", "order-7", "--json").json
    again = desk.do("start", "credit", "go", "--by", "ada", "--key", "order-7", "--json").json
    assert (first["started_before"], again["started_before"]) == (False, True)
    assert again["id"] == first["id"]
    assert "nothing was started now" in desk.do("start", "credit", "go", "--by", "ada", "--key", "order-7").stdout
    other = desk.do("start", "credit", "otherwise", "--by", "ada", "--key", "order-7", "--json")
    assert (other.exit_code, other.json["error"]["code"]) == (1, "run_conflict")


def test_list_shows_runs_of_a_state_newest_first(desk: Desk) -> None:
    """By what is asked for; what is no state is a mistake."""
    desk.start("credit")
    desk.start("ask")
    assert [each["agent"] for each in desk.do("list", "--json").json["runs"]] == ["ask", "credit"]
    assert [each["agent"] for each in desk.do("list", "--state", "succeeded", "--json").json["runs"]] == ["credit"]
    listed = desk.do("list")
    assert listed.exit_code == 3
    assert "awaiting_answer" in listed.stdout
    wrong = desk.do("list", "--state", "asleep", "--json")
    assert wrong.json["error"]["code"] == "invalid_setting"
    assert desk.do("list", "--limit", "1", "--json").json["more"] is True


def test_show_tells_the_story_and_what_can_be_done(desk: Desk) -> None:
    """With the commands to copy."""
    run_id = desk.start("ask")["id"]
    shown = desk.do("show", run_id)
    assert shown.exit_code == 3
    assert "Which account?" in shown.stdout
    assert f"tollhouse runs answer {run_id} {run_id}:1.1 --text TEXT --by NAME" in shown.stdout
    assert [event["kind"] for event in desk.do("show", run_id, "--json").json["events"]][:2] == [
        "run_started",
        "run_claimed",
    ]


def test_answer_lets_a_run_go_on(desk: Desk) -> None:
    """Whoever drives next takes it up; a second answer has no question any more."""
    run_id = desk.start("ask")["id"]
    assert desk.do("answer", run_id, f"{run_id}:1.1", "--text", "a9", "--by", "bob").exit_code == 0
    again = desk.do("answer", run_id, f"{run_id}:1.1", "--text", "a8", "--by", "bob", "--json")
    assert again.json["error"]["code"] == "unknown_question"
    assert desk.do("show", run_id, "--json").json["state"] == "queued"


def test_doubt_exits_with_three_and_names_the_call(desk: Desk) -> None:
    """Nothing runs it again by itself."""
    found = desk.start("lost")
    assert found["state"] == "awaiting_reconciliation"
    shown = desk.do("show", found["id"])
    assert (shown.exit_code, len(shop.book())) == (3, 1)
    assert f"tollhouse calls show {found['id']}:1.1" in shown.stdout


def test_limit_is_told_and_raised(desk: Desk) -> None:
    """With the command that raises it; a limit that does not exist is a mistake."""
    run_id = desk.start("long")["id"]
    assert f"tollhouse runs limits {run_id} --set turns=N" in desk.do("show", run_id).stdout
    assert desk.do("limits", run_id, "--set", "turns=5", "--by", "ada").exit_code == 0
    assert desk.do("show", run_id, "--json").json["limits"]["turns"] == 5
    for mistake in ("turns", "turns=many"):
        assert desk.do("limits", run_id, "--set", mistake, "--by", "ada", "--json").exit_code == 2


def test_cancel_stops_a_run_and_is_no_failure_of_the_command(desk: Desk) -> None:
    """The run is cancelled; cancelling it again changes nothing; a finished one cannot be."""
    run_id = desk.start("ask")["id"]
    for _ in range(2):
        assert desk.do("cancel", run_id, "--by", "ada", "--reason", "not needed").exit_code == 0
    assert desk.do("show", run_id, "--json").json["state"] == "cancelled"
    ended = desk.start("credit")["id"]
    assert desk.do("cancel", ended, "--by", "ada", "--json").json["error"]["code"] == "run_not_allowed"


def test_broken_tools_stop_nobody_from_deciding(desk: Desk) -> None:
    """Stopping a run, above all, needs none of them."""
    asked, other = desk.start("ask"), desk.start("ask")
    desk.file.write_text("broken: [")
    question = asked["waiting"][0]["id"]
    assert desk.do("answer", asked["id"], question, "--text", "a7", "--by", "bob").exit_code == 0
    assert desk.do("cancel", other["id"], "--by", "bob").exit_code == 0
    assert desk.do("rerun", other["id"], "--by", "bob", "--json").json["error"]["code"] == "agent_file_invalid"


def test_rerun_is_a_run_of_its_own(desk: Desk) -> None:
    """Linked to its source, with the choice about effects on record."""
    run_id = desk.start("credit")["id"]
    again = desk.do("rerun", run_id, "--by", "ada", "--effects", "reuse", "--json").json
    assert (again["source_run_id"], again["attempt_no"], again["effects"]) == (run_id, 2, "reuse")
    wrong = desk.do("rerun", run_id, "--by", "ada", "--effects", "all", "--json")
    assert wrong.json["error"]["code"] == "invalid_setting"


def test_rehearsal_fails_where_the_agent_would_do_otherwise(desk: Desk) -> None:
    """Usable in CI: 0 when all is as recorded, 1 with the differences."""
    run_id = desk.start("credit")["id"]
    same = desk.do("rehearse", run_id)
    assert (same.exit_code, "Everything went as recorded." in same.stdout) == (0, True)
    desk.file.write_text(FILE.replace("amount_cents: 2500", "amount_cents: 9"))
    other = desk.do("rehearse", run_id, "--json")
    assert (other.exit_code, other.json["same"]) == (1, False)
    assert [each["kind"] for each in other.json["differences"]] == ["other_arguments"]
    assert "other arguments" in desk.do("rehearse", run_id).stdout
    assert len(shop.book()) == 1


def test_watch_follows_to_the_end(desk: Desk) -> None:
    """Everything that happened, then it ends with the run; one object a line with --json."""
    run_id = desk.start("credit")["id"]
    assert "succeeded" in desk.do("watch", run_id).stdout
    lines = [json.loads(line) for line in desk.do("watch", run_id, "--after", "1", "--json").stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(2, lines[-1]["seq"] + 1))


@pytest.mark.parametrize("command", ["show", "watch", "cancel", "rerun", "rehearse"])
def test_unknown_run_has_a_code(desk: Desk, command: str) -> None:
    """Whatever is asked of it."""
    by = ("--by", "ada") if command in ("cancel", "rerun") else ()
    missing = desk.do(command, "run_nothere", *by, "--json")
    assert (missing.exit_code, missing.json["error"]["code"]) == (1, "unknown_run")


def test_number_beyond_every_event_is_a_usage_error(desk: Desk) -> None:
    """No store counts so far."""
    done = desk.do("watch", "nobody", "--after", str(2**63))
    assert done.exit_code == 2, done


def test_start_needs_a_name_an_agent_and_a_file(desk: Desk, run: Run, url: str) -> None:
    """Each mistake has its own sentence; nothing is started."""
    assert desk.do("start", "credit", "go").exit_code == 2
    unknown = desk.do("start", "crdit", "go", "--by", "ada", "--drive", "--json")
    assert unknown.json["error"]["code"] == "unknown_agent"
    assert "credit" in unknown.json["error"]["remedy"]
    missing = run("runs", "start", "credit", "go", "--by", "ada", "--drive", "--store", url, "--json")
    assert missing.json["error"]["code"] == "unknown_agent"
    assert desk.do("list", "--json").json["runs"] == []


def test_looking_at_a_ledger_that_is_not_there_makes_none(run: Run, tmp_path: Path) -> None:
    """A mistyped path leaves nothing behind."""
    path = tmp_path / "nothere.db"
    assert run("runs", "list", "--store", f"sqlite:///{path}").exit_code == 2
    assert not path.exists()


def test_every_kind_of_event_has_a_teller() -> None:
    """And none is kept for what is never written."""
    assert set(TELLERS) == set(RunEvent)


def test_event_whose_details_were_erased_is_told() -> None:
    """A line says that something of that kind happened."""
    (told,) = tell_event(RunEvent.STARTED, {})
    assert told.text == "(its details were erased)"
