"""What a person can do about a call as it stands, with the exact commands. Called by ``calls show``.

Nothing is decided here: each step is tried on a copy of the record by the rule that would decide it, and offered where
the rule lets it pass.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tollhouse.cli.options import DEFAULT_FILE, PRINCIPAL_ENV, STORE_ENV, TENANT_ENV, TOOLS_ENV
from tollhouse.ledger import decisions
from tollhouse.ledger.decisions import Finding
from tollhouse.ledger.guards import guard_r
from tollhouse.ledger.keys import DEFAULT_TENANT
from tollhouse.ledger.lifecycle import Forbidden
from tollhouse.ledger.record import CallRecord, State
from tollhouse.stores import without_password

SOMEBODY = "NAME"
_WHY = "WHY"


class Step(NamedTuple):
    """Something to do: what it means, and the command that does it."""

    meaning: str
    command: str


class Place(NamedTuple):
    """Where the call is, as far as a command must say it: what the environment says need not be repeated.

    ``store`` None: the agents' file names it. ``file`` None: there is none.
    """

    store: str | None
    tenant: str
    file: str | None = None

    @property
    def options(self) -> list[str]:
        """The options that name the place. A URL with a password is not shown."""
        named = [] if self.file in (None, DEFAULT_FILE) else ["--file", self.file]
        if self.store is not None and os.environ.get(STORE_ENV) != self.store:
            secret = without_password(self.store) != self.store
            named += ["--store", f"${STORE_ENV}" if secret else self.store]
        if self.tenant != os.environ.get(TENANT_ENV, DEFAULT_TENANT):
            named += ["--tenant", self.tenant]
        return named

    @property
    def tail(self) -> str:
        """The same as a shell reads it, to stand after a command."""
        return "".join(f" {word if word == f'${STORE_ENV}' else shlex.quote(word)}" for word in self.options)


def place_of(store: str | None, tenant: str, file: str | None) -> Place:
    """The place that the options of a command named. Nothing is read: a file that is broken since is still its name."""
    named = DEFAULT_FILE if file is None and store is None else file
    return Place(store, tenant, None if named is None else str(Path(named)))


def next_steps(record: CallRecord, now_us: int, place: Place) -> list[Step]:
    """All that may be done, the most likely first. Empty when there is nothing left to do."""
    steps = (_about_contradiction, _about_doubt, _about_approval, _about_the_end)
    commands = _Commands(record, place)
    return [step for about in steps for step in about(record, now_us, commands)]


def waits_for(record: CallRecord, now_us: int) -> str | None:
    """What happens without anybody's decision; None where nothing does."""
    if record.state is State.READY:
        return "It is sent when it is called again with the same key" + (
            ", or by a worker that has the tool." if record.run_when_approved else "."
        )
    if record.state is State.DEPARTED:
        return "Its owner has it out and will say; if the owner is lost, it becomes in_doubt by itself."
    if record.state in (State.IN_DOUBT, State.ACCEPTED) and (record.terms.has_reconcile or _resendable(record, now_us)):
        return "A worker that has the tool asks about it on a schedule (`tollhouse worker --tools …`)."
    return None


class _Commands:
    """Writes commands about one call. Each is bound to the version that was shown."""

    def __init__(self, record: CallRecord, place: Place) -> None:
        self._record, self._place = record, place

    def decision(self, verb: str, *options: str, by: str = SOMEBODY, versioned: bool = True) -> str:
        named = [] if os.environ.get(PRINCIPAL_ENV) and by == SOMEBODY else ["--by", by]
        version = ["--version", str(self._record.version)] if versioned else []
        return self._written(verb, *options, *named, *version)

    def with_tools(self, verb: str, *options: str) -> str:
        tools = [] if os.environ.get(TOOLS_ENV) or self._place.file else ["--tools", "MODULE"]
        return self._written(verb, *options, *tools)

    def undo(self) -> str:
        named = [] if os.environ.get(PRINCIPAL_ENV) else ["--by", SOMEBODY]
        return self.with_tools("compensate", "--reason", _WHY, *named)

    def _written(self, verb: str, *options: str) -> str:
        words = ["tollhouse", "calls", verb, self._record.key, *options]
        return shlex.join(words) + self._place.tail


def _passes(step: Callable[[], object]) -> bool:
    try:
        step()
    except Forbidden:
        return False
    return True


def _about_contradiction(record: CallRecord, now_us: int, commands: _Commands) -> Iterator[Step]:
    if record.contradicted and _passes(lambda: decisions.uphold(record, SOMEBODY, _WHY, "d", now_us)):
        yield Step("confirm what is settled", commands.decision("uphold", "--reason", _WHY))
    disputed = record.contradicted or bool(record.settlements)
    if disputed and _passes(lambda: decisions.overturn(record, SOMEBODY, _WHY, "d", now_us, evidence=_WHY)):
        to = "failed" if record.state is State.SUCCEEDED else "succeeded"
        yield Step(f"reverse what is settled, to {to}", commands.decision("overturn", "--reason", _WHY))


def _about_doubt(record: CallRecord, now_us: int, commands: _Commands) -> Iterator[Step]:
    ways = ["ask the tool now"] if record.terms.has_reconcile else []
    ways += ["send it again with the same key"] if _resendable(record, now_us) else []
    if record.state in (State.IN_DOUBT, State.ACCEPTED) and ways:
        yield Step(" and ".join(ways), commands.with_tools("reconcile"))
    for finding, option, meaning in (
        (decisions.HAPPENED, "--happened", "say that it happened (add --value JSON, --reference ID)"),
        (decisions.DID_NOT_HAPPEN, "--did-not-happen", "say that it did not happen (add --evidence TEXT)"),
    ):
        force = _force_needed(record, finding, now_us)
        if force is not None:
            options = [option, *(["--force"] if force else []), "--reason", _WHY]
            set_aside = "; sets aside the attempt that is out" if force else ""
            yield Step(f"{meaning}{set_aside}", commands.decision("resolve", *options))


def _resendable(record: CallRecord, now_us: int) -> bool:
    return record.state is State.IN_DOUBT and _passes(lambda: guard_r(record, record.terms, now_us))


def _force_needed(record: CallRecord, finding: str, now_us: int) -> bool | None:
    """Whether a person's word needs force now; None where it is not wanted at all."""
    said = Finding(id="d", finding=finding, via="person", began_us=now_us, by=SOMEBODY, reason=_WHY)

    def settle(*, force: bool) -> None:
        doubt = record
        if force and record.state is State.DEPARTED:
            doubt = decisions.force(record, SOMEBODY, _WHY, now_us).record
        decisions.settle(doubt, said, now_us, force=force)

    if _passes(lambda: settle(force=False)):
        return False
    return True if _passes(lambda: settle(force=True)) else None


def _about_approval(record: CallRecord, now_us: int, commands: _Commands) -> Iterator[Step]:
    who = _approver(record)
    if _passes(lambda: decisions.approve(record, who, now_us)):
        yield Step("let it go", commands.decision("approve", by=who))
    if _passes(lambda: decisions.edit(record, who, record.arguments, record.digest, {}, now_us)):
        yield Step("change what it would do", commands.decision("edit", "--arguments", "JSON", by=who))
    if _passes(lambda: decisions.deny(record, who, _WHY, now_us)):
        yield Step("refuse it", commands.decision("deny", "--reason", _WHY, by=who))


def _approver(record: CallRecord) -> str:
    """Somebody who may still vote: a name where the contract names people."""
    approval = record.approval
    if approval is None or approval.approvers is None:
        return SOMEBODY
    voted = {vote.by for vote in approval.votes} | {record.requested_by}
    return next((name for name in approval.approvers if name not in voted), SOMEBODY)


def _about_the_end(record: CallRecord, now_us: int, commands: _Commands) -> Iterator[Step]:
    if _passes(lambda: decisions.retry(record, SOMEBODY, _WHY, None, now_us)):
        yield Step("open a new round, which may send it again", commands.decision("retry", "--reason", _WHY))
    if record.terms.compensate is not None and _passes(lambda: decisions.may_compensate(record, now_us)):
        yield Step(f"undo it ({record.terms.compensate})", commands.undo())
    if record.state in (State.HELD, State.READY):
        yield Step("withdraw it", commands.decision("cancel", versioned=False))
    elif _resendable(record, now_us) or (record.state is State.DEPARTED and not record.cancel_asked):
        yield Step("forbid that it is sent again", commands.decision("cancel", versioned=False))
