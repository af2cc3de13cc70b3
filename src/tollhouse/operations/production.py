"""What a trial may do and a deployment may not: ``tollhouse check --production`` refuses it, ``serve`` can ask too.

Each rule is a function over what is about to be deployed that yields shortcuts; each shortcut has a code that stays.
Nothing is opened, called or fetched here. The docs' table is generated from :data:`REASONS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tollhouse.contract.terms import Effect
from tollhouse.contract.tool import Tool
from tollhouse.models.book import SCRIPTED
from tollhouse.models.provider import Endpoint
from tollhouse.runs.agents import Agent
from tollhouse.stores import without_password

Kind = Literal["store", "tool", "agent", "endpoint", "server"]


class Reason(NamedTuple):
    """What kind of thing it is about, why that is no more than a shortcut, and what to do instead."""

    kind: Kind
    meaning: str
    remedy: str


REASONS: Mapping[str, Reason] = {
    "no_store": Reason(
        "store",
        "No ledger is named, so one would be made wherever the process happens to start.",
        "Name it with store:, --store or TOLLHOUSE_STORE.",
    ),
    "volatile_store": Reason(
        "store",
        "The ledger may forget a departure after a power cut, and a forgotten effect is sent again.",
        "Use a ledger on a local disk with synchronous=FULL, or PostgreSQL with synchronous_commit on.",
    ),
    "password_in_file": Reason(
        "store",
        "The agents' file holds the password of the ledger, and files are copied and committed.",
        "Leave the password out of the file; set TOLLHOUSE_STORE, or use PGPASSFILE.",
    ),
    "store_without_tls": Reason(
        "store",
        "The ledger is on another host, and the connection may go there in clear or to an impostor.",
        "Add sslmode=verify-full to its URL.",
    ),
    "effect_without_evidence": Reason(
        "tool",
        "Nothing but a person can settle a doubt of this tool: it has neither dedup nor a look-up.",
        "Give it reconcile=, or dedup where the receiver recognises keys.",
    ),
    "absence_at_once": Reason(
        "tool",
        "A look-up that finds nothing counts at once, although a late request may still arrive.",
        "Give absent_after_s the time in which the receiver surely has what was sent.",
    ),
    "work_without_look_up": Reason(
        "tool",
        "The tool hands work over and cannot ask what became of it.",
        "Give it reconcile=, so that long work is looked up.",
    ),
    "destructive_unapproved": Reason(
        "tool",
        "The tool destroys, and nobody is asked before it does.",
        "Leave the contract's approval on, or list the tool under approvals of every agent that may call it.",
    ),
    "scripted_model": Reason(
        "agent",
        "The agent asks a model that says what a script says.",
        "Name a model of a provider.",
    ),
    "no_spending_limit": Reason(
        "agent",
        "The agent has no limit of cost or tokens, so a run that goes in circles spends on.",
        "Give it limits: cost or tokens, or both.",
    ),
    "fails_in_doubt": Reason(
        "agent",
        "The agent may cause effects, and a doubt ends its run while nobody is told to look at it.",
        "Use on_in_doubt: pause, or tell_model.",
    ),
    "endpoint_in_clear": Reason(
        "endpoint",
        "What the agent reads and says travels to another host without TLS.",
        "Use https:// in base_url.",
    ),
    "open_to_network": Reason(
        "server",
        "The server listens beyond this machine and no key protects it: whoever reaches it may call tools.",
        "Make a key with `tollhouse keys create`, or listen on 127.0.0.1.",
    ),
}
"""Every code there is. Codes are stable and never reused."""


class Shortcut(NamedTuple):
    """One thing that is refused. ``about``: the name of the tool, agent or endpoint, the store's URL, or the host."""

    code: str
    kind: Kind
    about: str
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is about to be deployed.

    ``store`` None: none is named. ``store_in_file``: the URL as the agents' file has it. ``store_is_volatile``: found
    so by opening it. ``host``: where the HTTP server will listen; None: there is none. ``has_keys``: whether a key that
    is valid now protects it.
    """

    store: str | None
    tools: Sequence[Tool[Any]] = ()
    agents: Mapping[str, Agent] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    store_in_file: str | None = None
    store_is_volatile: bool = False
    host: str | None = None
    has_keys: bool = False


def shortcuts(deployment: Deployment) -> list[Shortcut]:
    """Everything about the deployment that is fit for a trial only; empty when nothing is."""
    return [
        Shortcut(code, REASONS[code].kind, about, REASONS[code].meaning, REASONS[code].remedy)
        for rule in _RULES
        for code, about in rule(deployment)
    ]


Found = Iterator[tuple[str, str]]
"""Codes, each with what it is about."""


def _store(deployment: Deployment) -> Found:
    url = deployment.store
    if url is None:
        yield "no_store", "store"
        return
    shown = without_password(url)
    if deployment.store_is_volatile or _may_forget(url):
        yield "volatile_store", shown
    in_file = deployment.store_in_file
    if in_file is not None and without_password(in_file) != in_file:
        yield "password_in_file", without_password(in_file)
    if url.startswith("postgresql://") and not _is_protected(url):
        yield "store_without_tls", shown


def _may_forget(url: str) -> bool:
    location, _, query = url.partition("?")
    synchronous = dict(parse_qsl(query)).get("synchronous", "FULL").upper()
    return url.startswith("sqlite:") and (location.endswith(":memory:") or synchronous in ("OFF", "NORMAL"))


def _is_protected(url: str) -> bool:
    """Whether every host of the URL is this machine, or is spoken to with TLS and its certificate checked."""
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query))
    if parameters.get("sslmode") in ("verify-ca", "verify-full"):
        return True
    named = [_PORT.sub("", host) for host in parts.netloc.rpartition("@")[2].split(",")]
    named += parameters.get("host", "").split(",")
    return all(not host or host.startswith("/") or is_loopback(host) for host in named)


_PORT = re.compile(r":\d*$")


def is_loopback(host: str) -> bool:
    """Whether a host, as a URL or a listener names it, is this machine alone."""
    bare = host.strip("[]").lower()
    return bare in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", bare) is not None


def _tools(deployment: Deployment) -> Found:
    for tool in deployment.tools:
        terms = tool.terms
        if terms.effect is Effect.READ:
            continue
        if not terms.has_reconcile and not terms.dedup.allows_resend:
            yield "effect_without_evidence", tool.name
        if terms.has_reconcile and terms.absent_after_s == 0:
            yield "absence_at_once", tool.name
        if terms.accepts and not terms.has_reconcile:
            yield "work_without_look_up", tool.name
        if terms.effect is Effect.DESTRUCTIVE and terms.approval is None and not _is_asked(tool.name, deployment):
            yield "destructive_unapproved", tool.name


def _is_asked(tool: str, deployment: Deployment) -> bool:
    """Whether agents may call the tool and each of them asks people first."""
    users = [agent for agent in deployment.agents.values() if tool in agent.tools]
    return bool(users) and all(tool in agent.approvals for agent in users)


def _agents(deployment: Deployment) -> Found:
    effects = {tool.name for tool in deployment.tools if tool.effect is not Effect.READ}
    for agent in deployment.agents.values():
        asked = [agent.model, *agent.fallback, *([agent.verifier.model] if agent.verifier else [])]
        if any(model.partition(":")[0] == SCRIPTED for model in asked):
            yield "scripted_model", agent.name
        if agent.limits.cost is None and agent.limits.tokens is None:
            yield "no_spending_limit", agent.name
        if agent.on_in_doubt == "fail" and (agent.agents or effects & set(agent.tools)):
            yield "fails_in_doubt", agent.name


def _endpoints(deployment: Deployment) -> Found:
    for name, endpoint in deployment.endpoints.items():
        parts = urlsplit(endpoint.base_url or "")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            yield "endpoint_in_clear", name


def _server(deployment: Deployment) -> Found:
    if deployment.host is not None and not is_loopback(deployment.host) and not deployment.has_keys:
        yield "open_to_network", deployment.host or "every address"


_RULES: tuple[Callable[[Deployment], Iterable[tuple[str, str]]], ...] = (_store, _tools, _agents, _endpoints, _server)
