"""What a start of a run says, checked as far as it can be without the store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any

from tollhouse.errors import InvalidSetting, NotEntitled
from tollhouse.ledger.keys import check_key
from tollhouse.ledger.run_record import RunRecord
from tollhouse.models.port import AssistantMessage, Message, ToolMessage, message_as_json
from tollhouse.runs.agents import Agent, Limits
from tollhouse.runs.body import Effects

INPUT_CHARACTERS_MOST = 4 * 1024 * 1024
"""All messages of a start together. They are kept whole, and sent to a model with every request."""
THREAD_CHARACTERS_MOST = 200
NAME_CHARACTERS_MOST = 200
DRIVERS = ("local", "temporal")
EFFECTS: tuple[Effects, ...] = ("hold", "reuse", "repeat")

_WHOLE = {"turns": 10_000, "calls": 100_000, "tokens": 10**12}
WALL_S_MOST = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a run; see :meth:`tollhouse.runs.service.Runs.start` for what each means."""

    agent: str
    by: str
    messages: tuple[Message, ...]
    key: str | None = None
    thread: str | None = None
    driver: str = "local"
    agent_version: str | None = None
    """The version that it names, or the beginning of one; None: it takes what is the newest."""
    limits: Mapping[str, Any] | None = None
    parent_run_id: str | None = None
    parent_key: str | None = None
    source_run_id: str | None = None
    attempt_no: int = 1
    effects: Effects = "hold"
    continues: str | None = None

    def facts(self, agent: Agent, catalogue: str) -> dict[str, Any]:
        """What the first event of the run tells."""
        return {
            "agent": agent.name,
            "agent_version": agent.version,
            "catalogue": catalogue,
            "driver": self.driver,
            "by": self.by,
            "thread": self.thread,
            "parent_run_id": self.parent_run_id,
            "parent_key": self.parent_key,
            "source_run_id": self.source_run_id,
            "attempt_no": self.attempt_no,
            "effects": self.effects,
            "messages": [message_as_json(message) for message in self.messages],
        }


def check_start(start: Start) -> None:
    """Raise :class:`InvalidSetting`, :class:`InvalidKey` or :class:`NotEntitled` for what no run can be made of."""
    check_name(start.by)
    if start.key is not None:
        check_key(start.key)
    if start.thread is not None:
        check_thread(start.thread)
    if start.driver not in DRIVERS:
        raise InvalidSetting(f"There is no driver {start.driver!r}.", remedy=f"Drivers: {', '.join(DRIVERS)}.")
    if start.effects not in EFFECTS:
        raise InvalidSetting(f"effects={start.effects!r} is none of {', '.join(EFFECTS)}.")
    if not all(is_text(message.text, INPUT_CHARACTERS_MOST, least=0) for message in start.messages):
        raise InvalidSetting("The messages of a run must be text without NUL or lone surrogates.")
    size = sum(len(message.text) + _size_beside_text(message) for message in start.messages)
    if size > INPUT_CHARACTERS_MOST:
        raise InvalidSetting(f"The messages have {size:,} characters, {INPUT_CHARACTERS_MOST:,} at most.")
    _check_history(start.messages)


def _size_beside_text(message: Message) -> int:
    """Characters of what a message has beside its text, which must be JSON of characters."""
    if not isinstance(message, AssistantMessage):
        return 0
    try:
        said = json.dumps({**message_as_json(message), "text": ""}, ensure_ascii=False, allow_nan=False)
        return len(said.encode())
    except (TypeError, ValueError, RecursionError):
        raise InvalidSetting("The messages have calls that are no JSON.") from None


def _check_history(messages: Iterable[Message]) -> None:
    """A history that no provider accepts is refused now, not by the provider later."""
    unanswered: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.key not in unanswered:
                raise InvalidSetting(f"The messages answer a call {message.key[:100]!r} that is not open there.")
            unanswered.remove(message.key)
        elif unanswered:
            raise InvalidSetting(f"The messages leave the call {unanswered[0][:100]!r} without an answer.")
        elif isinstance(message, AssistantMessage):
            unanswered = [ask.key for ask in message.asks]
            if len(set(unanswered)) < len(unanswered) or "" in unanswered:
                raise InvalidSetting("The messages have calls without a key, or two with the same.")


def check_name(by: Any) -> None:
    """Raise :class:`NotEntitled` for what names nobody."""
    if not is_text(by, NAME_CHARACTERS_MOST) or not by.strip():
        raise NotEntitled(f"Somebody must be named, in 1 to {NAME_CHARACTERS_MOST} characters of text.")


def check_thread(thread: str) -> None:
    """Raise :class:`InvalidSetting` for what names no conversation."""
    if not is_text(thread, THREAD_CHARACTERS_MOST):
        raise InvalidSetting(f"thread= must be 1 to {THREAD_CHARACTERS_MOST} characters of text.")


def check_words(what: str, text: Any) -> None:
    """Raise :class:`InvalidSetting` for words of a person that no store takes."""
    if not is_text(text, INPUT_CHARACTERS_MOST, least=0):
        raise InvalidSetting(f"{what} must be at most {INPUT_CHARACTERS_MOST:,} characters of text.")


def digest_of(start: Start) -> str:
    """SHA-256 over what makes it this start and no other; who asks and under which key is not part of it."""
    said = {
        "agent": start.agent,
        "thread": start.thread,
        "messages": [message_as_json(message) for message in start.messages],
        "parent_key": start.parent_key,
        "source_run_id": start.source_run_id,
        "effects": start.effects,
        "limits": None if start.limits is None else dict(start.limits),
    }
    return sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def is_start_of(record: RunRecord, start: Start) -> bool:
    """Whether the run was started by this very start. One that names no version means the one it began with."""
    return record.start_digest == digest_of(start) and record.agent_version.startswith(start.agent_version or "")


def check_limits(limits: Limits, changed: Mapping[str, Any], *, tighten: bool) -> Limits:
    """The limits with some of them changed. ``tighten``: none may be loosened.

    Raises :class:`InvalidSetting` for a name that does not exist or a value out of bounds.
    """
    kept = asdict(limits)
    for name, value in changed.items():
        if name not in kept:
            raise InvalidSetting(f"There is no limit {name!r}.", remedy=f"Limits: {', '.join(kept)}.")
        wanted = _limit(name, value)
        if tighten and kept[name] is not None:
            wanted = kept[name] if wanted is None else min(wanted, kept[name])
        kept[name] = wanted
    return Limits(**kept)


def _limit(name: str, value: Any) -> Any:
    if value is None and name != "turns":
        return None
    if name == "cost":
        return _cost(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    most = _WHOLE.get(name, WALL_S_MOST)
    if not is_number or not 0 < value <= most or (name in _WHOLE and not isinstance(value, int)):
        raise InvalidSetting(f"The limit {name}={value!r} is not 1 to {most:,}.")
    return value


def _cost(value: Any) -> Decimal:
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        cost = Decimal("NaN")
    if isinstance(value, bool) or not cost.is_finite() or cost <= 0:
        raise InvalidSetting(f"The limit cost={value!r} is no amount of US dollars above 0.")
    return cost


def is_text(value: Any, most: int, least: int = 1) -> bool:
    """Whether it is text of so many characters that every store takes: without NUL and half characters."""
    if not isinstance(value, str) or not least <= len(value) <= most or "\0" in value:
        return False
    return value.isascii() or value.encode(errors="ignore").decode() == value
