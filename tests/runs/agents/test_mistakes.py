"""A file that is wrong is refused as a whole, with everything that is wrong in it, by line and column."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runs.agents.files import only, right, written, wrong
from tollhouse.errors import AgentFileInvalid, ExtraMissing
from tollhouse.runs import agent_schema
from tollhouse.runs.agent_files import read_file
from tollhouse.runs.yaml_reader import MAX_MISTAKES

AGENT = "version: 1\nagents:\n  clerk:\n    model: openai:x\n"
"""A file to which fields of an agent are added, from line 5 on."""


@pytest.mark.parametrize(
    ("added", "place", "cause", "remedy"),
    [
        ("    tolls: [pay]", (5, 5), "agents.clerk has no field 'tolls'.", "Did you mean 'tools'? There are: model"),
        ("    tools: [pay, lok]", (5, 18), "There is no tool 'lok'.", "Did you mean 'look'? Tools: look, pay, refund."),
        ("    tools: pay", (5, 12), "agents.clerk.tools is text, not a list.", "The tools it may call"),
        ("    tools: [pay, pay]", (5, 12), "agents.clerk.tools names something twice.", "The tools it may"),
        ("    tools:", (5, 11), "agents.clerk.tools is empty, not a list.", "The tools it may call"),
        ("    agents: [clark]", (5, 14), "There is no agent 'clark'.", "Did you mean 'clerk'?"),
        ("    agents: [clerk]", (5, 14), "clerk would run itself: clerk → clerk.", "Break the circle."),
        ("    on_in_doubt: puase", (5, 18), "is 'puase', which is none of pause, tell_model, fail. Did you", "What a"),
        ("    limits: {turns: 0}", (5, 21), "agents.clerk.limits.turns is less than 1.", "Answers of the model: 1 to"),
        ("    limits: {turns: 10001}", (5, 21), "limits.turns is more than 10,000.", "1 to 10,000"),
        ("    limits: {turns: null}", (5, 21), "turns is empty, not a whole number.", "Answers"),
        ("    limits: {turns: 2.5}", (5, 21), "turns is the number 2.5, not a whole number.", "Answers"),
        ("    limits: {cost: 0}", (5, 20), "agents.clerk.limits.cost is not more than 0.", "more than 0"),
        ("    limits: {cost: '0.00'}", (5, 20), "A cost of 0 lets no run begin.", "more than 0"),
        ("    limits: {cost: '1,5'}", (5, 20), "limits.cost is not written as it must be.", "US dollars"),
        ("    limits: {wall: 30 minutes}", (5, 20), "limits.wall is not written as it must be.", "`30m`"),
        ("    limits: {wall: 400d}", (5, 20), "limits.wall is 34560000 s.", "1 second to 365 days"),
        ("    limits: {wal: 3s}", (5, 14), "agents.clerk.limits has no field 'wal'.", "Did you mean 'wall'?"),
        ("    model_settings: {temprature: 1}", (5, 22), "has no field 'temprature'.", "Did you mean 'temperature'?"),
        ("    model_settings: {max_tokens: 0}", (5, 34), "max_tokens is less than 1.", "longest answer"),
        ("    timers: yes", (5, 13), "agents.clerk.timers is text, not true or false.", "It may wait"),
        ("    questions: {expires: 0s}", (5, 26), "questions.expires is 0 s.", "1 second"),
        ("    approvals: {pay: true}", (5, 22), "clerk may not use 'pay', so nobody can", "Tools of clerk: none."),
        ("    output: {type: strin}", (5, 13), "The output is no JSON Schema: ", "draft 2020-12"),
        ("    output: {$ref: 'http://127.0.0.1:9/x'}", (5, 13), "http://127.0.0.1:9/x is not part of the file", "2020"),
        ("    output: {pattern: '('}", (5, 13), "The output is no JSON Schema: ", "draft 2020-12"),
        ("    output_repairs: 11", (5, 21), "output_repairs is more than 10.", "0 to 10"),
        ("    verifier: {model: 'openai:x'}", (5, 5), "agents.clerk.verifier has no instructions.", "makes an answer"),
        ("    fallback: [gpt]", (5, 16), "agents.clerk.fallback[0] is not written as it must be.", "`provider:name`"),
        ("    fallback: ['opnai:x']", (5, 16), "There is no provider 'opnai'.", "Did you mean 'openai'?"),
        ("    fallback: ['scripted:x']", (5, 16), "There is no script 'x'.", "Scripts of this file: none."),
        ("    instructions_file: no.md", (5, 24), "cannot be read: No such file", "UTF-8 text file"),
        ('    instructions_file: "a\\0b"', (5, 24), "instructions_file is not written as it must be.", "text file"),
        ("    instructions_file: ../no.md", (5, 24), "outside of the file's folder", "or below it"),
        ("    instructions_file: /etc/hostname", (5, 24), "outside of the file's folder", "or below it"),
        ("    instructions_file: tollhouse.yaml\n    instructions: x", (5, 24), "given twice", "Keep one"),
    ],
)  # fmt: skip
def test_mistake_of_an_agent_is_told_at_its_place(
    tmp_path: Path, added: str, place: tuple[int, int], cause: str, remedy: str
) -> None:
    """Line and column of the very value, the cause in words, and what to write instead."""
    mistake = only(tmp_path, AGENT + added)
    assert (mistake.line, mistake.column) == place
    assert cause in mistake.cause
    assert remedy in mistake.remedy
    assert mistake.path.startswith("agents.clerk")


def test_what_is_no_mapping_is_told_where_the_format_is(tmp_path: Path) -> None:
    """What a file of agents is in general is no remedy."""
    mistake = only(tmp_path, "refunds, and nothing else")
    assert mistake.cause == "The file is text, not a mapping of names to values."
    assert mistake.remedy == "See `tollhouse check --schema`."


def test_what_is_missing_is_told_with_what_it_is(tmp_path: Path) -> None:
    """Not with what the part of the file is that lacks it."""
    mistake = only(tmp_path, "agents:\n  clerk: {model: 'openai:x'}\n")
    assert (mistake.cause, mistake.remedy) == ("The file has no version.", "The version of this format: 1.")


@pytest.mark.parametrize(
    ("text", "place", "cause"),
    [
        ("", (1, 1), "The file is empty."),
        ("# nothing\n", (1, 1), "The file is empty."),
        ("version: 2", (1, 10), "version is 2, which this release does not read."),
        ("agents: {}", (1, 1), "The file has no version."),
        ("- version: 1", (1, 1), "The file is a list, not a mapping of names to values."),
        ("version: 1\nagent: {}", (2, 1), "The file has no field 'agent'."),
        ("version: 1\nstore: mysql://h/d", (2, 8), "store is not written as it must be."),
        ("version: 1\nagents: {clerk: {}}", (2, 10), "clerk has no model."),
        ("version: 1\nagents: {clerk: }", (2, 16), "agents.clerk is empty, not a mapping"),
        ("version: 1\nagents: {'a b': {model: 'openai:x'}}", (2, 10), "'a b' is no name for one of agents."),
        ("version: 1\nagents: {a: {b: {}}}", (2, 14), "agents.a has no field 'b'."),
        ("version: 1\nscripts: {play: [{sey: x}]}", (2, 17), "'sey'"),
        ("version: 1\nendpoints: {scripted: {}}", (2, 13), "'scripted' is no name for one of endpoints."),
        ("version: 1\nendpoints: {a: {base_url: 'https://me:pw@h/'}}", (2, 27), "base_url is not written"),
        ("version: 1\nendpoints: {a: {base_url: 'http://[x'}}", (2, 27), "The base_url is no URL."),
        ("version: 1\nendpoints: {a: {api_key: sk-1}}", (2, 17), "endpoints.a has no field 'api_key'."),
        ("version: 1\ndefaults: {model: 'nobody:x'}\nagents: {a: {}, b: {}}", (2, 19), "no provider 'nobody'"),
        ("version: 1\ndefaults: {tools: [pay]}", (2, 12), "defaults has no field 'tools'."),
    ],
)  # fmt: skip
def test_mistake_of_the_file_is_told_at_its_place(
    tmp_path: Path, text: str, place: tuple[int, int], cause: str
) -> None:
    """A mistake in a default is told once, where it stands."""
    mistakes = [mistake for mistake in wrong(tmp_path, text) if "has no model" not in mistake.cause or "model" in cause]
    (mistake,) = mistakes
    assert (mistake.line, mistake.column) == place
    assert cause in mistake.cause


def test_all_mistakes_are_told_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    """Wrong fields do not hide what is wrong beside them, and make nothing else seem wrong."""
    text = (
        "version: 1\nstor: x\nagents:\n  a:\n    model: nobody:x\n    on_in_doubt: maybe\n    tools: [pay, 7]\n"
        "    approvals: {pay: {quorum: 2, approvers: [ada]}, look: true}\n    agents: [b]\n"
        "  b: {model: 7, agents: [a, c]}\n"
    )
    told = [(mistake.line, mistake.cause) for mistake in wrong(tmp_path, text)]
    assert told == [
        (2, "The file has no field 'stor'."),
        (5, "There is no provider 'nobody'."),
        (6, "agents.a.on_in_doubt is 'maybe', which is none of pause, tell_model, fail."),
        (7, "agents.a.tools[1] is the number 7, not text."),
        (8, "2 must agree, but only 1 may."),
        (9, "a would run itself: a → b → a."),
        (10, "agents.b.model is the number 7, not text."),
        (10, "b would run itself: b → a → b."),
        (10, "There is no agent 'c'."),
    ]


def test_error_is_that_of_its_first_mistake(tmp_path: Path) -> None:
    """It says where, how many more there are, and carries all of them."""
    path = written(tmp_path, "version: 1\nagents:\n  a: {}\n  b: {}\n")
    with pytest.raises(AgentFileInvalid) as refused:
        read_file(path)
    error = refused.value
    assert error.cause == f"{path}:3:3: a has no model. (1 more in this file.)"
    assert (error.line, error.column, error.path, error.sent) == (3, 3, "agents.a", "no")
    assert error.remedy == error.mistakes[0].remedy
    assert [mistake.line for mistake in error.mistakes] == [3, 4]


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Without a line, since it has none; a folder is no file either."""
    for path in (tmp_path / "no.yaml", tmp_path):
        with pytest.raises(AgentFileInvalid) as refused:
            read_file(path)
        assert (refused.value.line, refused.value.mistakes) == (None, ())


@pytest.mark.parametrize(
    ("field", "tool"), [("questions", "ask_person"), ("timers", "wait"), ("agents: [b]", "agent_b")]
)
def test_tool_cannot_have_the_name_of_what_a_run_adds(tmp_path: Path, field: str, tool: str) -> None:
    """The model could not tell them apart; without the addition the name is free."""
    given = field if ":" in field else f"{field}: true"
    text = f"version: 1\nagents: {{a: {{model: 'openai:x', tools: [{tool}]@}}, b: {{model: 'openai:x'}}}}"
    assert repr(tool) in only(tmp_path, text.replace("@", f", {given}"), tools=[tool]).cause
    assert right(tmp_path, text.replace("@", ""), tools=[tool]).agents["a"].tools == (tool,)


def test_approval_cannot_be_taken_away(tmp_path: Path) -> None:
    """A setting may tighten a contract, never loosen it."""
    mistake = only(tmp_path, AGENT + "    tools: [pay]\n    approvals: {pay: false}")
    assert "cannot be false" in mistake.cause
    assert (mistake.line, mistake.column) == (6, 22)


def test_tools_are_taken_on_trust_where_none_are_known(tmp_path: Path) -> None:
    """A command that needs the store only loads no module."""
    assert right(tmp_path, AGENT + "    tools: [anything]", tools=None).agents["clerk"].tools == ("anything",)


def test_models_may_be_judged_by_another_rule(tmp_path: Path) -> None:
    """Of endpoints and scripts of the file nobody else is asked."""
    text = "version: 1\nscripts: {s: [{say: x}]}\nendpoints: {e: {}}\nagents: {a: {model: '@'}}"
    asked: list[str] = []

    def judge(name: str) -> str | None:
        asked.append(name)
        return "Not that one." if name == "openai:old" else None

    for model in ("openai:new", "scripted:s", "e:any"):
        read_file(written(tmp_path, text.replace("@", model)), known_model=judge)
    with pytest.raises(AgentFileInvalid, match="Not that one"):
        read_file(written(tmp_path, text.replace("@", "openai:old")), known_model=judge)
    assert asked == ["openai:new", "openai:old"]


@pytest.mark.parametrize("bad", [b"x" * 300_000, b"\xff\xfe"])
def test_instructions_that_are_no_text_or_too_long_are_refused(tmp_path: Path, bad: bytes) -> None:
    """They would be sent with every request."""
    (tmp_path / "told.md").write_bytes(bad)
    assert only(tmp_path, AGENT + "    instructions_file: told.md").line == 5


def test_instructions_do_not_leave_the_folder_through_a_link(tmp_path: Path) -> None:
    """What a link points to counts."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "told.md").symlink_to(tmp_path / "secret")
    assert "outside" in only(folder, AGENT + "    instructions_file: told.md").cause


@pytest.mark.parametrize("package", ["ruamel.yaml", "jsonschema_rs"])
def test_missing_package_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """The base install reads no files, and says what to install."""
    agent_schema._validator.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraMissing, match=r"tollhouse\[server\]"):
        read_file(written(tmp_path, AGENT))


@pytest.mark.parametrize(
    "many", ["\n".join(f"k{number}: 1" for number in range(5_000)), "agents: [" + "*a, " * 5_000 + "]"]
)
def test_of_very_many_mistakes_the_first_are_told(tmp_path: Path, many: str) -> None:
    """Nobody reads thousands, and a pipeline's log should not hold them."""
    mistakes = wrong(tmp_path, f"version: 1\n{many}")
    assert len(mistakes) == MAX_MISTAKES
    assert mistakes[0].line == 2


def test_large_file_is_read(tmp_path: Path) -> None:
    """A thousand agents are no reason to refuse one."""
    agents = "".join(f"  a{number}: {{model: 'openai:x', agents: [a{number + 1}]}}\n" for number in range(999))
    text = f"version: 1\nagents:\n{agents}  a999: {{model: 'openai:x'}}\n"
    assert len(right(tmp_path, text).agents) == 1_000
    assert "agents is longer than 1,000." in only(tmp_path, text + "  more: {model: 'openai:x'}").cause
