"""`calls list` shows what is recorded, newest first, for a person and for a program."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, Shop

FIELDS = {
    "arguments", "approval", "attempts", "cancel_asked", "compensated_by", "compensates", "contract", "contradicted",
    "cost", "created_at", "deadline_at", "departed_at", "digest", "doubt_since", "due_at", "effect", "error", "group",
    "guarantee", "idempotency_key", "key", "limits", "looks", "purged_at", "reference", "repeat_of", "request_digest",
    "requested_by", "result", "result_detail", "result_problem", "round", "run_when_approved", "scope", "settlements",
    "state", "tenant", "tool", "updated_at", "version",
}  # fmt: skip
"""The names that programs rely on."""


@pytest.fixture
def six(filled: Shop) -> Shop:
    """One call in each of several states."""
    filled.credit("order-1")
    filled.credit("order-2", "bad")
    filled.credit("order-3", "lost", scope="run-1")
    filled.call("send_letter", "letter-1", to="nobody")
    filled.call("drop_table", "drop-1", name="users")
    filled.call("start_job", "job-1", name="nightly")
    return filled


def keys(run: Run, six: Shop, *options: str) -> list[str]:
    """Keys in the answer."""
    return [call["key"] for call in run("calls", "list", "--json", *options, *six.at).json["calls"]]


def test_calls_are_listed_newest_first_with_all_their_fields(run: Run, six: Shop) -> None:
    """Every call has the same names, whatever its state."""
    done = run("calls", "list", "--json", *six.at)
    calls = done.json["calls"]
    assert [call["key"] for call in calls] == ["job-1", "drop-1", "letter-1", "order-3", "order-2", "order-1"]
    assert {frozenset(call) for call in calls} == {frozenset(FIELDS)}
    assert done.json["more"] is False


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--state", "in_doubt"], ["letter-1", "order-3"]),
        (["--tool", "issue_credit"], ["order-3", "order-2", "order-1"]),
        (["--tool", "issue_credit", "--state", "failed"], ["order-2"]),
        (["--scope", "run-1"], ["order-3"]),
        (["--contradicted"], []),
        (["--tenant", "other"], []),
    ],
)
def test_filters_narrow_the_list(run: Run, six: Shop, options: list[str], expected: list[str]) -> None:
    """Each alone and together."""
    assert keys(run, six, *options) == expected


def test_contradicted_calls_can_be_asked_for(run: Run, six: Shop) -> None:
    """They are what a person must look at first."""
    run("calls", "resolve", "order-3", "--did-not-happen", "--reason", "r", "--by", "ada", "--tools", "", *six.at)
    six.house.reconcile("order-3")
    assert keys(run, six, "--contradicted") == ["order-3"]
    shown = run("calls", "list", "--contradicted", *six.at)
    assert "failed, contradicted" in shown.stdout
    assert shown.exit_code == 3


@pytest.mark.parametrize(("limit", "more"), [(1, True), (5, True), (6, False), (7, False)])
def test_limit_bounds_the_list_and_says_when_there_are_more(run: Run, six: Shop, limit: int, more: bool) -> None:
    """Nobody must take a part for the whole."""
    done = run("calls", "list", "--limit", str(limit), "--json", *six.at)
    assert len(done.json["calls"]) == min(limit, 6)
    assert done.json["more"] is more
    assert ("raise --limit" in run("calls", "list", "--limit", str(limit), *six.at).stdout) is more


def test_limit_beyond_a_page_reads_further_pages(run: Run, filled: Shop) -> None:
    """A page is 100 calls; none is lost or doubled at its edge."""
    for number in range(203):
        filled.credit(f"order-{number:03}")
    for limit, more in ((100, True), (202, True), (203, False), (500, False)):
        done = run("calls", "list", "--limit", str(limit), "--json", *filled.at)
        listed = [call["key"] for call in done.json["calls"]]
        assert listed == [f"order-{number:03}" for number in range(202, -1, -1)][:limit]
        assert done.json["more"] is more


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        ([], 3),
        (["--state", "held"], 3),
        (["--state", "in_doubt"], 3),
        (["--state", "succeeded"], 0),
        (["--scope", "x"], 0),
    ],
)
def test_exit_code_says_whether_one_of_those_shown_needs_somebody(
    run: Run, six: Shop, options: list[str], exit_code: int
) -> None:
    """In doubt or held is 3, also with JSON."""
    assert run("calls", "list", *options, *six.at).exit_code == exit_code
    assert run("calls", "list", *options, "--json", *six.at).exit_code == exit_code


def test_table_tells_of_each_call_in_a_line(run: Run, six: Shop) -> None:
    """In a pipe a call is one line of columns, without colours or trailing blanks."""
    lines = run("calls", "list", *six.at).stdout.splitlines()
    assert lines[0].split("  ")[0] == "KEY"
    assert [line.split()[0] for line in lines[1:7]] == ["job-1", "drop-1", "letter-1", "order-3", "order-2", "order-1"]
    assert lines[3].split()[1:6] == ["send_letter", "in_doubt", "1", "of", "1"]
    assert lines[-1] == "6 calls: 1 held, 1 accepted, 2 in_doubt, 1 succeeded, 1 failed."
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in "".join(lines)


def test_column_without_content_is_left_out(run: Run, six: Shop) -> None:
    """A doubt's age is shown where there is a doubt."""
    assert "IN DOUBT FOR" in run("calls", "list", *six.at).stdout
    assert "IN DOUBT FOR" not in run("calls", "list", "--state", "succeeded", *six.at).stdout


@pytest.mark.parametrize("width", [30, 45, 60, 80, 200])
def test_narrow_screen_keeps_key_and_state_whole(run: Run, six: Shop, width: int) -> None:
    """Columns give way in their order; what names a call and where it stands never does."""
    shown = run("calls", "list", *six.at, env={"COLUMNS": str(width)}).stdout
    assert all(key in shown for key in ("job-1", "letter-1", "order-3"))
    assert shown.count("in_doubt") == 3
    assert max(map(len, shown.splitlines())) <= width
    assert ("ASKED BY" in shown) is (width >= 80)


@pytest.mark.parametrize("columns", ["0", "wide", "1"])
def test_screen_without_a_width_loses_nothing(run: Run, six: Shop, columns: str) -> None:
    """Some programs say 0 columns for a width that they do not know; a column or two would leave no room."""
    shown = run("calls", "list", *six.at, env={"COLUMNS": columns}).stdout
    assert all(key in shown for key in ("job-1", "letter-1", "order-3"))
    assert ("ASKED BY" in shown) is (columns != "1")


def test_key_longer_than_the_screen_is_broken_not_cut(run: Run, filled: Shop) -> None:
    """Half of a key is no key."""
    key = "order-" + "x" * 60
    filled.credit(key)
    shown = run("calls", "list", *filled.at, env={"COLUMNS": "40"}).stdout
    assert "".join(line.split(" ")[0] for line in shown.splitlines()[1:] if line.startswith(("order-", "x"))) == key


def test_empty_ledger_is_told_in_words(run: Run, filled: Shop) -> None:
    """Not by silence."""
    done = run("calls", "list", *filled.at)
    assert (done.exit_code, done.stdout) == (0, "No calls.\n")
    assert run("calls", "list", "--json", *filled.at).json == {"calls": [], "more": False}


def test_colours_are_for_terminals(run: Run, six: Shop) -> None:
    """FORCE_COLOR asks for them, NO_COLOR outranks it."""
    yellow = "\x1b[1;33m"
    assert yellow in run("calls", "list", *six.at, env={"FORCE_COLOR": "1"}).stdout
    assert "33m" not in run("calls", "list", *six.at, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


def test_environment_names_the_ledger_and_the_tenant(run: Run, six: Shop) -> None:
    """A flag outranks it."""
    there = {"TOLLHOUSE_STORE": six.url}
    assert len(run("calls", "list", "--json", env=there).json["calls"]) == 6
    assert run("calls", "list", "--json", env={**there, "TOLLHOUSE_TENANT": "other"}).json["calls"] == []
    elsewhere = {**there, "TOLLHOUSE_TENANT": "other"}
    assert len(run("calls", "list", "--json", "--tenant", "default", env=elsewhere).json["calls"]) == 6
