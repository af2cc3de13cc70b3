"""What people decide about a call: resolve, approve, deny, edit, retry, cancel, overturn, uphold.

Every verb names who decides, is compare-and-set on the version shown, and leaves its trace whether it won or not. The
rules themselves are in ``ledger/decisions.py`` and ``ledger/approvals.py``; here they meet the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from tollhouse.contract.answers import Answer
from tollhouse.errors import (
    DecisionConflict,
    InvalidArguments,
    InvalidSetting,
    NotAllowed,
    NotEntitled,
    TollhouseError,
    UnknownCall,
)
from tollhouse.gate.approval import question
from tollhouse.gate.core import Core
from tollhouse.gate.results import keep
from tollhouse.gate.verdicts import Hold
from tollhouse.ledger import decisions
from tollhouse.ledger.approvals import approval_for
from tollhouse.ledger.change import Change
from tollhouse.ledger.codec import from_tree, loads
from tollhouse.ledger.decisions import Finding
from tollhouse.ledger.digest import encode_arguments
from tollhouse.ledger.ids import Prefix
from tollhouse.ledger.keys import check_key
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import Approval, CallRecord, State
from tollhouse.ledger.store import Blob
from tollhouse.ledger.transact import Stale, commit, transact

NAME_LENGTH_MOST = 200
REASON_LENGTH_MOST = 4000
_ANY: TypeAdapter[Any] = TypeAdapter(Any)
_ENTITLED = frozenset({"requester", "entitled", "voted"})


class Decision(NamedTuple):
    """One decision as it was given. ``version`` None: on the call as it stands now."""

    verb: str
    by: str
    reason: str | None
    version: int | None


class People:
    """See the module's docstring. Every method returns the record as it stands after the decision, durably."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def resolve(
        self, key: str, answer: Answer, *, reason: str, by: str, force: bool = False, version: int | None = None
    ) -> CallRecord:
        """Settle a doubt by name. ``force`` also sets aside an owner that still has it out."""
        given: Any = answer
        if not isinstance(given, Answer) or given.finding == "unknown":
            raise InvalidSetting(
                "A resolution says happened(value) or did_not_happen(evidence).",
                remedy="Use tollhouse.happened or tollhouse.did_not_happen.",
            )
        decision = named_decision("resolve", by, reason, version)
        record = await self._shown(key, decision)
        tool = self._core.tools.get(record.tool)
        kept = keep(answer.value, tool.schema.result if tool else _ANY) if answer.finding == "happened" else None
        finding = Finding(
            id=self._core.ids.new(Prefix.DECISION),
            finding=answer.finding,
            via="person",
            began_us=self._core.clock.now_us(),
            by=by,
            reason=decision.reason,
            evidence=None if answer.evidence is None else str(answer.evidence)[:1000],
            reference=answer.reference,
            result=kept.stored if kept else None,
            job_status=answer.job_status,
        )

        def step(current: CallRecord) -> Change:
            now_us = self._core.clock.now_us()
            if force and current.state is State.DEPARTED:
                forced = decisions.force(current, by, reason, now_us)
                return forced.then(lambda doubt: decisions.settle(doubt, finding, now_us, force=True))
            return decisions.settle(current, finding, now_us, force=force)

        return await self._decide(record, decision, step, kept.blobs if kept else ())

    async def approve(
        self, key: str, *, by: str, reason: str | None = None, version: int | None = None, digest: str | None = None
    ) -> CallRecord:
        """One person's yes, never the requester's."""
        decision = named_decision("approve", by, reason, version, reason_needed=False)
        return await self._now(
            key, decision, lambda r, now: decisions.approve(r, by, now, digest=digest, reason=reason)
        )

    async def deny(self, key: str, *, by: str, reason: str, version: int | None = None) -> CallRecord:
        """One person's no."""
        decision = named_decision("deny", by, reason, version)
        return await self._now(key, decision, lambda r, now: decisions.deny(r, by, reason, now))

    async def edit(
        self, key: str, arguments: Mapping[str, Any], *, by: str, reason: str | None = None, version: int | None = None
    ) -> CallRecord:
        """Replace the arguments of a held call; they must fit the tool's schema where the tool is here."""
        decision = named_decision("edit", by, reason, version, reason_needed=False)
        record = await self._shown(key, decision)
        encoded = encode_arguments(arguments)
        tool = self._core.tools.get(record.tool)
        if tool is not None:
            try:
                tool.schema.validate(from_tree(encoded.tree), key=key)
            except InvalidArguments as invalid:
                raise InvalidArguments(invalid.cause, path=invalid.path, key=key) from None
        difference = _difference(loads(record.arguments), encoded.tree)
        return await self._decide(
            record,
            decision,
            lambda r: decisions.edit(
                r, by, encoded.text, encoded.digest, difference, self._core.clock.now_us(), reason
            ),
        )

    async def retry(self, key: str, *, by: str, reason: str, version: int | None = None) -> CallRecord:
        """A new round of a failed or refused call, with approvals asked anew."""
        decision = named_decision("retry", by, reason, version)
        return await self._now(
            key, decision, lambda r, now: decisions.retry(r, by, reason, self._approval_of_round(r, now), now)
        )

    async def cancel(self, key: str, *, by: str, reason: str | None = None) -> CallRecord:
        """Refuse what has not left; forbid resends of what has. Right at any version, so decided anew on change."""
        decision = named_decision("cancel", by, reason, None, reason_needed=False)
        record = await self._shown(key, decision)
        if record.state in (State.DEPARTED, State.ACCEPTED, State.IN_DOUBT) and record.cancel_asked:
            return record
        write_id = self._core.ids.new(Prefix.DECISION)
        try:
            before, after = await transact(
                self._core.store,
                record,
                lambda r: decisions.cancel(r, by, self._core.clock.now_us(), reason),
                write_id,
            )
        except Forbidden as forbidden:
            raise NotAllowed(f"{key} cannot be cancelled: {forbidden.cause}", key=key) from None
        for attempt in after.attempts:
            if attempt.id in self._core.running:
                self._core.running[attempt.id].stop("The call was cancelled before this attempt could send.")
        self._core.tell_of(before, after)
        return after

    async def overturn(
        self, key: str, *, by: str, reason: str, evidence: Any = None, version: int | None = None
    ) -> CallRecord:
        """Reverse a settlement, on what is recorded against it."""
        decision = named_decision("overturn", by, reason, version)
        settlement_id = self._core.ids.new(Prefix.DECISION)
        return await self._now(
            key,
            decision,
            lambda r, now: decisions.overturn(r, by, reason, settlement_id, now, evidence=evidence or reason),
        )

    async def uphold(self, key: str, *, by: str, reason: str, version: int | None = None) -> CallRecord:
        """Confirm a settlement, in view of what contradicts it."""
        decision = named_decision("uphold", by, reason, version)
        settlement_id = self._core.ids.new(Prefix.DECISION)
        return await self._now(key, decision, lambda r, now: decisions.uphold(r, by, reason, settlement_id, now))

    # -- common ------------------------------------------------------------------------------------------

    async def _now(self, key: str, decision: Decision, step: Callable[[CallRecord, int], Change]) -> CallRecord:
        record = await self._shown(key, decision)
        return await self._decide(record, decision, lambda r: step(r, self._core.clock.now_us()))

    async def _shown(self, key: str, decision: Decision) -> CallRecord:
        """The call, if it still is as it was shown to the person."""
        record = await self._core.store.get(self._core.tenant, check_key(key))
        if record is None:
            raise UnknownCall(f"No call is recorded under {key}.", key=key)
        if decision.version is not None and decision.version != record.version:
            raise await self._lost(record, decision)
        return record

    async def _decide(
        self,
        record: CallRecord,
        decision: Decision,
        step: Callable[[CallRecord], Change],
        blobs: tuple[Blob, ...] = (),
    ) -> CallRecord:
        """Compare-and-set. A look-up noted meanwhile changes nothing of what was decided on, so that is no conflict."""
        while True:
            try:
                change = step(record)
            except Forbidden as forbidden:
                raise await self._forbidden(record, decision, forbidden) from None
            try:
                after = await commit(self._core.store, change, self._core.ids.new(Prefix.DECISION), blobs=blobs)
            except Stale as stale:
                now = stale.record
                if decision.version is not None or now is None or not _alike(record, now):
                    raise await self._lost(now or record, decision) from None
                record = now
            else:
                self._core.tell_of(record, after)
                return after

    async def _lost(self, record: CallRecord, decision: Decision) -> TollhouseError:
        """Somebody was faster: their decision stands, this try is history."""
        await self._note(record, decision, "the call had changed")
        return DecisionConflict(f"{record.key} changed since it was shown: {_who_decided(record)}.", key=record.key)

    async def _forbidden(self, record: CallRecord, decision: Decision, forbidden: Forbidden) -> TollhouseError:
        await self._note(record, decision, forbidden.cause)
        if forbidden.guard in _ENTITLED:
            return NotEntitled(forbidden.cause, key=record.key)
        settled = bool(record.settlements)
        if decision.verb == "resolve" and forbidden.guard == "table" and settled:
            return DecisionConflict(f"{record.key} is settled already: {_who_decided(record)}.", key=record.key)
        remedy = _REMEDIES.get(forbidden.guard)
        return NotAllowed(
            f"{decision.verb} is not possible for {record.key}: {forbidden.cause}", key=record.key, remedy=remedy
        )

    async def _note(self, record: CallRecord, decision: Decision, why: str) -> None:
        """History holds every try. A note that cannot be written must not hide the answer."""
        try:
            await transact(
                self._core.store,
                record,
                lambda r: decisions.tried(r, decision.verb, decision.by, why, self._core.clock.now_us()),
                self._core.ids.new(Prefix.DECISION),
            )
        except (TollhouseError, Stale):
            self._core.tell("decision_not_noted", key=record.key, verb=decision.verb)

    def _approval_of_round(self, record: CallRecord, now_us: int) -> Approval | None:
        """What a new round must wait for: what the contract asks today, or asked when the call was made."""
        tool = self._core.tools.get(record.tool)
        if tool is not None:
            terms = tool.terms.approval
            return (
                None
                if terms is None
                else question([Hold("the contract requires approval", terms)], tool, record.digest, now_us)
            )
        then = record.terms
        if then.approval is None:
            return None
        asked = then.approval
        reason = "the contract required approval"
        return approval_for(reason, asked.quorum, asked.expires_s, asked.approvers, record.digest, then.version, now_us)


def named_decision(verb: str, by: Any, reason: Any, version: int | None, *, reason_needed: bool = True) -> Decision:
    """A decision has a name under it, and mostly a reason."""
    if not isinstance(by, str) or not by.strip() or len(by) > NAME_LENGTH_MOST:
        raise NotEntitled(f"{verb} needs the name of who decides.", remedy="Pass by='name'.")
    if reason_needed and (not isinstance(reason, str) or not reason.strip()):
        raise InvalidSetting(f"{verb} needs a reason.", remedy="Pass reason='...': it stays on the record.")
    if reason is not None and (not isinstance(reason, str) or len(reason) > REASON_LENGTH_MOST):
        raise InvalidSetting(f"The reason is no text of at most {REASON_LENGTH_MOST} characters.")
    return Decision(verb, by, reason, version)


def _alike(before: CallRecord, after: CallRecord) -> bool:
    """Whether nothing but notes came between: look-ups that settled nothing, tries that lost."""
    notes = ("version", "updated_at_us", "due_at_us", "looks", "head_seq", "head_hash")
    return replace(after, **{name: getattr(before, name) for name in notes}) == before


def _who_decided(record: CallRecord) -> str:
    """The last decision in words: who, and what."""
    if not record.settlements:
        return f"it is now {record.state.value}"
    last = record.settlements[-1]
    what = (last.finding or last.kind).replace("_", " ")
    return f"{last.by} decided {what!r}" + (f" ({last.reason})" if last.reason else "")


def _difference(before: Any, after: Any) -> dict[str, Any]:
    """Top-level arguments that an edit changes: old and new."""
    names = sorted({*before, *after})
    missing = object()
    return {
        name: {"old": before.get(name), "new": after.get(name)}
        for name in names
        if before.get(name, missing) != after.get(name, missing)
    }


_REMEDIES = {
    "force": "Wait until it has ended, or pass force=True: then that attempt is set aside.",
    "digest": "Look at the call again and decide on what it says now.",
    "D": "Overturn or uphold the contradiction first.",
    "evidence": "Reconcile it, so that the tool's look-up is on the record, or wait for the late reply.",
}
