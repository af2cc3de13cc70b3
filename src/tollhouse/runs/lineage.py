"""Reruns, and what their lineage did already: no effect of an earlier run of the same origin is repeated unseen."""

from __future__ import annotations

from typing import Any

from tollhouse.contract.terms import ApprovalTerms, Effect
from tollhouse.gate.verdicts import ABSTAIN, PASS, Asked, Deny, Hold, Verdict
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.record import CallRecord, State
from tollhouse.ledger.run_record import RunRecord
from tollhouse.ledger.store import Query
from tollhouse.runs.agents import AGENT, Agent, agent_of
from tollhouse.runs.body import body_of
from tollhouse.runs.journal import JournalStore
from tollhouse.runs.states import RunState

LINEAGE_MOST = 50
"""How many reruns of reruns are looked through for twins."""
CALLS_MOST = 1000
"""How many calls of one tool in one run."""

_MAY_HAVE_HAPPENED = (State.SUCCEEDED, State.IN_DOUBT, State.DEPARTED, State.ACCEPTED)
_RUN = f"{Prefix.RUN}_"


async def twins(store: JournalStore, run: RunRecord, tool: str, digest: str) -> list[CallRecord]:
    """Calls of the runs that this one reruns, with that tool and those arguments, that may have taken effect."""
    found: list[CallRecord] = []
    source, depth = run.source_run_id, 0
    while source is not None and depth < LINEAGE_MOST:
        page = await store.find(run.tenant, Query(scope=source, tool=tool, limit=CALLS_MOST))
        found += [
            call for call in page if digest in (call.request_digest, call.digest) and call.state in _MAY_HAVE_HAPPENED
        ]
        earlier = await store.run(run.tenant, source)
        source, depth = (None if earlier is None else earlier.source_run_id), depth + 1
    return found


class RunCheck:
    """The gate of runs: what an agent's file wants people to agree to, and effects that a rerun would repeat.

    Nothing of a cancelled run departs any more, whoever was about to send it.
    """

    name = "run"

    def __init__(self, store: Any) -> None:
        self._store: JournalStore = store
        self._agents: dict[tuple[str, str], Agent] = {}

    def check(self, asked: Asked) -> Any:
        """Passes at once what belongs to no run."""
        return self._of_run(asked) if asked.scope is not None and asked.scope.startswith(_RUN) else ABSTAIN

    async def _of_run(self, asked: Asked) -> Verdict:
        run = await self._store.run(asked.tenant, asked.scope or "")
        if run is None:
            return PASS
        if run.state == RunState.CANCELLED:
            return Deny(f"its run {run.id} was cancelled", code="run_cancelled")
        agent = await self._agent(run)
        if agent is not None and (wanted := agent.approvals.get(asked.tool.name)) is not None:
            terms = ApprovalTerms(wanted.quorum, wanted.expires_s, wanted.approvers)
            return Hold(f"the agent {agent.name} needs approval for it", terms)
        if run.source_run_id is None or asked.tool.effect is Effect.READ or body_of(run).effects == "repeat":
            return PASS
        repeated = next(iter(await twins(self._store, run, asked.tool.name, asked.digest)), None)
        return PASS if repeated is None else Hold(f"a rerun would repeat {repeated.key}, which is {repeated.state}")

    async def _agent(self, run: RunRecord) -> Agent | None:
        known = (run.tenant, run.agent_version)
        if known not in self._agents:
            kept = await self._store.definition(*known)
            if kept is None or kept.kind != AGENT:
                return None
            self._agents[known] = agent_of(kept.body)
        return self._agents[known]
