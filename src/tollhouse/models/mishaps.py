"""What went wrong at the provider layer, as one of our codes. ``wire.py`` calls it with whatever a sending raised.

This module imports the provider layer; only ``wire.py`` may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
from pydantic_ai import exceptions as layer

from tollhouse.models.failures import Failure, failure

_BY_STATUS = {
    401: "model_not_authorized",
    402: "model_not_authorized",
    403: "model_not_authorized",
    404: "model_unknown",
    408: "model_timeout",
    409: "model_server_error",
    429: "model_rate_limited",
}


class StreamCut(Exception):
    """The stream ended without a finish reason."""


class ProviderGaveUp(Exception):
    """The answer ended with the reason "error", as gateways say when who is behind them failed."""


class SaidNothing(Exception):
    """The answer has neither text nor a call."""


def failure_of(error: Exception, *, streaming: bool, spoke: bool, secrets: tuple[str, ...]) -> Failure:
    """The failure for an error. ``streaming``: the answer had begun; ``spoke``: text of it was passed on."""
    code, cause = _code_and_cause(error, streaming)
    return failure(
        code,
        cause,
        transient=False if isinstance(error, layer.ModelQuotaExceededError) else None,
        retry_after_s=getattr(error, "retry_after", None),
        spoke=spoke,
        secrets=secrets,
    )


def _code_and_cause(error: Exception, streaming: bool) -> tuple[str, str]:
    match error:
        case StreamCut():
            return "model_stream_cut", "The stream ended without a finish reason."
        case ProviderGaveUp():
            return "model_server_error", "The provider ended its answer with an error."
        case SaidNothing():
            return "model_answered_nothing", "The answer had neither text nor a call."
        case TimeoutError() | httpx2.TimeoutException():
            return "model_timeout", "No answer came in time."
        case httpx2.TransportError():
            return _of_phase("read", streaming)
        case layer.UserError():
            return "model_refused_request", f"The provider layer refused the request: {error}"
        case layer.ModelAPIError():
            return _of_provider(error, streaming)
        case _:
            return "model_answer_invalid", f"The answer could not be read ({type(error).__name__})."


def _of_provider(error: layer.ModelAPIError, streaming: bool) -> tuple[str, str]:
    match error:
        case layer.ModelHTTPError():
            return _of_status(error.status_code), f"HTTP {error.status_code}: {_said(error.body)}"
        case layer.ModelTimeoutError() | layer.ModelRequestTimeout():
            return "model_timeout", "No answer came in time."
        case layer.ModelConnectionError():
            return _of_phase(error.phase, streaming)
        case _ if error.in_stream:
            return "model_server_error", f"The provider ended its stream with an error: {_said(error.body)}"
        case _:
            return "model_answer_invalid", "What came is no answer that the provider's client can read."


def _of_status(status: int) -> str:
    if status >= 500:
        return "model_server_error"
    return _BY_STATUS.get(status, "model_refused_request")


def _of_phase(phase: str | None, streaming: bool) -> tuple[str, str]:
    if streaming or phase in ("read", "write"):
        return "model_stream_cut", "The connection broke before the answer was complete."
    return "model_unreachable", "No connection could be made."


def _said(body: object) -> str:
    """The sentence in an error's body, wherever the provider put it. Never a header."""
    if isinstance(body, Mapping):
        inner: Any = body.get("error", body)
        message = inner.get("message") if isinstance(inner, Mapping) else inner
        return str(message) if message else "no reason given"
    return str(body) if body else "no reason given"
