"""The models of a process by name: scripted ones, providers, endpoints of one's own. One book implements the port.

Runs ask it; ``tollhouse check`` asks it which names it knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tollhouse.errors import ExtraMissing, InvalidSetting, TollhouseError
from tollhouse.models.failures import failure
from tollhouse.models.port import ModelReply, ModelRequest, OnText
from tollhouse.models.provider import ClientFactory, Endpoint, Known, Providers
from tollhouse.models.retry import Patience, Sender, Sent, ask_in_turn
from tollhouse.models.script import turns_of
from tollhouse.models.scripted import FunctionModel, ScriptedModel, ScriptFunction

SCRIPTED = "scripted"

Script = ScriptFunction | list[Any] | Mapping[str, Any]
"""A function, or turns as YAML says them; see ``docs/reference/models.md``."""


class ModelBook:
    """Every model that can be asked here; implements :class:`~tollhouse.models.port.Model`.

    ``endpoints`` and ``scripts`` by name. ``base``: the folder that files of scripts (``scripted:play.yaml``) are
    looked up in; None: no files. ``environ``: where keys of providers are read; None: the process's own environment.
    Raises :class:`~tollhouse.errors.InvalidSetting` for a name that is taken or a script that cannot be read.
    """

    def __init__(
        self,
        *,
        endpoints: Mapping[str, Endpoint] | None = None,
        scripts: Mapping[str, Script] | None = None,
        base: Path | None = None,
        patience: Patience | None = None,
        environ: Mapping[str, str] | None = None,
        http_client: ClientFactory | None = None,
    ) -> None:
        if SCRIPTED in (endpoints or {}):
            raise InvalidSetting(f"An endpoint cannot be called {SCRIPTED!r}: scripted models are.")
        self._patience = patience or Patience()
        self._providers = Providers(endpoints or {}, self._patience, environ=environ, http_client=http_client)
        self._base = base
        self._scripted: dict[str, Sender] = {
            name: _scripted(f"{SCRIPTED}:{name}", script) for name, script in (scripts or {}).items()
        }

    async def ask(self, request: ModelRequest, on_text: OnText | None = None) -> ModelReply:
        """Ask the request's model and then those of its fallback list; see :class:`~tollhouse.models.port.Model`.

        Raises also :class:`~tollhouse.errors.ExtraMissing` when a provider's model is asked and its packages are not
        installed.
        """
        names = dict.fromkeys((request.model, *request.fallback))
        return await ask_in_turn([(name, self._sender(name)) for name in names], request, on_text, self._patience)

    def known(self, name: str) -> Known:
        """Whether that model can be asked here, and if not, why. Nothing is sent and nothing is imported."""
        kind, _, rest = name.partition(":")
        if kind != SCRIPTED or not rest:
            return self._providers.known(name)
        try:
            self._script(rest)
        except TollhouseError as error:
            return Known(False, error.cause)
        return Known(True)

    async def close(self) -> None:
        """Close the connections to providers; requests under way fail."""
        await self._providers.close()

    def _sender(self, name: str) -> Sender:
        kind, _, rest = name.partition(":")
        if kind != SCRIPTED or not rest:
            return self._providers.sender(name)
        try:
            return self._script(rest)
        except InvalidSetting as error:
            return _Unknown(error.cause)

    def _script(self, name: str) -> Sender:
        if name not in self._scripted:
            self._scripted[name] = _scripted(f"{SCRIPTED}:{name}", _read(name, self._base))
        return self._scripted[name]


class _Unknown:
    """Stands for a script that is not there."""

    def __init__(self, cause: str) -> None:
        self._cause = cause

    async def send(self, request: ModelRequest, on_text: OnText | None) -> Sent:
        return Sent(None, failure("model_unknown", self._cause))


def _scripted(name: str, script: Script) -> Sender:
    return FunctionModel(name, script) if callable(script) else ScriptedModel(name, turns_of(script, name))


def _read(name: str, base: Path | None) -> Any:
    """The script in a file: JSON by its ending, else YAML."""
    if base is None or not (base / name).is_file():
        raise InvalidSetting(f"There is no script {name!r}.", remedy="Name one of `scripts`, or a file beside it.")
    try:
        text = (base / name).read_text(encoding="utf-8")
        return json.loads(text) if name.endswith(".json") else _yaml(text)
    except (OSError, ValueError):
        raise InvalidSetting(f"The script {name!r} is not readable as JSON or YAML.") from None


def _yaml(text: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    except ImportError:
        raise ExtraMissing(
            "Scripts in YAML need packages that are not installed.",
            remedy="Run pip install 'tollhouse[server]'.",
        ) from None
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError from error
