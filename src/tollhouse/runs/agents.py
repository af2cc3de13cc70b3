"""An agent as runs see it: an immutable version, kept in the store under the digest of its JSON.

``tollhouse.yaml`` is read into these by ``runs/agent_files.py``; the API shows them; a run records the digest it ran.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal

OnInDoubt = Literal["pause", "tell_model", "fail"]
OnToolError = Literal["tell_model", "fail"]

AGENT = "agent"
"""The kind of an agent's version among the store's definitions."""
CATALOGUE = "tools"
"""The kind of a catalogue of tools: names, contract versions and schemas, as a run found them at its start."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run stops and says so. None: no limit.

    ``turns``: model answers, 1 to 10,000. ``calls``: tool calls. ``tokens``: input and output together, of all
    attempts. ``cost``: US dollars of model requests whose price is known. Both count what children spent once their
    calls are settled, and a child has no more than is left at its start. ``wall_s``: seconds since the run was started,
    pauses included.
    """

    turns: int = 25
    calls: int | None = 200
    tokens: int | None = None
    cost: Decimal | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class AgentApproval:
    """What people must agree to beyond the tool's own contract. ``approvers`` None: anybody but the requester."""

    quorum: int = 1
    approvers: tuple[str, ...] | None = None
    expires_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Verifier:
    """A second look at the final answer: it passes it or says what is wrong, ``rounds`` times at most."""

    model: str
    instructions: str
    rounds: int = 1


class _Digested:
    """A place for the digest of an agent, which every start asks for and no comparison looks at."""

    __slots__ = ("_version",)
    _version: str


@dataclass(frozen=True, slots=True)
class Agent(_Digested):
    """One version of an agent.

    ``model``: ``provider:name`` as ``models`` understands it; ``fallback``: asked in order when it does not answer.
    ``tools``: names allowed, nothing else. ``agents``: other agents it may run. ``on_in_doubt``: what a call in doubt
    means to a run, see the glossary. ``on_tool_error``: whether a call that failed is told to the model or ends the
    run. ``output_schema`` None: free text; else its answer must follow that JSON Schema, repaired ``output_repairs``
    times at most. ``questions``: it may ask a person. ``timers``: it may wait. ``approvals``: by tool name.
    """

    name: str
    model: str
    instructions: str = ""
    description: str = ""
    fallback: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    limits: Limits = Limits()
    on_in_doubt: OnInDoubt = "pause"
    on_tool_error: OnToolError = "tell_model"
    output_schema: Mapping[str, Any] | None = None
    output_repairs: int = 2
    verifier: Verifier | None = None
    approvals: Mapping[str, AgentApproval] = field(default_factory=dict)
    questions: bool = False
    timers: bool = False
    question_expires_s: float = 86_400.0
    model_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The version as JSON text: canonical, so that equal versions have equal digests."""
        return json.dumps(_plain(asdict(self)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def version(self) -> str:
        """SHA-256 of :attr:`text`, hexadecimal."""
        try:
            return self._version
        except AttributeError:
            object.__setattr__(self, "_version", sha256(self.text.encode()).hexdigest())
            return self._version


def agent_of(text: str) -> Agent:
    """The version that :attr:`Agent.text` wrote."""
    kept = json.loads(text)
    limits = kept.pop("limits")
    limits["cost"] = None if limits["cost"] is None else Decimal(limits["cost"])
    verifier, approvals = kept.pop("verifier"), kept.pop("approvals")
    for name in ("fallback", "tools", "agents"):
        kept[name] = tuple(kept[name])
    return Agent(
        **kept,
        limits=Limits(**limits),
        verifier=None if verifier is None else Verifier(**verifier),
        approvals={name: _approval_of(each) for name, each in approvals.items()},
    )


def _approval_of(kept: dict[str, Any]) -> AgentApproval:
    approvers = kept["approvers"]
    return AgentApproval(kept["quorum"], None if approvers is None else tuple(approvers), kept["expires_s"])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return format(value, "f") if isinstance(value, Decimal) else value


def agent_as_json(agent: Agent) -> dict[str, Any]:
    """An agent as every JSON surface shows it: its version, and all that the version is made of."""
    return {"name": agent.name, "version": agent.version, **json.loads(agent.text)}
