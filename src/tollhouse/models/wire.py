"""One endpoint over the wire: a request sent once through the provider's own client, and what came of it.

``provider.py`` makes a :class:`Connection` for each endpoint that is used. The clients' own retries are off, every
time is finite, and an error leaves here as a value: the clients' errors hold the request with its headers, and none of
them may reach a log through a chain of exceptions.

This module imports the provider layer; only ``provider.py`` may import it, late.
"""

from __future__ import annotations

import logging
import os
import time
from asyncio import timeout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import anthropic
import httpx2
import openai
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelMessage, ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from tollhouse.models.convert import answer_of, history_for, names_for, parameters_for
from tollhouse.models.failures import Failure, failure
from tollhouse.models.lenient import LenientOpenAIChatModel
from tollhouse.models.mishaps import ProviderGaveUp, SaidNothing, StreamCut, failure_of
from tollhouse.models.names import WireNames
from tollhouse.models.port import ModelRequest, OnText, RequestAttempt
from tollhouse.models.prices import bill_of
from tollhouse.models.provider import ClientFactory, Endpoint
from tollhouse.models.retry import Answer, Patience, Sent

SETTINGS = frozenset(
    {
        "temperature",
        "max_tokens",
        "top_p",
        "top_k",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "stop_sequences",
        "parallel_tool_calls",
        "thinking",
    }
)
"""What a request may set. Not more: headers and extra bodies would be a way around the endpoint's own."""

_NO_KEY = "none"

for _library in ("openai", "anthropic", "httpcore2"):
    # At DEBUG they log whole requests and the headers of answers. Who turns on everything's DEBUG did not ask for
    # prompts, arguments and cookies in a log; who wants them sets the library's own level before.
    if logging.getLogger(_library).level == logging.NOTSET:
        logging.getLogger(_library).setLevel(logging.INFO)


@dataclass(slots=True)
class _Hearing:
    """What one sending has brought so far, kept so that an error finds it."""

    on_text: OnText | None
    stream: StreamedResponse | None = None
    whole: ModelResponse | None = None
    spoke: bool = False
    raised: BaseException | None = None
    _apart: bool = field(default=False, init=False)

    async def hear(self, event: object) -> None:
        """Pass on the text in an event; texts with something else between them stand apart, as in the whole."""
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                self._apart = self.spoke and event.previous_part_kind != "text"
                await self._say(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                await self._say(text)

    async def _say(self, text: str) -> None:
        if not text or self.on_text is None:
            return
        piece = f"\n\n{text}" if self._apart else text
        self._apart, self.spoke = False, True
        try:
            await self.on_text(piece)
        except Exception as error:
            self.raised = error
            raise

    @property
    def usage(self) -> RequestUsage | None:
        source = self.whole or self.stream
        return source.usage if source else None

    @property
    def answered_by(self) -> str | None:
        """The model as the provider names it, often with a date."""
        source = self.whole or self.stream
        return source.model_name if source else None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request as the provider layer takes it."""

    model: Model
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    names: WireNames


class Connection:
    """One endpoint: its HTTP client, its key, and the models asked there. Safe for many requests at a time."""

    def __init__(
        self, name: str, endpoint: Endpoint, key: str | None, patience: Patience, http_client: ClientFactory | None
    ) -> None:
        self._name, self._endpoint, self._patience = name, endpoint, patience
        self._secrets = (key,) if key else ()
        self._timeout = httpx2.Timeout(patience.read_s, connect=patience.connect_s)
        # The clients insist on some key; only in the headers of a request can it be left out.
        self._headers = {} if key else dict.fromkeys(("Authorization", "X-Api-Key"), _omit(endpoint))
        self._client = _client(name, endpoint, key, (http_client or self._own_client)())
        self._models: dict[str, Model] = {}

    async def close(self) -> None:
        await self._client.close()

    async def send(self, name: str, request: ModelRequest, on_text: OnText | None) -> Sent:
        """Send the request once to the model of that full name. Raises only what ``on_text`` raised."""
        prepared = self._prepared(name, request)
        if isinstance(prepared, Failure):
            return Sent(None, prepared)
        hearing, started_at, started = _Hearing(on_text), datetime.now(UTC), time.monotonic()
        outcome: Answer | Failure
        try:
            async with timeout(self._patience.total_s):
                response = await self._ask(prepared, hearing)
            outcome = _checked(answer_of(response, prepared.names, self._name))
        except Exception as error:
            if error is hearing.raised:
                raise
            outcome = failure_of(
                error, streaming=hearing.stream is not None, spoke=hearing.spoke, secrets=self._secrets
            )
        took_s = time.monotonic() - started
        return Sent(self._attempt(name, prepared, hearing, outcome, started_at, took_s), outcome)

    def _attempt(
        self,
        name: str,
        prepared: _Prepared,
        hearing: _Hearing,
        outcome: Answer | Failure,
        started_at: datetime,
        took_s: float,
    ) -> RequestAttempt:
        """The sending as it is recorded and billed, answered or not."""
        models = tuple(filter(None, (hearing.answered_by, prepared.model.model_name)))
        bill = bill_of(hearing.usage, models, self._endpoint.sold_by, self._endpoint.base_url)
        failed = outcome if isinstance(outcome, Failure) else None
        return RequestAttempt(
            name,
            started_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            took_s,
            bill.input_tokens,
            bill.output_tokens,
            bill.cached_tokens,
            bill.cost,
            failed.code if failed else None,
            failed.cause if failed else None,
        )

    async def _ask(self, prepared: _Prepared, hearing: _Hearing) -> ModelResponse:
        if hearing.on_text is None:
            hearing.whole = await model_request(
                prepared.model,
                prepared.messages,
                model_settings=prepared.settings,
                model_request_parameters=prepared.parameters,
                instrument=False,
            )
            return self._ended(hearing.whole, streamed=False)
        async with model_request_stream(
            prepared.model,
            prepared.messages,
            model_settings=prepared.settings,
            model_request_parameters=prepared.parameters,
            instrument=False,
        ) as stream:
            hearing.stream = stream
            async for event in stream:
                await hearing.hear(event)
        return self._ended(stream.get(), streamed=True)

    def _ended(self, response: ModelResponse, *, streamed: bool) -> ModelResponse:
        """The response, if its end was said. Raises :class:`StreamCut` or :class:`ProviderGaveUp`.

        The layer calls a stream that just ends "stopped"; what the provider said stands in the details. Some servers
        of OpenAI's kind leave it out of whole answers, which cannot be cut unseen. Anthropic's client may stream
        unasked, so its answers must have it always.
        """
        said = (response.provider_details or {}).get("finish_reason") or response.finish_reason == "content_filter"
        if not said and (streamed or isinstance(self._client, AsyncAnthropic)):
            raise StreamCut
        if said == "error":
            raise ProviderGaveUp
        return response

    def _prepared(self, name: str, request: ModelRequest) -> _Prepared | Failure:
        unknown = sorted(set(request.settings) - SETTINGS)
        if unknown:
            return failure("model_refused_request", f"There is no model setting {', '.join(unknown)}.")
        model = self._model(name.partition(":")[2])
        native = self._endpoint.native_schema and bool(model.profile.get("supports_json_schema_output"))
        names = names_for(request)
        settings = cast(
            ModelSettings, {**request.settings, "timeout": self._timeout, "extra_headers": dict(self._headers)}
        )
        return _Prepared(
            model,
            history_for(request, names, self._name),
            settings,
            parameters_for(request, names, native_schema=native),
            names,
        )

    def _model(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = _model(self._name, name, self._client)
        return self._models[name]

    def _own_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=self._timeout, follow_redirects=False)


def _checked(answer: Answer) -> Answer:
    """The answer, if it is one. Raises :class:`SaidNothing`; a refusal without words is an answer."""
    if not answer.text.strip() and not answer.asks and answer.finish_reason != "refused":
        raise SaidNothing
    return answer


def _client(
    name: str, endpoint: Endpoint, key: str | None, http_client: httpx2.AsyncClient
) -> AsyncOpenAI | AsyncAnthropic:
    settings: dict[str, Any] = {
        "api_key": key or _NO_KEY,
        "base_url": endpoint.base_url,
        "http_client": http_client,
        "max_retries": 0,
        "default_headers": {} if name == endpoint.api else dict.fromkeys(_of_the_provider(endpoint), _omit(endpoint)),
    }
    return AsyncAnthropic(**settings) if endpoint.api == "anthropic" else AsyncOpenAI(**settings)


def _of_the_provider(endpoint: Endpoint) -> list[str]:
    """Headers that the providers' clients read from the environment and would send to every server.

    Who one is at the provider, and what its gateway is told, is nobody else's business.
    """
    custom = os.environ.get(f"{endpoint.api.upper()}_CUSTOM_HEADERS", "")
    named = [line.partition(":")[0].strip() for line in custom.split("\n") if ":" in line]
    return [*named, "OpenAI-Organization", "OpenAI-Project"]


def _omit(endpoint: Endpoint) -> object:
    """What tells the endpoint's client to leave a header out; each client knows its own."""
    return anthropic.omit if endpoint.api == "anthropic" else openai.omit


def _model(endpoint: str, name: str, client: AsyncOpenAI | AsyncAnthropic) -> Model:
    if isinstance(client, AsyncAnthropic):
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))
    if endpoint == "openai":
        return LenientOpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))
    return LenientOpenAIChatModel(name, provider=OpenAICompatibleProvider(endpoint, openai_client=client))
