"""What an agents' file says is what an agent is."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from tests.runs.agents.files import right, written
from tollhouse.models.provider import Endpoint
from tollhouse.models.wire import SETTINGS
from tollhouse.runs.agent_files import read_file, seconds
from tollhouse.runs.agent_schema import schema
from tollhouse.runs.agents import Agent, AgentApproval, Limits, Verifier, agent_of

WHOLE = """
version: 1
store: sqlite:///ledger.db
tools: [shop, ./more.py:pay, other.tools:look]
endpoints:
  local: {base_url: "http://127.0.0.1:11434/v1", api_key_env: LOCAL_KEY, native_schema: false}
scripts:
  play: [{say: Hello.}]
defaults:
  model: openai:gpt-5
  limits: {turns: 9, cost: 0.25, tokens: 1_000}
  on_in_doubt: tell_model
  model_settings: {temperature: 0}
agents:
  clerk:
    fallback: [anthropic:claude, local:qwen]
    description: Looks.
    instructions: |
      Be brief.
      Be kind.
    tools: [look, pay]
    agents: [helper]
    limits: {turns: 3, tokens: null, wall: 30m}
    on_tool_error: fail
    output: {type: object, properties: {answer: {type: string}}, required: [answer]}
    output_repairs: 4
    verifier: {model: "scripted:play", instructions: Is it kind?, rounds: 2}
    approvals:
      pay: {quorum: 2, approvers: [ada, bob], expires: 2h}
      look: true
    questions: {expires: 90s}
    timers: true
    model_settings: {max_tokens: 100}
  helper: {model: "local:qwen", on_in_doubt: pause, limits: {cost: "1.50", calls: 0}}
""".replace("1_000", "1000")


def test_every_field_of_a_file_arrives(tmp_path: Path) -> None:
    """With defaults where an agent says nothing, limits and model settings one by one."""
    file = right(tmp_path, WHOLE)
    assert file.agents["clerk"] == Agent(
        name="clerk",
        model="openai:gpt-5",
        instructions="Be brief.\nBe kind.\n",
        description="Looks.",
        fallback=("anthropic:claude", "local:qwen"),
        tools=("look", "pay"),
        agents=("helper",),
        limits=Limits(turns=3, calls=200, tokens=None, cost=Decimal("0.25"), wall_s=1800.0),
        on_in_doubt="tell_model",
        on_tool_error="fail",
        output_schema={"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
        output_repairs=4,
        verifier=Verifier("scripted:play", "Is it kind?", 2),
        approvals={"pay": AgentApproval(2, ("ada", "bob"), 7200.0), "look": AgentApproval()},
        questions=True,
        timers=True,
        question_expires_s=90.0,
        model_settings={"temperature": 0, "max_tokens": 100},
    )
    assert file.agents["helper"] == Agent(
        name="helper",
        model="local:qwen",
        limits=Limits(turns=9, calls=0, tokens=1000, cost=Decimal("1.50")),
        model_settings={"temperature": 0},
    )
    assert file.endpoints == {
        "local": Endpoint("http://127.0.0.1:11434/v1", api_key_env="LOCAL_KEY", native_schema=False)
    }
    assert (file.scripts, file.defaults["on_in_doubt"]) == ({"play": [{"say": "Hello."}]}, "tell_model")


def test_version_of_a_read_agent_survives_the_store(tmp_path: Path) -> None:
    """Its text gives back the very agent, and equal files give equal versions."""
    agent = right(tmp_path, WHOLE).agents["clerk"]
    assert agent_of(agent.text) == agent
    assert agent_of(agent.text).version == agent.version
    again = right(tmp_path, WHOLE.replace("tools: [look, pay]", "tools:\n    - look\n    - pay"))
    assert again.agents["clerk"].version == agent.version
    changed = right(tmp_path, WHOLE.replace("Be kind.", "Be kinder."))
    assert changed.agents["clerk"].version != agent.version


def test_fields_of_the_schema_are_the_fields_of_an_agent(tmp_path: Path) -> None:
    """None is published that nothing reads: each one changes the agent or its version."""
    published = set(schema()["$defs"]["agent"]["properties"])
    (tmp_path / "told.txt").write_text("Told.")
    plain = right(tmp_path, "version: 1\nagents: {a: {model: 'openai:x', tools: [pay]}, b: {model: 'openai:x'}}")
    given = {
        "model": "'openai:y'", "fallback": "['openai:z']", "description": "D", "instructions": "I",
        "instructions_file": "told.txt", "tools": "[look]", "agents": "[b]", "limits": "{turns: 1}",
        "on_in_doubt": "fail", "on_tool_error": "fail", "output": "{type: string}", "output_repairs": "1",
        "verifier": "{model: 'openai:y', instructions: I}", "approvals": "{pay: true}", "questions": "true",
        "timers": "true", "model_settings": "{seed: 1}",
    }  # fmt: skip
    assert set(given) == published
    for name, value in given.items():
        base = {"model": "'openai:x'", "tools": "[pay]", name: value}
        text = ", ".join(f"{key}: {value}" for key, value in base.items())
        file = right(tmp_path, f"version: 1\nagents: {{a: {{{text}}}, b: {{model: 'openai:x'}}}}")
        assert file.agents["a"].version != plain.agents["a"].version, name


def test_relative_paths_are_of_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is run; dotted modules and absolute paths stay as they are."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "told").mkdir()
    (inner / "told" / "clerk.md").write_text("\ufeffBe brief.", encoding="utf-8")
    text = WHOLE.replace("description: Looks.\n    instructions: |\n      Be brief.\n      Be kind.", "@")
    path = written(inner, text.replace("@", "instructions_file: told/clerk.md"))
    monkeypatch.chdir(tmp_path)
    file = read_file("inner/tollhouse.yaml")
    assert file.store == f"sqlite:///{inner / 'ledger.db'}"
    assert file.tools == ("shop", str(inner / "more.py:pay"), "other.tools:look")
    assert file.agents["clerk"].instructions == "Be brief."
    assert read_file(path).store == file.store
    monkeypatch.chdir(inner)
    assert read_file("tollhouse.yaml").store == "sqlite:///ledger.db"
    odd = tmp_path / "100% sure?"
    odd.mkdir()
    assert right(odd, "version: 1\nstore: sqlite:///a.db").store == (f"sqlite:///{tmp_path}/100%25%20sure%3F/a.db")
    for url in ("sqlite:////var/x.db", "sqlite:///:memory:", "postgresql://u@h/d"):
        written(inner, f"version: 1\nstore: {url!r}")
        assert read_file(path).store == url


def test_file_without_agents_names_tools_and_store_only(tmp_path: Path) -> None:
    """It is enough for a worker."""
    file = right(tmp_path, "version: 1\ntools: [shop]")
    assert (file.agents, file.tools, file.store) == ({}, ("shop",), None)


def test_scripts_may_be_files_beside_the_file(tmp_path: Path) -> None:
    """As `models` plays them."""
    (tmp_path / "play.yaml").write_text("- say: Hello.\n")
    text = "version: 1\nagents: {a: {model: 'scripted:play.yaml'}}"
    assert right(tmp_path, text).book().known("scripted:play.yaml")


def test_model_settings_are_those_that_models_take() -> None:
    """No other would be sent, so no other is published."""
    assert set(schema()["$defs"]["model_settings"]["properties"]) == SETTINGS


@pytest.mark.parametrize(
    ("written", "length_s"),
    [("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("7d", 604_800.0), (12, 12.0), (0.5, 0.5)],
)
def test_lengths_of_time_have_units(written: str | float, length_s: float) -> None:
    """A bare number is of seconds."""
    assert seconds(written) == length_s
