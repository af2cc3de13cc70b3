"""`check` says what tools promise, and what is wrong with those that promise too much."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import shop
from tests.cli.conftest import Run

GOOD = '''
from tollhouse import destructive, external, read, tool

print("loading tools")

@tool(external())
def pay(cents: int) -> str:
    """Pay somebody."""
    return "paid"

@tool(read())
def look() -> int:
    """Look."""
    return 1

both = [pay, look]
by_name = {"pay": pay}
nothing = 5
'''


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
    """The current folder, with a module of tools in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_tools.py").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("my_tools", ["look", "pay"]),
        ("my_tools.py", ["look", "pay"]),
        ("./my_tools.py", ["look", "pay"]),
        ("my_tools:pay", ["pay"]),
        ("my_tools.py:both", ["look", "pay"]),
        ("my_tools.py:by_name", ["pay"]),
        ("my_tools.py,my_tools:pay", ["look", "pay"]),
    ],
)
def test_tools_are_found_by_module_path_and_name(run: Run, folder: Path, source: str, names: list[str]) -> None:
    """Each once, however often it is named; what modules print is not in the answer."""
    done = run("check", "--tools", source, "--json")
    assert done.exit_code == 0, done
    assert [tool["name"] for tool in done.json["tools"]] == names
    assert done.stderr == "loading tools\n"


def test_tools_may_be_repeated_and_come_from_the_environment(run: Run, folder: Path) -> None:
    """The flag outranks the variable."""
    (folder / "my_more.py").write_text(
        "from tollhouse import tool, write\n\n@tool(write())\ndef note(text: str) -> None:\n    'Note.'\n"
    )
    twice = run("check", "--tools", "my_tools:pay", "--tools", "my_more.py", "--json")
    assert [tool["name"] for tool in twice.json["tools"]] == ["note", "pay"]
    env = {"TOLLHOUSE_TOOLS": "my_tools:pay, my_more"}
    assert [tool["name"] for tool in run("check", "--json", env=env).json["tools"]] == ["note", "pay"]
    only = run("check", "--tools", "my_more", "--json", env=env)
    assert [tool["name"] for tool in only.json["tools"]] == ["note"]


def test_module_can_import_its_neighbours(run: Run, folder: Path) -> None:
    """As it can when it runs by itself."""
    inner = folder / "inner"
    inner.mkdir()
    (inner / "my_words.py").write_text("WORD = 'Say it.'\n")
    (inner / "my_speech.py").write_text(
        "from my_words import WORD\nfrom tollhouse import tool, write\n\n"
        "@tool(write(), description=WORD)\ndef say(text: str) -> None: ...\n"
    )
    done = run("check", "--tools", "inner/my_speech.py", "--json")
    assert done.json["tools"][0]["description"] == "Say it."


def test_each_tool_is_told_with_its_promise_and_cautions(run: Run) -> None:
    """All that its author declared, in words."""
    done = run("check", "--tools", shop.PATH)
    assert done.exit_code == 0
    for told in (
        "issue_credit  external  Credit an account.",
        "caution    absent_after_s is 0",
        "hooks      look-up, absence counts after 0 s; undone by issue_credit.compensate",
        "approval   2 people of ada, bob, eve, within 24 h",
        "dedup      by key, for 24 h less a margin of 5 min",
        "long work  may be accepted under a reference, then ends within 24 h",
        "attempts   at most 3 a round, 30 s each, 2 min together",
    ):
        assert told in done.stdout
    assert done.stdout.splitlines()[-1] == "7 tools, 6 cautions, 0 problems."


def test_json_has_contract_guarantee_and_schema(run: Run) -> None:
    """What a model sees is there, without injected parameters."""
    done = run("check", "--tools", f"{shop.PATH}:issue_credit", "--json")
    (tool,) = done.json["tools"]
    assert set(tool) == {"name", "description", "effect", "contract", "guarantee", "cautions", "json_schema"}
    assert tool["contract"]["max_attempts"] == 1
    assert tool["contract"]["dedup"] == {"kind": "none", "hours": None}
    assert set(tool["json_schema"]["properties"]) == {"account_id", "amount_cents"}
    assert tool["guarantee"] == shop.issue_credit.terms.guarantee


def test_contract_that_contradicts_itself_is_told_with_field_remedy_and_line(run: Run, folder: Path) -> None:
    """Not with a traceback."""
    (folder / "my_bad.py").write_text(
        "from tollhouse import external, tool\n\n@tool(external(max_attempts=3))\ndef pay(cents: int) -> None: ...\n"
    )
    done = run("check", "--tools", "my_bad.py")
    assert done.exit_code == 1
    assert "my_bad.py:3: max_attempts=3 would repeat the effect" in done.stderr
    assert "  remedy: Declare dedup.by_key(hours=...)" in done.stderr
    assert "  field:  max_attempts" in done.stderr
    assert "Traceback" not in done.stderr
    (problem,) = run("check", "--tools", "my_bad.py", "--json").json["problems"]
    assert (problem["source"], problem["code"], problem["field"]) == ("my_bad.py", "contract_error", "max_attempts")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import no_such_module\n", "my_bad.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("\nimport json\njson.loads('{')\n", "my_bad.py:3: JSONDecodeError"),
        ("def x(:\n", "my_bad.py:1: SyntaxError"),
        ("import sys\nsys.exit('no database')\n", "my_bad.py:2: SystemExit: no database"),
        ("raise ValueError('a\\nb')\n", "my_bad.py:1: ValueError: a b"),
        ("x = 1\n", "holds no tools"),
    ],
)
def test_module_that_cannot_be_imported_is_told_by_its_line(run: Run, folder: Path, text: str, cause: str) -> None:
    """The line in the user's file, not in a library it calls; exit code 1."""
    (folder / "my_bad.py").write_text(text)
    for source in ("my_bad.py", "my_bad"):
        done = run("check", "--tools", source)
        assert done.exit_code == 1
        assert cause in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("my_nothing", "There is no module my_nothing"),
        ("my_nothing.inner", "There is no module my_nothing.inner"),
        ("my_tools.inner", "There is no module my_tools.inner"),
        ("no/such/file.py", "There is no file no/such/file.py"),
        ("my_tools:refund", "my_tools has nothing named refund"),
        ("my_tools:nothing", "neither a tool nor a list of tools"),
    ],
)
def test_source_that_names_nothing_is_told(run: Run, folder: Path, source: str, cause: str) -> None:
    """With what to correct."""
    done = run("check", "--tools", source, "--json")
    assert done.exit_code == 1
    (problem,) = done.json["problems"]
    assert problem["code"] == "tools_not_loaded"
    assert cause in problem["cause"]


def test_all_problems_are_shown_in_one_run(run: Run, folder: Path) -> None:
    """The good tools beside them."""
    done = run("check", "--tools", "my_tools,my_nothing,missing.py", "--json")
    assert done.exit_code == 1
    assert len(done.json["tools"]) == 2
    assert [problem["source"] for problem in done.json["problems"]] == ["my_nothing", "missing.py"]


def test_two_tools_of_one_name_are_a_problem(run: Run, folder: Path) -> None:
    """No house could have both."""
    (folder / "my_copy.py").write_text(GOOD)
    done = run("check", "--tools", "my_tools,my_copy", "--json")
    assert done.exit_code == 1
    assert [problem["cause"] for problem in done.json["problems"]] == [
        "Two tools are named look.",
        "Two tools are named pay.",
    ]


@pytest.mark.parametrize("place", ["8080", "0.0.0.0:http", "0.0.0.0:65536"])
def test_place_that_nobody_can_listen_at_is_a_usage_error(run: Run, folder: Path, place: str) -> None:
    """As the server would say."""
    done = run("check", "--tools", "tests.cli.shop", "--production", "--listen", place)
    assert (done.exit_code, done.stdout) == (2, "")


def test_no_tools_named_is_a_usage_error(run: Run) -> None:
    """There is nothing to check."""
    done = run("check", "--json")
    assert done.exit_code == 2
    assert "TOLLHOUSE_TOOLS" in done.json["error"]["remedy"]


def test_other_commands_end_with_the_same_error(run: Run, folder: Path, url: str) -> None:
    """A worker with a broken module does not start."""
    (folder / "my_bad.py").write_text("import no_such_module\n")
    done = run("worker", "--once", "--tools", "my_bad.py", "--store", url, "--json")
    assert (done.exit_code, done.json["error"]["code"]) == (1, "tools_not_loaded")
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_with_a_store_its_schema_is_checked_too(run: Run, folder: Path, url: str) -> None:
    """One that is not there fails the check, one that works passes."""
    missing = run("check", "--tools", "my_tools", "--store", url, "--json")
    assert (missing.exit_code, missing.json["store"]["exists"]) == (1, False)
    assert run("db", "upgrade", "--store", url).exit_code == 0
    there = run("check", "--tools", "my_tools", "--store", url, "--json")
    assert (there.exit_code, there.json["store"]["usable"], there.json["store"]["exists"]) == (0, True, True)
    assert "works with this release" in run("check", "--tools", "my_tools", "--store", url).stdout
