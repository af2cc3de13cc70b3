"""One trial of a tool: its call, and what the receiver saw of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tollhouse.contract import terms
from tollhouse.contract.tool import Tool
from tollhouse.errors import TollhouseError
from tollhouse.gate.core import Core
from tollhouse.gate.view import RecordedCall
from tollhouse.house import Tollhouse
from tollhouse.testing.contract_tests.breaches import Breach
from tollhouse.testing.contract_tests.report import ScenarioResult
from tollhouse.testing.contract_tests.scenarios import Scenario
from tollhouse.testing.receiver import Effect, Receiver, SeenRequest

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
PROBE_KEY = "contract:probe"


class Trial:
    """A tool under test in one scenario. ``record`` and ``error`` are set by :meth:`call`."""

    def __init__(self, house: Tollhouse, tool: Tool[Any], receiver: Receiver, key: str) -> None:
        self.house, self.tool, self.receiver, self.key = house, tool, receiver, key
        self.core: Core = house._core
        self.collection: str | None = None
        self.record: RecordedCall | None = None
        self.error: TollhouseError | None = None
        self.probe_sends = 1
        """How many requests one attempt makes when all is well: a tool may need more than one."""
        self.probe_effects = 1

    async def learn_collection(self, arguments: Mapping[str, Any], keyed: bool | None) -> None:
        """One good call, to learn where and how often the tool sends; then the receiver forgets it.

        ``keyed``: whether the receiver recognises repeated keys from then on; None: as the tool's dedup says.
        """
        await self._settle(PROBE_KEY, arguments)
        seen = self.sends
        self.collection = seen[0].collection if seen else None
        self.probe_sends = max(1, sum(1 for request in seen if request.collection == self.collection))
        self.probe_effects = max(1, len(self.effects))
        self.receiver.reset()
        if self.collection is not None:
            wanted = self.tool.terms.dedup.kind == "by_key" if keyed is None else keyed
            self.receiver.mode(self.collection, keyed=wanted)

    async def call(self, arguments: Mapping[str, Any]) -> None:
        """The call of the scenario; whatever it ends in is recorded."""
        self.error = await self._settle(self.key, arguments)
        self.record = await self.house.get(self.key)

    async def _settle(self, key: str, arguments: Mapping[str, Any]) -> TollhouseError | None:
        try:
            await self.house.call(self.tool, arguments, key=key)
        except TollhouseError as error:
            if error.code != "call_held":
                return error
            await self.house.approve(key, by="contract-tests")
            return await self._settle(key, arguments)
        return None

    @property
    def is_read(self) -> bool:
        """Whether the tool is declared to change nothing."""
        return self.tool.effect is terms.Effect.READ

    # -- what the receiver saw ---------------------------------------------------------------------------

    @property
    def sends(self) -> list[SeenRequest]:
        """Requests that may change something."""
        return [request for request in self.receiver.requests() if request.method not in SAFE]

    @property
    def effects(self) -> list[Effect]:
        """What stands in the receiver's book."""
        return self.receiver.effects()

    def result(self, scenario: Scenario, breaches: tuple[Breach, ...]) -> ScenarioResult:
        """The scenario as it went."""
        record = self.record
        return ScenarioResult(
            scenario.name,
            scenario.sentence,
            "not run" if record is None else record.state.value,
            0 if record is None else len(record.attempts),
            len(self.sends),
            len(self.effects),
            breaches,
        )
