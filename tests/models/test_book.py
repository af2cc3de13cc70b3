"""The book of models: which names it knows, what it loads and when, and what it closes."""

from __future__ import annotations

import subprocess
import sys

import httpx2
import pytest

from tests.models.asking import request
from tests.models.conftest import HASTY, OpenBook
from tests.support.wild_provider import completion, whole, wild_provider
from tollhouse.errors import InvalidSetting
from tollhouse.models.book import ModelBook
from tollhouse.models.port import ModelFailed
from tollhouse.models.provider import Endpoint


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("openai:gpt-4o", ""),
        ("local:llama3", ""),
        ("scripted:play", ""),
        ("scripted:none", "There is no script 'none'."),
        ("scripted:../play.yaml", "There is no script '../play.yaml'."),
        ("scripted:", "'scripted:' is not of the form provider:name."),
        ("nobody:x", "There is no provider 'nobody'; there are anthropic, local, openai."),
        ("gpt-4o", "'gpt-4o' is not of the form provider:name."),
        ("openai:", "'openai:' is not of the form provider:name."),
        ("", "'' is not of the form provider:name."),
        ("anthropic:claude", "The environment variable ANTHROPIC_API_KEY is not set."),
    ],
)
async def test_a_name_is_known_or_told_why_not(name: str, why: str) -> None:
    """`tollhouse check` asks before anything runs; a model that is asked all the same fails with the same sentence."""
    endpoints = {"local": Endpoint("http://127.0.0.1:9/v1")}
    book = ModelBook(endpoints=endpoints, scripts={"play": ["ok"]}, environ={"OPENAI_API_KEY": "k"}, patience=HASTY)
    known = book.known(name)
    assert (bool(known), known.why) == (not why, why)
    if why:
        with pytest.raises(ModelFailed) as failed:
            await book.ask(request(name))
        assert why in failed.value.cause
        assert not failed.value.transient
        assert failed.value.attempts == ()


def test_an_endpoint_cannot_take_the_name_of_scripts() -> None:
    """`scripted:` always means a script."""
    with pytest.raises(InvalidSetting, match="scripted"):
        ModelBook(endpoints={"scripted": Endpoint("http://127.0.0.1:9/v1")})


def test_nothing_heavy_is_imported_before_a_provider_is_asked() -> None:
    """The provider layer takes about a second to import; knowing names and playing scripts do without."""
    program = """
import asyncio, sys
from tollhouse.models.book import ModelBook
from tollhouse.models.port import ModelRequest, UserMessage
book = ModelBook(scripts={"play": ["ok"]}, environ={"OPENAI_API_KEY": "k"})
assert book.known("openai:gpt-4o"), book.known("openai:gpt-4o")
asyncio.run(book.ask(ModelRequest("scripted:play", "", (UserMessage("Hi"),))))
heavy = {"pydantic_ai", "openai", "anthropic", "genai_prices", "httpx2", "ruamel"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize("package", ["pydantic_ai", "openai", "anthropic", "genai_prices"])
def test_a_missing_extra_is_named(package: str) -> None:
    """Without the provider layer the name is not known, and asking says what to install."""
    program = f"""
import asyncio, sys
sys.modules[{package!r}] = None
from tollhouse.errors import ExtraMissing
from tollhouse.models.book import ModelBook
from tollhouse.models.port import ModelRequest, UserMessage
book = ModelBook(environ={{"OPENAI_API_KEY": "k"}})
assert not book.known("openai:gpt-4o")
try:
    asyncio.run(book.ask(ModelRequest("openai:gpt-4o", "", (UserMessage("Hi"),))))
except ExtraMissing as missing:
    assert missing.remedy == "Run pip install 'tollhouse[models]'.", missing.remedy
else:
    raise SystemExit("it was asked")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_an_http_client_of_ones_own_carries_every_request(open_book: OpenBook) -> None:
    """Where traffic must pass a guard, the guard's client is used, and closed with the book."""
    made: list[httpx2.AsyncClient] = []
    passed: list[str] = []

    async def note(passing: httpx2.Request) -> None:
        passed.append(passing.url.path)

    def client() -> httpx2.AsyncClient:
        made.append(httpx2.AsyncClient(event_hooks={"request": [note]}, trust_env=False))
        return made[-1]

    async with wild_provider(whole(200, completion({"content": "ok"}))) as provider:
        book = open_book(provider.url, http_client=client)
        await book.ask(request("openai:gpt-4o-mini"))
        await book.ask(request("openai:gpt-4o"))
        await book.close()
    assert passed == ["/v1/chat/completions"] * 2
    assert [each.is_closed for each in made] == [True]


async def test_a_model_named_twice_is_asked_once(open_book: OpenBook) -> None:
    """A fallback list that repeats the model wastes no time on it."""
    async with wild_provider(whole(400, {"error": {"message": "no"}})) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request("openai:m", fallback=("openai:m", "local:m", "local:m")))
    assert [attempt.model for attempt in failed.value.attempts] == ["openai:m", "local:m"]


async def test_a_failure_that_waiting_may_mend_gives_its_code(open_book: OpenBook) -> None:
    """Of all that failed, the transient one decides whether a run may ask again."""
    refused, busy = whole(400, {"error": {"message": "no"}}), whole(503, {"error": {"message": "busy"}})
    async with wild_provider(refused, busy) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request("openai:m", fallback=("local:m",)))
    assert (failed.value.code, failed.value.transient) == ("model_server_error", True)
    assert failed.value.cause == "openai:m: HTTP 400: no; local:m: HTTP 503: busy"
