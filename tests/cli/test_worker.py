"""`worker` settles what callers left behind, says what it sees on stderr, and stops when it is told to."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.cli import shop
from tests.cli.conftest import Run, Shop
from tests.cli.processes import command, first_line, line_with, running
from tollhouse import State
from tollhouse.errors import Held

TOOLS = ("--tools", shop.PATH)
QUICK = ("--lease-s", "1", "--every-s", "0.1")

CALLER = """
import sys
from tests.cli import shop
from tollhouse import Tollhouse
with Tollhouse.open_sync(sys.argv[1], tools=[shop.hang], lease_s=0.5, background=False) as house:
    house.call(shop.hang, {}, key=sys.argv[2])
"""


def killed_while_sending(url: str, key: str) -> None:
    """A caller dies of SIGKILL while its tool is at it."""
    with running([sys.executable, "-c", CALLER, url, key]) as caller:
        assert first_line(caller) == "hanging\n"
        caller.kill()
        caller.wait()


# -- one round -----------------------------------------------------------------------------------------------------


def test_once_settles_what_it_can_and_exits_with_0(run: Run, filled: Shop) -> None:
    """The look-up is asked; nothing remains."""
    filled.credit("order-1", "lost")
    done = run("worker", "--once", *TOOLS, *filled.at, "--json")
    assert done.exit_code == 0
    assert done.json == {"looked_at": 1, "in_doubt": 0, "held": 0, "contradicted": 0}
    assert filled.house.get("order-1").state == "succeeded"


def test_once_exits_with_3_while_doubts_remain(run: Run, filled: Shop) -> None:
    """So that a schedule can alarm."""
    filled.credit("order-1", "silent")
    done = run("worker", "--once", *TOOLS, *filled.at)
    assert done.exit_code == 3
    assert done.stdout == "Looked at 1 call; 1 in_doubt, 0 held, 0 contradicted.\n"


def test_once_counts_an_open_contradiction_as_a_doubt(run: Run, filled: Shop) -> None:
    """It waits for a person as well."""
    filled.credit("order-1", "lost")
    run("calls", "resolve", "order-1", "--did-not-happen", "--reason", "r", "--by", "ada", *filled.at)
    filled.house.reconcile("order-1")
    assert run("worker", "--once", *TOOLS, *filled.at, "--json").json["contradicted"] == 1
    assert run("worker", "--once", *TOOLS, *filled.at).exit_code == 3


def test_once_leaves_held_calls_to_people(run: Run, filled: Shop) -> None:
    """That a person is asked is no doubt."""
    filled.call("drop_table", "drop-1", name="users")
    done = run("worker", "--once", *TOOLS, *filled.at, "--json")
    assert (done.exit_code, done.json["held"]) == (0, 1)


def test_worker_runs_approved_calls_that_shall_run_without_their_caller(run: Run, filled: Shop) -> None:
    """As the stored row says, and only those that were called with it."""
    for key, waits in (("drop-1", False), ("drop-2", True)):
        with pytest.raises(Held):
            filled.house.call("drop_table", {"name": key, "rows": 7}, key=key, by="agent-7", run_when_approved=waits)
        for name in ("ada", "bob"):
            run("calls", "approve", key, "--by", name, *filled.at)
    assert run("worker", "--once", *TOOLS, *filled.at).exit_code == 0
    assert shop.book() == [{"dropped": "drop-2"}]
    assert [filled.house.get(key).state for key in ("drop-1", "drop-2")] == [State.READY, State.SUCCEEDED]
    assert filled.house.get("drop-2").result == 7


def test_worker_without_the_tool_leaves_its_calls_alone(run: Run, filled: Shop) -> None:
    """It must have the code that it runs."""
    filled.credit("order-1", "lost")
    assert run("worker", "--once", *filled.at, "--json").json["in_doubt"] == 1


def test_what_tools_print_stays_out_of_the_answer(run: Run, filled: Shop) -> None:
    """One JSON document on stdout, whatever runs meanwhile."""
    with pytest.raises(Held):
        filled.house.call("drop_table", {"name": "x"}, key="drop-1", by="agent-7", run_when_approved=True)
    for name in ("ada", "bob"):
        filled.house.approve("drop-1", by=name)
    done = run("worker", "--once", *TOOLS, *filled.at, "--json")
    assert set(done.json) == {"looked_at", "in_doubt", "held", "contradicted"}
    assert "dropping x" in done.stderr


@pytest.mark.postgres
def test_once_over_postgresql(run: Run, filled_postgres: Shop) -> None:
    """Same work, same account."""
    filled_postgres.credit("order-1", "lost")
    done = run("worker", "--once", *TOOLS, *filled_postgres.at, "--json")
    assert (done.exit_code, done.json["in_doubt"]) == (0, 0)


# -- until it is stopped -------------------------------------------------------------------------------------------


def test_worker_says_when_it_is_ready_and_stops_gracefully(url: str) -> None:
    """One line on stdout; exit code 0 for either signal."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with running(command("worker", *TOOLS, *QUICK, "--store", url)) as worker:
            assert first_line(worker).startswith(f"Worker ready: {url}, tenant default, 8 tools (balance, ")
            worker.send_signal(number)
            out, err = worker.communicate(timeout=30)
        assert worker.returncode == 0
        assert out == ""
        assert err.endswith(f"worker_stopping pid={worker.pid}\n")


def test_worker_logs_a_doubt_that_a_killed_caller_left(url: str, filled: Shop) -> None:
    """With stable fields, one JSON object a line; the call is in doubt and visible."""
    with running(command("worker", *TOOLS, *QUICK, "--json", "--store", url)) as worker:
        ready = json.loads(first_line(worker))
        assert (ready["event"], ready["in_doubt"]) == ("worker_ready", 0)
        killed_while_sending(url, "hang-1")
        line = json.loads(line_with(worker, "doubt_appeared"))
    assert set(line) == {"at", "level", "event", "tenant", "key", "tool", "state"}
    assert (line["level"], line["event"], line["key"]) == ("warning", "doubt_appeared", "hang-1")
    assert filled.house.get("hang-1").state == "in_doubt"


def test_log_lines_of_text_have_time_event_and_fields(url: str, filled: Shop) -> None:
    """For people and for grep."""
    with running(command("worker", *TOOLS, *QUICK, "--store", url)) as worker:
        first_line(worker)
        killed_while_sending(url, "hang-1")
        line = line_with(worker, "doubt_appeared")
    assert line[:4].isdecimal()
    assert line.split(" ", 1)[1] == "doubt_appeared tenant=default key=hang-1 tool=hang state=in_doubt\n"


def test_story_of_a_lost_owner_is_told(run: Run, url: str, filled: Shop) -> None:
    """The process that had it was set aside, and how we know."""
    with running(command("worker", *TOOLS, *QUICK, "--store", url)) as worker:
        first_line(worker)
        killed_while_sending(url, "hang-1")
        line_with(worker, "doubt_appeared")
    page = run("calls", "show", "hang-1", *filled.at).stdout
    assert "was set aside: its process is gone; it cannot send any more" in page


def test_old_doubts_are_logged_again_and_again(url: str, filled: Shop) -> None:
    """From the age that the operator chose."""
    filled.credit("order-1", "silent")
    with running(command("worker", *TOOLS, *QUICK, "--doubt-alarm-s", "0.01", "--json", "--store", url)) as worker:
        line = json.loads(line_with(worker, "doubt_aged"))
    assert (line["event"], line["key"], line["level"]) == ("doubt_aged", "order-1", "warning")


def test_second_signal_stops_a_worker_at_once(url: str, filled: Shop) -> None:
    """A tool that never ends must not hold its operator up; its call is in doubt then, not lost."""
    with pytest.raises(Held):
        filled.house.call("drop_table", {"name": "forever"}, key="drop-1", by="agent-7", run_when_approved=True)
    for name in ("ada", "bob"):
        filled.house.approve("drop-1", by=name)
    with running(command("worker", *TOOLS, *QUICK, "--grace-s", "600", "--store", url)) as worker:
        line_with(worker, "dropping")
        worker.send_signal(signal.SIGTERM)
        line_with(worker, "worker_stopping")
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    assert worker.returncode == -signal.SIGTERM
    assert filled.house.get("drop-1").state == "departed"
