"""Versions of agents are kept in the store for ever, and the newest is the one that was published last."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from tollhouse import external, read, tool
from tollhouse.errors import UnknownAgent
from tollhouse.ledger.run_record import RunStore
from tollhouse.runs.agents import AGENT, CATALOGUE, Agent, agent_of
from tollhouse.runs.registry import agent_version, catalogue_of, keep_catalogue, publish
from tollhouse.stores import open_store

TENANT = "shop"
FIRST = Agent("clerk", "openai:x", instructions="Be brief.")
SECOND = replace(FIRST, instructions="Be kind.")


@pytest.fixture
async def store(house_store_url: str) -> AsyncIterator[RunStore]:
    """A store of each kind."""
    opened = await open_store(house_store_url)
    yield cast(RunStore, opened)
    await opened.close()


async def test_newest_version_is_the_one_published_last(store: RunStore) -> None:
    """Also when it is an earlier one again, and when the clock was set back in between."""
    assert await publish(store, TENANT, {"clerk": FIRST}, 1_000) == {"clerk": FIRST.version}
    assert await agent_version(store, TENANT, "clerk") == FIRST
    await publish(store, TENANT, {"clerk": SECOND}, 2_000)
    assert await agent_version(store, TENANT, "clerk") == SECOND
    await publish(store, TENANT, {"clerk": FIRST}, 500)
    assert await agent_version(store, TENANT, "clerk") == FIRST
    await publish(store, TENANT, {"clerk": SECOND}, 600)
    assert await agent_version(store, TENANT, "clerk") == SECOND
    assert len(await store.definitions(TENANT, AGENT, "clerk")) == 2


async def test_publishing_the_same_again_changes_nothing(store: RunStore) -> None:
    """Every start of every process does it."""
    await publish(store, TENANT, {"clerk": FIRST}, 1_000)
    before = await store.definitions(TENANT, "published")
    await publish(store, TENANT, {"clerk": FIRST}, 9_000)
    assert await store.definitions(TENANT, "published") == before
    assert [kept.created_at_us for kept in await store.definitions(TENANT, AGENT)] == [1_000]


async def test_earlier_versions_stay_readable_in_full_or_by_their_beginning(store: RunStore) -> None:
    """A run goes on with the version that it recorded."""
    await publish(store, TENANT, {"clerk": FIRST}, 1_000)
    await publish(store, TENANT, {"clerk": SECOND}, 2_000)
    assert await agent_version(store, TENANT, "clerk", FIRST.version) == FIRST
    assert await agent_version(store, TENANT, "clerk", FIRST.version[:12]) == FIRST


async def test_agent_or_version_that_is_not_there_is_told_with_what_is(store: RunStore) -> None:
    """Near names first; a version of another agent is none of this one."""
    with pytest.raises(UnknownAgent) as nothing:
        await agent_version(store, TENANT, "clerk")
    assert nothing.value.remedy == UnknownAgent.default_remedy
    helper = Agent("helper", "openai:x")
    await publish(store, TENANT, {"clerk": FIRST, "helper": helper}, 1_000)
    for name, remedy in (("clrk", "Did you mean clerk?"), ("zzz", "There are: clerk, helper.")):
        with pytest.raises(UnknownAgent) as unknown:
            await agent_version(store, TENANT, name)
        assert unknown.value.remedy == remedy
    for version in ("0" * 64, helper.version, FIRST.version[:7], ""):
        with pytest.raises(UnknownAgent, match="no version") as unknown:
            await agent_version(store, TENANT, "clerk", version)
        assert FIRST.version[:12] in unknown.value.remedy
    with pytest.raises(UnknownAgent, match="no agent 'clrk'"):
        await agent_version(store, TENANT, "clrk", FIRST.version)


async def test_agents_of_another_tenant_are_not_seen(store: RunStore) -> None:
    """Neither by name nor by version."""
    await publish(store, "other", {"clerk": FIRST}, 1_000)
    for version in (None, FIRST.version):
        with pytest.raises(UnknownAgent):
            await agent_version(store, TENANT, "clerk", version)


async def test_catalogue_is_kept_under_the_digest_of_its_text(store: RunStore) -> None:
    """Names, effects, contract versions and schemas, in the order of names, whatever order they came in."""
    digest = await keep_catalogue(store, TENANT, [pay, look], 1_000)
    assert digest == await keep_catalogue(store, TENANT, [look, pay], 2_000)
    kept = await store.definition(TENANT, digest)
    assert kept is not None
    assert (kept.kind, kept.created_at_us, kept.body) == (CATALOGUE, 1_000, catalogue_of([look, pay]).text)
    listed: list[dict[str, Any]] = json.loads(kept.body)
    assert [(each["name"], each["effect"], each["version"]) for each in listed] == [
        ("look", "read", look.terms.version),
        ("pay", "external", pay.terms.version),
    ]
    assert listed[1]["json_schema"] == pay.json_schema


def test_catalogue_changes_with_every_promise() -> None:
    """Its digest tells two sets of tools apart."""
    stricter = tool(external(attempt_timeout_s=5), name="pay")(pay.fn)
    assert len({catalogue_of(tools).digest for tools in ([], [pay], [look], [pay, look], [stricter])}) == 5


@tool(external())
def pay(cents: int) -> str:
    """Pay."""
    return "paid"


@tool(read())
def look() -> int:
    """Look."""
    return 1


def test_a_changed_agent_has_a_version_of_its_own() -> None:
    """Also where the one that it was made of had said its version before."""
    before = FIRST.version
    changed = replace(FIRST, instructions="Otherwise.")
    assert changed.version != before == FIRST.version == agent_of(FIRST.text).version
    assert agent_of(changed.text) == changed
