"""Commands take the ledger and the tools from the agents' file where nothing else names them."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import jsonschema_rs
import pytest

from tests.cli.conftest import Run
from tollhouse.operations.production import REASONS

TOOLS = '''
from tollhouse import external, read, tool, unknown

def look_up(call):
    return unknown()

@tool(external(), reconcile=look_up)
def pay(cents: int) -> str:
    """Pay somebody."""
    return "paid"

@tool(read())
def look() -> int:
    """Look."""
    return 1
'''

FILE = """
version: 1
store: sqlite:///ledger.db
tools: [my_shop.py]
scripts: {play: [{say: Hello.}]}
agents:
  clerk:
    model: scripted:play
    description: Pays.
    tools: [pay, look]
    approvals: {pay: {quorum: 2, approvers: [ada, bob], expires: 2h}}
    limits: {cost: 0.5, wall: 30m}
"""


@pytest.fixture(autouse=True)
def forgotten_modules() -> Iterator[None]:
    """Each test imports its own modules, whatever they are called."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an agents' file and its tools."""
    inner = tmp_path / "project"
    inner.mkdir()
    (inner / "my_shop.py").write_text(TOOLS)
    (inner / "tollhouse.yaml").write_text(FILE)
    monkeypatch.chdir(inner)
    return inner


def change(folder: Path, old: str, new: str) -> None:
    """Write the file anew."""
    path = folder / "tollhouse.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


# -- check ---------------------------------------------------------------------------------------------------------


def test_check_tells_agents_versions_and_what_they_may_call(run: Run, folder: Path) -> None:
    """The file of the folder is found by itself."""
    done = run("check")
    assert done.exit_code == 0, done
    version = run("check", "--json").json["agents"][0]["version"]
    for told in (
        "clerk  agent  Pays.",
        f"version   {version[:12]}\n",
        "limits    25 turns, 200 calls, 0.5 USD, 30 min",
        "may call  pay: external, sent once",
        "; asks 2 people of ada, bob, within 2 h",
        "may call  look: read, runs up to 3 times",
        "caution   The agent asks a model that says what a script says.",
        "2 tools, 1 agent, 1 caution, 0 problems.",
    ):
        assert told in done.stdout


def test_check_as_json_has_file_agents_and_tools(run: Run, folder: Path) -> None:
    """In the shape that every surface shows."""
    document = run("check", "tollhouse.yaml", "--json").json
    assert set(document) == {"tools", "problems", "file", "agents"}
    (clerk,) = document["agents"]
    assert (clerk["name"], clerk["limits"]["wall_s"], clerk["limits"]["cost"]) == ("clerk", 1800.0, "0.5")
    assert clerk["approvals"] == {"pay": {"quorum": 2, "approvers": ["ada", "bob"], "expires_s": 7200.0}}
    assert [tool["name"] for tool in document["tools"]] == ["look", "pay"]


def test_check_tells_every_mistake_by_line_and_ends_with_1(run: Run, folder: Path) -> None:
    """With the remedy below it; as JSON with line and column as numbers."""
    change(folder, "tools: [pay, look]", "tools: [pay, lok]\n    tols: 1")
    done = run("check")
    assert done.exit_code == 1
    assert "tollhouse.yaml:10:18: There is no tool 'lok'." in done.stderr
    assert "remedy: Did you mean 'look'? Tools: look, pay." in done.stderr
    assert "tollhouse.yaml:11:5: agents.clerk has no field 'tols'." in done.stderr
    assert "2 problems." in done.stdout
    (problem,) = run("check", "--json").json["problems"]
    assert (problem["code"], problem["file"]) == ("agent_file_invalid", "tollhouse.yaml")
    assert [(each["line"], each["column"]) for each in problem["mistakes"]] == [(10, 18), (11, 5)]


def test_check_shows_broken_modules_and_a_broken_file_at_once(run: Run, folder: Path) -> None:
    """Tools that could not be loaded are not said to be missing."""
    (folder / "my_shop.py").write_text("import no_such_module\n")
    change(folder, "wall: 30m", "wall: 30")
    change(folder, "description:", "descripton:")
    done = run("check", "--json")
    assert done.exit_code == 1
    assert [problem["code"] for problem in done.json["problems"]] == ["tools_not_loaded", "agent_file_invalid"]
    assert len(done.json["problems"][1]["mistakes"]) == 1


def test_check_of_tools_alone_looks_at_no_file(run: Run, folder: Path) -> None:
    """As it did before there were files."""
    (folder / "tollhouse.yaml").write_text("broken: [")
    done = run("check", "--tools", "my_shop:pay", "--json")
    assert (done.exit_code, set(done.json)) == (0, {"tools", "problems"})


def test_check_with_nothing_to_check_is_a_usage_error(run: Run, folder: Path) -> None:
    """Neither tools nor a file; and a file that is named must be there."""
    (folder / "tollhouse.yaml").unlink()
    assert run("check").exit_code == 2
    done = run("check", "agents.yaml", "--json")
    assert (done.exit_code, done.json["error"]["code"]) == (2, "usage")


def test_check_prints_the_schema_that_files_are_held_to(run: Run, folder: Path) -> None:
    """It is a JSON Schema, and editors can use it."""
    (folder / "tollhouse.yaml").unlink()
    done = run("check", "--schema")
    assert done.exit_code == 0
    jsonschema_rs.meta.validate(json.loads(done.stdout))
    assert set(done.json["properties"]) == {"version", "store", "tools", "endpoints", "scripts", "defaults", "agents"}


# -- check --production --------------------------------------------------------------------------------------------


def test_production_check_refuses_each_shortcut_with_its_code(run: Run, folder: Path) -> None:
    """On stderr with its remedy; exit code 1."""
    done = run("check", "--production", "--listen", "0.0.0.0:8080")
    assert done.exit_code == 1
    assert "clerk: The agent asks a model that says what a script says.  [scripted_model]" in done.stderr
    assert "[open_to_network]" in done.stderr
    assert "Not fit for production: 2 shortcuts." in done.stdout
    assert run("check").exit_code == 0


def test_production_check_passes_what_is_fit(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file, the tools and the ledger."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    change(folder, "scripted:play", "openai:gpt-5")
    done = run("check", "--production", "--json")
    assert (done.exit_code, done.json["production"]) == (0, {"fit": True, "shortcuts": []})
    assert "Fit for production." in run("check", "--production").stdout


def test_production_check_passes_nothing_that_is_wrong(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the file, or a ledger of the file that a later release upgraded: no shortcut, and not fit."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    change(folder, "scripted:play", "openai:gpt-5")
    assert run("db", "upgrade").exit_code == 0
    with closing(sqlite3.connect(folder / "ledger.db")) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE name IN ('schema_version', 'min_release_schema')")
        connection.commit()
    done = run("check", "--production", "--json")
    assert (done.exit_code, done.json["production"]["fit"]) == (1, False)
    assert run("check", "--production").stdout.endswith("\nNot fit for production.\n")
    (folder / "ledger.db").unlink()
    change(folder, "tools: [pay, look]", "tools: [pay, lok]")
    done = run("check", "--production")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "Not fit for production.")


def test_production_check_counts_keys_of_the_ledger(run: Run, folder: Path) -> None:
    """A key that is valid now protects the server."""
    change(folder, "scripted:play", "openai:gpt-5")
    listening = ("check", "--production", "--listen", "0.0.0.0:8080", "--json")
    assert run("db", "upgrade").exit_code == 0
    assert [found["code"] for found in run(*listening).json["production"]["shortcuts"]] == ["open_to_network"]
    assert run("keys", "create", "--principal", "ada", "--scope", "runs:read").exit_code == 0
    assert run(*listening).json["production"]["fit"] is True
    assert run(*listening, "--tenant", "other").json["production"]["fit"] is False


def test_production_check_opens_the_ledger_to_see_whether_it_is_durable(run: Run, folder: Path) -> None:
    """Its URL may say so, too."""
    change(folder, "ledger.db", "ledger.db?synchronous=off")
    done = run("check", "--production", "--json")
    codes = {found["code"] for found in done.json["production"]["shortcuts"]}
    assert codes == {"volatile_store", "scripted_model"} < set(REASONS)


@pytest.mark.parametrize("listen", ["8080", "host", "host:", ":x"])
def test_place_to_listen_has_host_and_port(run: Run, folder: Path, listen: str) -> None:
    """Anything else is a usage error."""
    assert run("check", "--production", "--listen", listen).exit_code == 2


# -- the other commands --------------------------------------------------------------------------------------------


def test_worker_takes_ledger_and_tools_from_the_file(run: Run, folder: Path) -> None:
    """And calls and db look at the same ledger."""
    done = run("worker", "--once", "--json")
    assert done.exit_code == 0, done
    assert (folder / "ledger.db").is_file()
    assert run("calls", "list", "--json").json == {"calls": [], "more": False}
    assert run("db", "check", "--json").json["store"] == "sqlite:///ledger.db"


def test_named_file_works_from_another_folder(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its paths are of its own folder, and its modules are found there."""
    change(folder, "my_shop.py", "my_shop")
    monkeypatch.chdir(folder.parent)
    assert run("check", "--file", "project/tollhouse.yaml").exit_code == 0
    assert run("worker", "--once", "--file", "project/tollhouse.yaml").exit_code == 0
    assert (folder / "ledger.db").is_file()
    assert run("calls", "list", "--file", "project/tollhouse.yaml").exit_code == 0
    assert run("calls", "show", "k", "--file", "project/tollhouse.yaml", "--json").json["error"]["code"] == (
        "unknown_call"
    )
    assert run("calls", "list").exit_code == 2


def test_flag_and_environment_outrank_the_file(run: Run, folder: Path, url: str) -> None:
    """A command that is told everything does not even read it."""
    assert run("worker", "--once", env={"TOLLHOUSE_STORE": url}).exit_code == 0
    assert Path(url.removeprefix("sqlite:///")).is_file()
    assert not (folder / "ledger.db").exists()
    (folder / "tollhouse.yaml").write_text("broken: [")
    assert run("worker", "--once", "--store", url, "--tools", "my_shop").exit_code == 0
    assert run("calls", "list", "--store", url).exit_code == 0


def test_command_does_not_work_with_a_file_that_is_wrong(run: Run, folder: Path) -> None:
    """It says where it is wrong, and creates nothing."""
    change(folder, "tools: [pay, look]", "tools: [pay, lok]")
    done = run("worker", "--once")
    assert done.exit_code == 1
    assert "tollhouse.yaml:10:18: There is no tool 'lok'." in done.stderr
    assert not (folder / "ledger.db").exists()
    change(folder, "version: 1", "version: 3")
    done = run("calls", "list", "--json")
    assert (done.exit_code, done.json["error"]["code"]) == (1, "agent_file_invalid")
    assert done.json["error"]["mistakes"][0]["line"] == 2


def test_file_without_a_store_names_no_ledger(run: Run, folder: Path) -> None:
    """The remedy says where one can be named."""
    change(folder, "store: sqlite:///ledger.db\n", "")
    done = run("worker", "--once", "--json")
    assert (done.exit_code, done.json["error"]["code"]) == (2, "usage")
    assert "tollhouse.yaml" in done.json["error"]["remedy"]
