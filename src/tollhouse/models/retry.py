"""Sends a request until a model answers: again after transient failures, within bounds, then along the fallback list.

The one owner of retries: the providers' own clients have theirs switched off, so that every sending is seen, counted
and billed. ``book.py`` finds the senders of the names in a request and calls :func:`ask_in_turn`.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tollhouse.errors import InvalidSetting
from tollhouse.models.failures import Failure, clean
from tollhouse.models.port import Ask, FinishReason, Json, ModelFailed, ModelReply, ModelRequest, OnText, RequestAttempt


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a model is asked. Seconds. Out of bounds: :class:`~tollhouse.errors.InvalidSetting`.

    ``attempts``: sendings to one model, 1 to 10. ``connect_s``: until a connection stands. ``read_s``: of silence
    while waiting for the next bytes. ``total_s``: for one sending as a whole, so that a provider that drips bytes ends
    too. ``wait_s``: pause before the second sending, doubled before each further one, between half and all of it by
    chance. ``longest_wait_s``: ceiling of every pause; a provider that asks for a longer one is not asked again.
    """

    attempts: int = 3
    connect_s: float = 10.0
    read_s: float = 120.0
    total_s: float = 600.0
    wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 10:
            raise InvalidSetting("attempts= must be 1 to 10.")
        for name in ("connect_s", "read_s", "total_s", "wait_s", "longest_wait_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidSetting(f"{name}= must be more than 0 seconds, and finite.")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said, before the run mints keys for its calls."""

    text: str
    asks: tuple[Ask, ...]
    finish_reason: FinishReason
    provider: Json | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """One sending and what came of it. ``attempt`` None: nothing could be sent, so there is nothing to bill."""

    attempt: RequestAttempt | None
    outcome: Answer | Failure


class Sender(Protocol):
    """One model, able to send a request once."""

    async def send(self, request: ModelRequest, on_text: OnText | None) -> Sent:
        """Send it once. Fails by value; raises only what ``on_text`` raised."""
        ...


Pause = Callable[[float], Awaitable[None]]


async def ask_in_turn(
    senders: Sequence[tuple[str, Sender]],
    request: ModelRequest,
    on_text: OnText | None,
    patience: Patience,
    pause: Pause = asyncio.sleep,
) -> ModelReply:
    """The first answer that any of the senders gives. Raises :class:`ModelFailed` when none does."""
    attempts: list[RequestAttempt] = []
    failures: list[tuple[str, Failure]] = []
    for name, sender in senders:
        outcome = await _persist(sender, request, on_text, patience, attempts, pause)
        if isinstance(outcome, Answer):
            return ModelReply(
                outcome.text, outcome.asks, outcome.finish_reason, name, tuple(attempts), outcome.provider
            )
        failures.append((name, outcome))
        if outcome.spoke:
            break
    raise _failed(failures, tuple(attempts))


async def _persist(
    sender: Sender,
    request: ModelRequest,
    on_text: OnText | None,
    patience: Patience,
    attempts: list[RequestAttempt],
    pause: Pause,
) -> Answer | Failure:
    """Ask one model until it answers, fails for good, or its attempts are used up."""
    sending = 1
    while True:
        sent = await sender.send(request, on_text)
        if sent.attempt is not None:
            attempts.append(sent.attempt)
        if isinstance(sent.outcome, Answer):
            return sent.outcome
        wait_s = _wait_s(sent.outcome, sending, patience)
        if wait_s is None:
            return sent.outcome
        await pause(wait_s)
        sending += 1


def _wait_s(failed: Failure, sending: int, patience: Patience) -> float | None:
    """How long to wait before sending again; None: not at all."""
    if not failed.transient or failed.spoke or sending >= patience.attempts:
        return None
    asked = failed.retry_after_s or 0.0
    if asked > patience.longest_wait_s:
        return None
    own = min(patience.wait_s * 2.0 ** (sending - 1), patience.longest_wait_s) * random.uniform(0.5, 1.0)
    return max(asked, own)


def _failed(failures: Sequence[tuple[str, Failure]], attempts: tuple[RequestAttempt, ...]) -> ModelFailed:
    """One error for all: the first transient failure gives the code, as that is what waiting may mend."""
    _name, first = next((each for each in failures if each[1].transient), failures[0])
    cause = clean("; ".join(f"{name}: {failed.cause}" for name, failed in failures))
    return ModelFailed(
        first.code, cause, transient=first.transient, attempts=attempts, retry_after_s=first.retry_after_s
    )
