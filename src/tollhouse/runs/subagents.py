"""Agents as tools: a call whose effect is a run of another agent.

The child is started under the call's own key, so the same call never starts two. The call is *accepted* under the
child's id and settled when the child ends: by the child's driver, or by the look-up here if that died in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tollhouse.contract.answers import Accepted, Answer, Rejected, did_not_happen, happened, unknown
from tollhouse.contract.context import CallContext
from tollhouse.contract.dedup import by_key
from tollhouse.contract.effects import write
from tollhouse.contract.tool import Tool, tool
from tollhouse.errors import InvalidSetting, RunConflict, RunNotAllowed, UnknownAgent
from tollhouse.runs.agents import Agent
from tollhouse.runs.calls import agent_tool_name
from tollhouse.runs.ending import end_of
from tollhouse.runs.service import Runs

CHILD_S_MOST = 30 * 86_400.0
"""How long a child may take before its call counts as in doubt."""


def agent_tools(agents: Iterable[Agent], runs: Callable[[], Runs]) -> list[Tool[Any]]:
    """A tool for each agent that another one may run. ``runs``: the service, known once the house is open."""
    known = {agent.name: agent for agent in agents}
    used = {name for agent in known.values() for name in agent.agents}
    return [_tool_of(known[name], runs) for name in sorted(used) if name in known]


def _tool_of(agent: Agent, runs: Callable[[], Runs]) -> Tool[Any]:
    async def find(call: Any) -> Answer:
        started = await runs().store.run_of_start(runs().tenant, call.key)
        if started is None or started.parent_key != call.key:
            return did_not_happen("no run was started under this key", job_status="never_queued")
        if not started.finished:
            return unknown("the run goes on")
        return happened(await end_of(runs().store, started), reference=started.id)

    async def start(input: str, ctx: CallContext) -> Any:
        parent_run_id = ctx.key.rpartition(":")[0] or None
        try:
            child = await runs().start(
                agent.name, input, by=ctx.principal, key=ctx.key, parent_key=ctx.key, parent_run_id=parent_run_id
            )
        except (UnknownAgent, InvalidSetting, RunConflict, RunNotAllowed) as refused:
            raise Rejected(refused.cause) from refused
        await runs().end_with_parent(child.record)
        raise Accepted(child.id)

    declare = tool(
        write(dedup=by_key(hours=CHILD_S_MOST / 3600), accepts=True, job_deadline_s=CHILD_S_MOST),
        name=agent_tool_name(agent.name),
        description=agent.description or f"Have the agent {agent.name} do a task, and wait for its answer.",
        reconcile=find,
    )
    return declare(start)
