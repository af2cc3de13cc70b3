"""A request at the gate: what was asked, checked as far as it can be without the store, and the row it would become."""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tollhouse.contract.terms import US, Effect
from tollhouse.contract.tool import Tool
from tollhouse.errors import InvalidArguments, InvalidKey, InvalidSetting, UnknownTool
from tollhouse.gate.core import Core
from tollhouse.ledger.digest import EncodedArguments, encode_arguments
from tollhouse.ledger.keys import check_key, wire_key
from tollhouse.ledger.record import CallRecord, Limits, State, replace
from tollhouse.ledger.store import RepeatCheck
from tollhouse.ledger.value import value_type

ARGUMENTS_LENGTH_MOST = 1024 * 1024
"""Arguments are shown to approvers, hashed and kept with the call; a body larger than this belongs elsewhere."""

NAME_LENGTH_MOST = 200
_LIMITS = ("max_attempts", "attempt_timeout_s", "deadline_s")


@value_type
class Options:
    """What a caller may say about one call besides tool, arguments and key. None: as the contract or the house says.

    ``scope`` and ``group``: where repeats are looked for, and which siblings are none. ``wait`` False: answer
    :class:`CallInFlight` at once where another caller's attempt is out. Limits tighten only.
    """

    by: str | None = None
    scope: str | None = None
    group: str | None = None
    wait: bool = True
    run_when_approved: bool | None = None
    max_attempts: int | None = None
    attempt_timeout_s: float | None = None
    deadline_s: float | None = None
    compensates: str | None = None
    """Set by the compensation service alone: the key of the call that this one undoes."""
    reason: str | None = None
    """Why it is asked for, kept in its first event; set by the compensation service alone."""

    @property
    def limited(self) -> bool:
        """Whether the caller set any limit of its own."""
        return (self.max_attempts, self.attempt_timeout_s, self.deadline_s) != (None, None, None)


@value_type
class Request:
    """A request after resolving and digesting. ``tool`` None: not here (any more), so only a replay can answer."""

    tool: Tool[Any] | None
    tool_name: str
    key: str
    key_given: bool
    arguments: EncodedArguments
    principal: str
    options: Options


def tool_name_of(tool: object) -> str:
    """The name of what a caller wants. Raises :class:`UnknownTool` for what is neither a tool nor a name."""
    name = tool.name if isinstance(tool, Tool) else tool
    if isinstance(name, str):
        return name
    raise UnknownTool(
        f"A {type(name).__name__} is neither a tool nor the name of one.",
        remedy="Decorate the function with @tool(...), pass it to Tollhouse.open(tools=[...]) and call that.",
    )


def principal_of(core: Core, options: Options) -> str:
    """Who asks. Raises :class:`InvalidSetting` for what is no name."""
    principal: Any = options.by if options.by is not None else core.principal
    if not _is_name(principal):
        raise InvalidSetting(f"by= must name who asks, in 1 to {NAME_LENGTH_MOST} characters of text.")
    return str(principal)


def _is_name(value: Any) -> bool:
    """Whether a text column of any store takes it: neither NUL nor a lone surrogate is text to both."""
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_LENGTH_MOST or "\0" in value:
        return False
    return value.isascii() or value.encode(errors="ignore").decode() == value


def request_of(core: Core, name: str, arguments: Mapping[str, Any], key: Any, options: Options) -> Request:
    """Resolve and digest. Raises, in this order: unencodable arguments, a bad key, a bad setting."""
    resolved = core.tools.get(name)
    encoded = encode_arguments(arguments)
    if len(encoded.text) > ARGUMENTS_LENGTH_MOST:
        raise InvalidArguments(
            f"The arguments take {len(encoded.text):,} characters, {ARGUMENTS_LENGTH_MOST:,} at most.",
            path="$",
            remedy="Pass large bodies by reference (a file, an object store), not as arguments.",
        )
    is_read = resolved is not None and resolved.effect is Effect.READ
    if key is None and is_read:
        checked = core.ids.mint_key()
    elif key is None:
        raise InvalidKey(
            f"A call of {name} needs a key: it may change something.",
            remedy="Give a key that names this one intended use, such as 'order-7:refund'.",
        )
    else:
        checked = check_key(key)
    _check_options(options)
    return Request(resolved, name, checked, key is not None, encoded, principal_of(core, options), options)


def new_record(core: Core, request: Request, tool: Tool[Any], now_us: int) -> CallRecord:
    """The row as it is before its first step."""
    options = request.options
    check = repeat_check(request, tool)
    return replace(
        _BLANK,
        tenant=core.tenant,
        key=request.key,
        wire_key=wire_key(core.tenant, request.key),
        tool=tool.name,
        effect=str(tool.effect),
        request_digest=request.arguments.digest,
        requested_by=request.principal,
        contract=tool.contract_text,
        limits=limits_of(core, tool, options),
        digest=request.arguments.digest,
        arguments=request.arguments.text,
        created_at_us=now_us,
        updated_at_us=now_us,
        scope=options.scope,
        group=options.group,
        repeat_slot=None if check is None else _slot(check),
        compensates=options.compensates,
        run_when_approved=bool(options.run_when_approved),
    )


_BLANK = CallRecord(
    tenant="",
    key="",
    wire_key="",
    tool="",
    effect="",
    request_digest="",
    requested_by="",
    contract="",
    limits=Limits(1, 0.0, 0.0),
    digest="",
    arguments="",
    state=State.READY,
    created_at_us=0,
    updated_at_us=0,
)
"""Where every new row begins: copying it costs half of setting each field anew."""


def repeat_check(request: Request, tool: Tool[Any]) -> RepeatCheck | None:
    """What commit 1 must look for: a twin in the scope. None for reads, without a scope, where repeats are allowed."""
    options, rule = request.options, tool.terms.on_repeat
    if options.scope is None or tool.effect is Effect.READ or rule.mode == "allow":
        return None
    within_us = None if rule.within_s is None else round(rule.within_s * US)
    return RepeatCheck(options.scope, tool.name, request.arguments.digest, options.group, within_us)


def _slot(check: RepeatCheck) -> str:
    """The place that concurrent twins compete for. Siblings of one group have a place each: they are no repeats."""
    return sha256(f"{check.scope}\n{check.tool}\n{check.digest}".encode()).hexdigest()[:32]


def limits_of(core: Core, tool: Tool[Any], options: Options) -> Limits:
    """The limits of this call. Raises :class:`InvalidSetting` where the caller would loosen the contract."""
    if not options.limited:
        return core.limits(tool.terms)
    asked = {name: getattr(options, name) for name in _LIMITS}
    for name, value in asked.items():
        promised = getattr(tool.terms, name)
        if value is not None and value > promised:
            raise InvalidSetting(f"{name}={value:g} is looser than the {promised:g} of {tool.name}'s contract.")
    return core.limits(tool.terms, asked)


def _check_options(options: Options) -> None:
    for name in _LIMITS if options.limited else ():
        value: Any = getattr(options, name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value <= 0 or (name == "max_attempts" and not isinstance(value, int)):
            raise InvalidSetting(f"{name}={value!r} is out of bounds.")
    for name in ("scope", "group"):
        text: Any = getattr(options, name)
        if text is not None and not _is_name(text):
            raise InvalidSetting(f"{name}= must be 1 to {NAME_LENGTH_MOST} characters of text.")
