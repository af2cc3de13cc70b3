"""A key goes to its provider and nowhere else: not into errors, logs, reprs, attempts or other providers' requests."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

import pytest

from tests.models.asking import Heard, request
from tests.models.conftest import CANARY, HASTY, OpenBook
from tests.support.wild_provider import HANG_UP, Reply, completion, message, whole, wild_provider
from tollhouse.errors import InvalidSetting
from tollhouse.models.book import ModelBook
from tollhouse.models.failures import clean
from tollhouse.models.port import ModelFailed, attempt_as_json
from tollhouse.models.provider import Endpoint

ECHO = whole(
    401,
    {"error": {"message": f"Incorrect API key provided: {CANARY}. Authorization: Bearer {CANARY}", "type": CANARY}},
    {"x-echo": CANARY, "www-authenticate": f"Bearer {CANARY}"},
)


def reachable_texts(error: BaseException) -> str:
    """Everything that a log or a crash report may show of an error, whatever hangs on it."""
    texts, waiting, met = [], [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in met:
            continue
        met.add(id(each))
        texts += [repr(each), str(each), repr(vars(each)), "".join(traceback.format_exception(each))]
        texts += [repr(getattr(each, name, None)) for name in ("request", "response", "body", "headers")]
        waiting += [one for one in (each.__cause__, each.__context__) if one is not None]
    return "\n".join(texts)


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "anthropic:claude-haiku-4-5", "local:llama3"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "reply", [ECHO, HANG_UP, whole(500, CANARY), whole(200, CANARY)], ids=["echo", "hang up", "page", "garbage"]
)
async def test_a_key_shows_nowhere_but_at_its_provider(
    open_book: OpenBook, caplog: pytest.LogCaptureFixture, model: str, streamed: bool, reply: Reply
) -> None:
    """Whatever a provider sends back, and with every log at its most talkative, the key stays where it belongs."""
    caplog.set_level(logging.DEBUG)
    async with wild_provider(reply) as provider:
        book = open_book(provider.url)
        with pytest.raises(ModelFailed) as failed:
            await book.ask(request(model, "a secret order"), Heard() if streamed else None)
        shown = [repr(book), repr(vars(book)), reachable_texts(failed.value), caplog.text]
        shown.append(json.dumps([attempt_as_json(attempt) for attempt in failed.value.attempts]))
    assert CANARY in json.dumps(provider.requests)
    assert all(CANARY not in text for text in shown)
    assert "a secret order" not in caplog.text


@pytest.mark.parametrize(
    ("own", "other", "answer"),
    [
        ("openai:gpt-4o-mini", "local:llama3", completion({"content": "ok"})),
        ("anthropic:claude-haiku-4-5", "gateway:claude-haiku-4-5", message({"type": "text", "text": "ok"})),
    ],
)
async def test_who_one_is_at_a_provider_is_told_to_it_alone(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, own: str, other: str, answer: Any
) -> None:
    """The providers' clients read these from the environment for every server that they talk to."""
    monkeypatch.setenv("OPENAI_ORG_ID", "mine-org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "mine-proj")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: mine-too\nX-More: mine")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: mine-too\nX-More: mine")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "mine-token")
    async with wild_provider(whole(200, answer)) as provider:
        gateway = Endpoint(provider.url, "LOCAL_KEY", api="anthropic")
        book = open_book(provider.url, endpoints={"gateway": gateway})
        await book.ask(request(own, settings={"max_tokens": 100}))
        await book.ask(request(other, settings={"max_tokens": 100}))
    told, elsewhere = (json.dumps(each["headers"]) for each in provider.requests)
    assert "mine-too" in told
    assert "mine" not in elsewhere
    assert "mine-token" not in told
    assert CANARY in elsewhere


@pytest.mark.parametrize(
    ("api", "answer"),
    [("openai", completion({"content": "ok"})), ("anthropic", message({"type": "text", "text": "ok"}))],
)
async def test_an_endpoint_without_a_key_gets_none(
    open_book: OpenBook, monkeypatch: pytest.MonkeyPatch, api: Any, answer: Any
) -> None:
    """A server of one's own that wants no key gets neither a provider's nor a made-up one."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, CANARY)
    async with wild_provider(whole(200, answer)) as provider:
        book = open_book(endpoints={"open": Endpoint(f"{provider.url}/v1", api=api)})
        assert book.known("open:llama3")
        await book.ask(request("open:llama3", settings={"max_tokens": 100}))
    (asked,) = provider.requests
    assert CANARY not in json.dumps(provider.requests)
    assert not {"authorization", "x-api-key"} & set(asked["headers"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"key {CANARY}.", "key [secret]."),
        ("Incorrect API key provided: sk-abcd****wxyz.", "Incorrect API key provided: [secret]"),
        ("Authorization: Bearer eyJhbGciOi.x.y", "Authorization: [secret]"),
        ("two\nlines\x1b[31m", "two lines [31m"),
        ("task-based and risk-free", "task-based and risk-free"),
        ("x" * 400, "x" * 299 + "…"),
        ("x" * 290 + CANARY, "x" * 290 + "[secret]"),
    ],
)
def test_texts_of_errors_are_clean_and_short(text: str, told: str) -> None:
    """Keys, and what looks like one, are blotted out before the text is cut to one line of 300 characters."""
    assert clean(text, (CANARY,)) == told


@pytest.mark.parametrize("url", ["http://me:pass@host/v1", "ftp://host/v1", "host/v1", "http://"])
def test_an_address_that_is_none_or_holds_a_password_is_refused(url: str) -> None:
    """Addresses are shown; passwords are not to stand in them."""
    with pytest.raises(InvalidSetting) as refused:
        Endpoint(url)
    assert "pass@" not in str(refused.value)


@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": ""}])
async def test_a_missing_key_is_said_by_its_variable(environ: dict[str, Any]) -> None:
    """Nothing is sent without the key, and the sentence names the variable to set."""
    book = ModelBook(environ=environ, patience=HASTY)
    with pytest.raises(ModelFailed, match="OPENAI_API_KEY is not set") as failed:
        await book.ask(request("openai:gpt-4o-mini"))
    assert (failed.value.code, failed.value.attempts) == ("model_not_authorized", ())
    assert book.known("openai:gpt-4o-mini").why == "The environment variable OPENAI_API_KEY is not set."
