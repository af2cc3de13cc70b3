"""Agents' versions and catalogues of tools in the store: what a run refers to, and which version is the newest.

A version is kept once, under the digest of its text, and never changes. Publishing is a record of its own, so that
going back to an earlier version is a publication like any other. Called when a process opens an agents' file and by
``Runs`` at the start of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from tollhouse.contract.tool import Tool
from tollhouse.errors import UnknownAgent
from tollhouse.ledger.run_record import Definition, RunStore
from tollhouse.runs.agents import AGENT, CATALOGUE, Agent, agent_of
from tollhouse.runs.starting import NAME_CHARACTERS_MOST, is_text

PUBLISHED = "published"
"""The kind of the record that says which version of an agent is the newest."""
LEAST_PREFIX = 8
"""So many characters of a version stand for it where no other begins with them."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Tools as a run found them: JSON text and the SHA-256 of it."""

    digest: str
    text: str


def catalogue_of(tools: Iterable[Tool[Any]]) -> Catalogue:
    """The catalogue of the tools, by name: effect, contract version, description and JSON Schema of each."""
    listed = [
        {
            "name": tool.name,
            "effect": tool.effect.value,
            "version": tool.terms.version,
            "description": tool.description,
            "json_schema": tool.json_schema,
        }
        for tool in sorted(tools, key=lambda tool: tool.name)
    ]
    text = json.dumps(listed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Catalogue(_digest(text), text)


async def keep_catalogue(store: RunStore, tenant: str, tools: Iterable[Tool[Any]], now_us: int) -> str:
    """Keep the catalogue of the tools and return its digest; durable on return, the same tools again change nothing."""
    catalogue = catalogue_of(tools)
    await store.keep_definition(Definition(tenant, catalogue.digest, CATALOGUE, "tools", now_us, catalogue.text))
    return catalogue.digest


async def publish(store: RunStore, tenant: str, agents: Mapping[str, Agent], now_us: int) -> dict[str, str]:
    """Make these the newest versions of their agents; the version of each by its name. Durable on return.

    ``now_us``: the store's clock. What is the newest already is not published again; agents that are not among these
    stay as they are. Of two processes that publish at once the later one holds.
    """
    return {name: await _publish(store, tenant, agent, now_us) for name, agent in agents.items()}


async def agent_version(
    store: RunStore,
    tenant: str,
    name: str,
    version: str | None = None,
    known: Mapping[str, Agent] = MappingProxyType({}),
) -> Agent:
    """The agent as it was published. ``version`` None: the newest; else its digest or the beginning of it.

    ``known``: versions that were read before, by digest; they never change.

    Raises :class:`~tollhouse.errors.UnknownAgent`, with the names that are near.
    """
    if not is_text(name, NAME_CHARACTERS_MOST):
        raise await _unknown(store, tenant, name)
    if version is not None and not is_text(version, NAME_CHARACTERS_MOST):
        raise await _unknown_version(store, tenant, name, version)
    if version is None:
        newest = await _newest(store, tenant, name)
        if newest is None:
            raise await _unknown(store, tenant, name)
        version = json.loads(newest.body)["version"]
    if version in known and known[version].name == name:
        return known[version]
    kept = await store.definition(tenant, version)
    if kept is None:
        kept = await _beginning_with(store, tenant, name, version)
    if kept is None or (kept.kind, kept.name) != (AGENT, name):
        raise await _unknown_version(store, tenant, name, version)
    return agent_of(kept.body)


async def _publish(store: RunStore, tenant: str, agent: Agent, now_us: int) -> str:
    newest = await _newest(store, tenant, agent.name)
    if newest is not None:
        if json.loads(newest.body)["version"] == agent.version:
            return agent.version
        # Two publications never share a moment, and a clock that was set back does not hide the later one.
        now_us = max(now_us, newest.created_at_us + 1)
    await store.keep_definition(Definition(tenant, agent.version, AGENT, agent.name, now_us, agent.text))
    after = None if newest is None else newest.digest
    text = json.dumps({"agent": agent.name, "version": agent.version, "after": after}, sort_keys=True)
    await store.keep_definition(Definition(tenant, _digest(text), PUBLISHED, agent.name, now_us, text))
    return agent.version


async def _newest(store: RunStore, tenant: str, name: str) -> Definition | None:
    return next(iter(await store.definitions(tenant, PUBLISHED, name)), None)


async def _beginning_with(store: RunStore, tenant: str, name: str, prefix: str) -> Definition | None:
    """The one version that begins so; None where none does, or more than one."""
    if len(prefix) < LEAST_PREFIX:
        return None
    found = [kept for kept in await store.definitions(tenant, AGENT, name) if kept.digest.startswith(prefix)]
    return found[0] if len(found) == 1 else None


async def _unknown(store: RunStore, tenant: str, name: str) -> UnknownAgent:
    name, names = name[:100], sorted({kept.name for kept in await store.definitions(tenant, PUBLISHED)})
    near = get_close_matches(name, names, n=3)
    if near:
        return UnknownAgent(f"There is no agent {name!r}.", remedy=f"Did you mean {' or '.join(near)}?")
    return UnknownAgent(f"There is no agent {name!r}.", remedy=f"There are: {', '.join(names)}." if names else None)


async def _unknown_version(store: RunStore, tenant: str, name: str, version: str) -> UnknownAgent:
    kept = await store.definitions(tenant, AGENT, name)
    if not kept:
        return await _unknown(store, tenant, name)
    versions = ", ".join(each.digest[:12] for each in kept[:5])
    return UnknownAgent(
        f"The agent {name!r} has no version {version[:64]!r}, or more than one that begins so.",
        remedy=f"Name one of its versions in full, newest first: {versions}.",
    )


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
