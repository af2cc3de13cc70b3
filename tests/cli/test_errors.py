"""A user's mistake ends in a code, a cause, a remedy and whether anything was sent; never in a traceback."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Shop

DECISIONS = {
    "resolve": ["--happened", "--reason", "seen"],
    "compensate": ["--reason", "wrong"],
    "approve": [],
    "deny": ["--reason", "no"],
    "edit": ["--arguments", "{}"],
    "retry": ["--reason", "again"],
    "cancel": [],
    "overturn": ["--reason", "wrong"],
    "uphold": ["--reason", "right"],
}


def test_error_is_shown_with_code_cause_remedy_and_what_was_sent(run: Run, filled: Shop) -> None:
    """On stderr, one line each, and nothing on stdout."""
    done = run("calls", "show", "no-such-key", *filled.at)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: No call is recorded under no-such-key for the tenant default.  [unknown_call]",
        "  remedy: Check the key and the tenant; `tollhouse calls list` shows what is recorded.",
        "  sent:   no",
    ]


def test_error_with_json_is_the_one_document_on_stdout(run: Run, filled: Shop) -> None:
    """The same facts, by stable names."""
    done = run("calls", "show", "no-such-key", "--json", *filled.at)
    assert done.exit_code == 1
    assert done.stderr == ""
    error = done.json["error"]
    assert set(error) == {"code", "cause", "remedy", "sent", "key"}
    assert (error["code"], error["sent"], error["key"]) == ("unknown_call", "no", "no-such-key")


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "show"),
        ("runs", "watch"),
        ("runs", "proof"),
        ("runs", "list", "--agent"),
        ("runs", "list", "--thread"),
        ("keys", "revoke"),
        ("calls", "show"),
    ],
)
def test_what_is_no_text_is_a_mistake_in_the_command(run: Run, filled: Shop, words: tuple[str, ...]) -> None:
    """Bytes of another encoding, as a shell hands them over."""
    done = run(*words, "caf\udce9", *filled.at)
    assert done.exit_code == 2, done
    assert done.stderr.startswith("error: What was given as caf\\udce9 is no text")


def test_file_may_be_called_by_what_is_no_text(run: Run, tmp_path: Path) -> None:
    """Its name is bytes, and it is read."""
    file = tmp_path / "caf\udce9.json"
    file.write_text("[]")
    assert run("proof", "verify", str(file), "--json").json["error"]["code"] == "proof_unreadable"


@pytest.mark.parametrize("arguments", [["calls", "list"], ["calls", "show", "k"], ["worker"], ["db", "check"]])
def test_missing_store_is_a_usage_error(run: Run, arguments: list[str]) -> None:
    """It names the option and the variable, with an example."""
    done = run(*arguments, "--json")
    assert done.exit_code == 2
    assert done.json["error"]["code"] == "usage"
    assert "--store" in done.json["error"]["remedy"]
    assert "TOLLHOUSE_STORE" in done.json["error"]["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [["calls", "list"], ["calls", "show", "k"], ["calls", "cancel", "k", "--by", "ada"], ["db", "check"]],
)
def test_mistyped_path_is_told_and_creates_nothing(run: Run, arguments: list[str], tmp_path: Path) -> None:
    """Looking, or deciding, must not leave an empty database behind that looks like an answer."""
    done = run(*arguments, "--store", f"sqlite:///{tmp_path / 'typo.db'}")
    assert done.exit_code in (1, 2)
    assert "typo.db" in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []


def test_mistyped_path_is_a_usage_error_that_says_there_is_no_ledger(run: Run, tmp_path: Path) -> None:
    """The file is not there, nor is the folder."""
    for path in (tmp_path / "typo.db", tmp_path / "no" / "such" / "folder.db"):
        done = run("calls", "list", "--store", f"sqlite:///{path}")
        assert done.exit_code == 2
        assert "There is no ledger at" in done.stderr


def test_store_url_that_names_no_store_is_a_usage_error(run: Run) -> None:
    """The scheme is wrong."""
    assert run("calls", "list", "--store", "mysql://somewhere").exit_code == 2


def test_password_of_a_store_is_never_shown(run: Run) -> None:
    """Not in an error about it either."""
    done = run("calls", "list", "--store", "postgresql://me:hunter2@127.0.0.1:1/nowhere")
    assert done.exit_code == 1
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("verb", DECISIONS)
def test_decision_without_a_name_is_a_usage_error(run: Run, filled: Shop, verb: str) -> None:
    """Nobody decides by default: the name of whoever is logged in is not a name that was given."""
    filled.credit("order-1", "lost")
    done = run("calls", verb, "order-1", *DECISIONS[verb], *filled.at, "--json")
    assert done.exit_code == 2
    assert done.json["error"]["code"] == "usage"
    assert "--by" in done.json["error"]["remedy"]
    assert filled.house.get("order-1").version == 2


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["calls", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["cals"], "No such command 'cals'. Did you mean 'calls'?"),
        (["calls", "list", "--nonsense"], "--nonsense"),
        (["calls", "show"], "Missing argument 'KEY'."),
        (["calls", "list", "--limit", "0"], "--limit"),
        (["calls", "list", "--limit", "many"], "--limit"),
        (["calls", "resolve", "k", "--happened"], "--reason"),
    ],
)
def test_mistake_in_the_command_says_what_and_where_to_look(run: Run, arguments: list[str], cause: str) -> None:
    """Parser errors have the same shape as all others."""
    done = run(*arguments, "--json")
    assert done.exit_code == 2
    assert done.json["error"]["code"] == "usage"
    assert cause in done.json["error"]["cause"]
    assert "--help" in done.json["error"]["remedy"]


def test_group_without_a_command_shows_its_help(run: Run) -> None:
    """On stderr, since nothing was asked."""
    done = run("calls")
    assert done.exit_code == 2
    assert "Commands:" in done.stderr


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ([], "either --happened or --did-not-happen"),
        (["--happened", "--did-not-happen"], "either --happened or --did-not-happen"),
        (["--did-not-happen", "--value", "1"], "no result"),
        (["--did-not-happen", "--reference", "x"], "no result"),
        (["--happened", "--evidence", "x"], "--evidence"),
        (["--happened", "--value", "{"], "--value is no JSON"),
        (["--happened", "--value", '{"a": 1, "a": 2}'], "'a' is given twice"),
        (["--happened", "--value", "@/no/such/file"], "--value is no JSON"),
    ],
)
def test_resolution_that_contradicts_itself_is_a_usage_error(
    run: Run, filled: Shop, options: list[str], cause: str
) -> None:
    """And leaves the doubt as it was."""
    filled.credit("order-1", "lost")
    done = run("calls", "resolve", "order-1", *options, "--reason", "seen", "--by", "ada", *filled.at, "--json")
    assert done.exit_code == 2
    assert cause in done.json["error"]["cause"]
    assert filled.house.get("order-1").state == "in_doubt"


def test_unknown_state_is_a_usage_error_that_lists_the_known(run: Run, filled: Shop) -> None:
    """So that nobody takes an empty list for good news."""
    done = run("calls", "list", "--state", "doubtful", *filled.at, "--json")
    assert done.exit_code == 2
    assert "in_doubt" in done.json["error"]["remedy"]


def test_ill_formed_key_and_tenant_are_usage_errors(run: Run, filled: Shop) -> None:
    """They name nothing that could exist."""
    assert run("calls", "show", "a key", *filled.at).exit_code == 2
    assert run("calls", "list", "--tenant", "a:b", *filled.at).exit_code == 2


def test_database_of_another_application_is_told_to_hold_no_ledger(run: Run, tmp_path: Path) -> None:
    """The file is there, so nobody says that it does not exist; and nothing is made in it."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE calls (who TEXT)")
    done = run("calls", "list", "--store", f"sqlite:///{tmp_path / 'shop.db'}")
    assert done.exit_code == 2
    assert f"There is no ledger at sqlite:///{tmp_path / 'shop.db'}." in done.stderr
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert shop.execute("SELECT name FROM sqlite_master").fetchall() == [("calls",)]


def test_module_in_place_of_an_agents_file_is_told_how_to_be_named(run: Run, tmp_path: Path) -> None:
    """It is not read as YAML, and no packages are asked for that would not help."""
    (tmp_path / "tools.py").write_text("x = 1\n")
    done = run("check", str(tmp_path / "tools.py"))
    assert done.exit_code == 2
    assert f"{tmp_path / 'tools.py'} is a Python module, not an agents' file." in done.stderr
    assert f"Name it as --tools {tmp_path / 'tools.py'}." in done.stderr


def test_file_that_is_no_ledger_is_told_as_such(run: Run, tmp_path: Path) -> None:
    """A store's own error passes through, with its remedy."""
    file = tmp_path / "notes.db"
    file.write_text("These are my notes, and they are long enough to be no database header at all." * 20)
    done = run("calls", "list", "--store", f"sqlite:///{file}", "--json")
    assert done.exit_code == 1
    assert done.json["error"]["code"].startswith("store_")
