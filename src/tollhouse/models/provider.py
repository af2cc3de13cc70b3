"""Providers of models by name: where they answer, which key they want, and a connection to each, made when first used.

``book.py`` asks :class:`Providers` for the sender of a name. Nothing of the provider layer is imported before the first
request, since that takes about a second, and none of it is needed to check a name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

from tollhouse.errors import ExtraMissing, InvalidSetting
from tollhouse.models.failures import Failure, failure
from tollhouse.models.port import ModelRequest, OnText
from tollhouse.models.retry import Patience, Sent

if TYPE_CHECKING:
    import httpx2

    from tollhouse.models.wire import Connection

ClientFactory = Callable[[], "httpx2.AsyncClient"]
"""Makes the HTTP client of one endpoint; it is closed with the endpoint. Traffic is watched there."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place where models answer.

    ``api``: whose API it speaks. ``base_url`` None: the provider's own, or what its client's usual environment variable
    says. ``api_key_env``: the environment variable that holds the key; None: none is sent. ``native_schema``: it takes
    JSON Schemas for its answers; otherwise models are told of them in words. ``sold_by``: the provider's id on the
    price list of ``genai-prices``; None: it is found by ``base_url``, or the price stays unknown.
    """

    base_url: str | None = None
    api_key_env: str | None = None
    api: Literal["openai", "anthropic"] = "openai"
    native_schema: bool = True
    sold_by: str | None = None

    def __post_init__(self) -> None:
        if self.base_url is None:
            return
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSetting("The base_url of an endpoint must begin with http:// or https:// and name a host.")
        if parts.username or parts.password:
            raise InvalidSetting(
                "The base_url of an endpoint holds a user or a password.", remedy="Name a variable in api_key_env."
            )


class Known(NamedTuple):
    """Whether a model can be asked here, and if not, why: one sentence, empty if it can."""

    ok: bool
    why: str = ""

    def __bool__(self) -> bool:
        return self.ok


BUILT_IN: Mapping[str, Endpoint] = {
    "openai": Endpoint(api_key_env="OPENAI_API_KEY", sold_by="openai"),
    "anthropic": Endpoint(api_key_env="ANTHROPIC_API_KEY", api="anthropic", sold_by="anthropic"),
}
"""Endpoints that need no declaration; one of the same name takes their place."""


class Providers:
    """The endpoints of a process and their connections, each made when a model there is first asked.

    ``environ``: where keys are read, at each first use. ``http_client`` None: a client that follows no redirects, so
    that no key travels to where a provider points.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        patience: Patience,
        *,
        environ: Mapping[str, str] | None = None,
        http_client: ClientFactory | None = None,
    ) -> None:
        self._endpoints = {**BUILT_IN, **endpoints}
        self._patience = patience
        self._environ = os.environ if environ is None else environ
        self._http_client = http_client
        self._connections: dict[str, Connection] = {}
        self._wire: ModuleType | None = None
        self._loading = asyncio.Lock()

    def known(self, name: str) -> Known:
        """Whether the model's endpoint is declared, its key set and the extra installed. Nothing is sent."""
        provider, _, model = name.partition(":")
        if not model:
            return Known(False, f"{name!r} is not of the form provider:name.")
        endpoint = self._endpoints.get(provider)
        if endpoint is None:
            return Known(False, f"There is no provider {provider!r}; there are {', '.join(sorted(self._endpoints))}.")
        if not _installed():
            return Known(False, _MISSING)
        if not self._has_key(endpoint):
            return Known(False, f"The environment variable {endpoint.api_key_env} is not set.")
        return Known(True)

    def sender(self, name: str) -> ProviderModel:
        """The model of that name; whether it can be asked shows when it is."""
        return ProviderModel(self, name)

    async def close(self) -> None:
        """Close every connection; requests under way fail."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    async def connection(self, name: str) -> Connection | Failure:
        """The connection for a model, made if need be. Raises :class:`ExtraMissing` without the provider layer."""
        provider = name.partition(":")[0]
        if provider not in self._endpoints or not name.partition(":")[2]:
            return failure("model_unknown", self.known(name).why)
        endpoint = self._endpoints[provider]
        if not self._has_key(endpoint):
            return failure("model_not_authorized", f"The environment variable {endpoint.api_key_env} is not set.")
        async with self._loading:
            if provider not in self._connections:
                self._connections[provider] = await self._connect(provider, endpoint)
            return self._connections[provider]

    async def _connect(self, provider: str, endpoint: Endpoint) -> Connection:
        if self._wire is None:
            self._wire = await asyncio.to_thread(_load)
        key = self._environ[endpoint.api_key_env] if endpoint.api_key_env else None
        made: Connection = self._wire.Connection(provider, endpoint, key, self._patience, self._http_client)
        return made

    def _has_key(self, endpoint: Endpoint) -> bool:
        return endpoint.api_key_env is None or bool(self._environ.get(endpoint.api_key_env))


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """One model of a provider, as ``retry.py`` asks it."""

    providers: Providers
    name: str

    async def send(self, request: ModelRequest, on_text: OnText | None) -> Sent:
        """Send the request once; see :class:`~tollhouse.models.retry.Sender`."""
        connection = await self.providers.connection(self.name)
        if isinstance(connection, Failure):
            return Sent(None, connection)
        return await connection.send(self.name, request, on_text)


_MISSING = "Models of providers need packages that are not installed."


def _installed() -> bool:
    return all(find_spec(name) is not None for name in ("pydantic_ai", "openai", "anthropic", "genai_prices"))


def _load() -> ModuleType:
    """Import the provider layer, in a thread: it takes about a second, and the event loop has other work."""
    try:
        import genai_prices  # noqa: F401 - prices.py asks it later, and the extra is there as a whole or not at all

        from tollhouse.models import wire
    except ImportError:
        raise ExtraMissing(_MISSING, remedy="Run pip install 'tollhouse[models]'.") from None
    return wire
