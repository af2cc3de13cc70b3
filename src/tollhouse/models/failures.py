"""Why a sending was not answered: the stable codes, what each means for sending again, and texts without secrets.

Senders (``wire.py``, ``scripted.py``) make a :class:`Failure` of whatever went wrong; ``retry.py`` decides by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_CHARS = 300
"""Of an error's text: a provider may answer with a whole page."""

CODES: dict[str, tuple[bool, str]] = {
    "model_unreachable": (True, "No connection could be made."),
    "model_timeout": (True, "No answer came in time, or the provider said so (408)."),
    "model_rate_limited": (True, "The provider asks for fewer requests (429)."),
    "model_server_error": (True, "The provider failed (409, 5xx, or an error inside its stream)."),
    "model_stream_cut": (True, "The answer broke off, or its stream ended without a finish reason."),
    "model_answered_nothing": (True, "The answer had neither text nor a call."),
    "model_answer_invalid": (True, "What came is no answer that the provider's own client can read."),
    "model_refused_request": (False, "The provider refused the request as it stands (400 and its kin)."),
    "model_not_authorized": (False, "The key is missing, unknown, or may not do this (401, 402, 403)."),
    "model_unknown": (False, "There is no such provider, endpoint, script or model (404)."),
}
"""Every code with whether the same request may succeed later, and what it means. Codes are never reused."""

_SECRET_LIKE = re.compile(r"(?i)\b(?:sk|pk|key|rk)-[\w*.-]{4,}|\b(?:bearer|basic)\s+[\w+/=*.~-]{4,}")
"""What looks like a key or a header's value: providers repeat keys, half hidden, in what they say about them."""

_SHORTEST_SECRET = 6
"""Shorter ones, such as the "none" that servers of one's own are told, protect nothing and stand in other words."""

_UNPRINTED = re.compile(r"[\s\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one sending was not answered.

    ``transient``: the same request may succeed later. ``retry_after_s``: how long the provider wants to be left alone;
    None: it did not say. ``spoke``: text had already been passed on.
    """

    code: str
    cause: str
    transient: bool
    retry_after_s: float | None = None
    spoke: bool = False


def failure(
    code: str,
    cause: str,
    *,
    transient: bool | None = None,
    retry_after_s: float | None = None,
    spoke: bool = False,
    secrets: Iterable[str] = (),
) -> Failure:
    """A failure with a text that is bounded and free of ``secrets``. ``transient`` None: as its code has it."""
    again = CODES[code][0] if transient is None else transient
    return Failure(code, clean(cause, secrets), again, retry_after_s, spoke)


def clean(text: str, secrets: Iterable[str] = ()) -> str:
    """One line of at most :data:`MOST_CHARS` characters, with secrets and what looks like one blotted out.

    Blotted out before it is cut: half a secret would not be recognised.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "[secret]")
    line = _UNPRINTED.sub(" ", _SECRET_LIKE.sub("[secret]", text)).strip()
    return line if len(line) <= MOST_CHARS else line[: MOST_CHARS - 1] + "…"
