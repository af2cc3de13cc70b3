"""What stands before commit 1: who may see a tool, whether the arguments fit, what the gates say, and the secrets.

The gate plans each departure anew, of a new call and of one that is ready or in doubt: rules may have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tollhouse.contract.tool import Tool
from tollhouse.errors import UnknownTool
from tollhouse.gate.core import Core, failed, log
from tollhouse.gate.gates import Judgement, judge
from tollhouse.gate.request import Request
from tollhouse.gate.verdicts import Asked, Deny
from tollhouse.ledger.codec import from_tree, loads
from tollhouse.ledger.digest import EncodedArguments
from tollhouse.ledger.record import CallRecord


class Plan(NamedTuple):
    """A request that passed validation and was judged. ``secrets``: what the tool is granted, where all gates pass."""

    tool: Tool[Any]
    arguments: dict[str, Any]
    judgement: Judgement
    secrets: Mapping[str, str]


class Planner:
    """See the module's docstring. ``visible``: whether a principal may see a tool at all."""

    def __init__(self, core: Core, visible: Callable[[str, str], bool]) -> None:
        self._core, self._visible = core, visible

    def sees(self, principal: str, name: str) -> bool:
        """Whether this principal may see that tool; a check that fails shows nothing."""
        try:
            return self._visible(principal, name)
        except Exception as error:
            failed("visible_failed", error, tool=name[:80])
            return False

    def unknown(self, name: str, principal: str) -> UnknownTool:
        """The error that names what is known, as far as this principal may see it."""
        known = [known for known in self._core.tools.names() if self.sees(principal, known)]
        near = f" Known here: {', '.join(known[:10])}." if known else " No tools are registered here."
        return UnknownTool(f"No tool named {name[:80]!r} is registered.{near}")

    async def new(self, request: Request, tool: Tool[Any]) -> Plan:
        """The plan of a call that nothing is recorded of. Raises :class:`InvalidArguments`."""
        plan = await self._plan(request, tool, request.arguments, request.options.scope, 0)
        passes = plan.judgement.denial is None and not plan.judgement.holds
        return self._with_secrets(plan) if passes else plan

    async def recorded(self, request: Request, tool: Tool[Any], record: CallRecord) -> Plan:
        """The plan of a recorded call: what would run is the stored arguments. Raises :class:`InvalidArguments`."""
        stored = EncodedArguments(loads(record.arguments), record.arguments, record.digest)
        plan = await self._plan(request, tool, stored, record.scope, len(record.attempts))
        return self._with_secrets(plan) if plan.judgement.denial is None else plan

    async def _plan(
        self, request: Request, tool: Tool[Any], encoded: EncodedArguments, scope: str | None, sent_before: int
    ) -> Plan:
        values = tool.schema.validate(from_tree(encoded.tree), key=request.key)
        asked = Asked(
            self._core.tenant, request.principal, tool, request.key, values, scope, encoded.digest, sent_before
        )
        judgement = await judge(self._core, asked)
        if self._core.shows_arguments:  # and a gate may have changed what it was shown, which nobody approved
            values = tool.schema.validate(from_tree(encoded.tree), key=request.key)
        return Plan(tool, values, judgement, {})

    def _with_secrets(self, plan: Plan) -> Plan:
        """Secrets are resolved before commit 1: a call whose secrets cannot be had does not depart."""
        try:
            secrets = dict(self._core.secrets(plan.tool.name))
            if not all(isinstance(value, str) for value in secrets.values()):
                raise TypeError("a secret is text")  # anything else would pass unseen into what is kept of an error
            return plan._replace(secrets=secrets)
        except Exception as error:
            log.error("secrets_failed", extra={"tool": plan.tool.name, "error_type": type(error).__name__})
            denial = Deny(f"they could not be resolved ({type(error).__name__})", code="secrets_failed", stored=False)
            return plan._replace(judgement=Judgement("secrets", denial, said=plan.judgement.said))
