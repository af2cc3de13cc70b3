"""Providers that break off, fall silent, talk nonsense or point elsewhere: bounded, coded, never heard twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.models.asking import Heard, request
from tests.models.conftest import CANARY, HASTY, OpenBook
from tests.support.wild_provider import (
    HANG_UP,
    SILENCE,
    Reply,
    chunk,
    completion,
    message_events,
    stream,
    usage_chunk,
    whole,
    wild_provider,
)
from tollhouse.errors import InvalidSetting
from tollhouse.models.port import ModelFailed
from tollhouse.models.retry import Patience

OPENAI, ANTHROPIC = "openai:gpt-4o-mini", "anthropic:claude-haiku-4-5"
on_both_apis = pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
streamed_or_whole = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])

HALF_WHOLE = Reply(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{"id": "c", "cho')
TEXT = ({"type": "text", "text": ""}, {"type": "text_delta", "text": "Half"})
DONE = "[DONE]"

SOON_TIRED = replace(HASTY, read_s=0.3)
"""For servers that say nothing."""


# case C64
@on_both_apis
@streamed_or_whole
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (HANG_UP, "model_stream_cut"),
        (SILENCE, "model_timeout"),
        (HALF_WHOLE, "model_stream_cut"),
        (whole(200, "<html>sign in</html>"), "model_answer_invalid"),
        (whole(200, ["no", "answer"]), "model_answer_invalid"),
        (whole(502, "<html>bad gateway</html>"), "model_server_error"),
    ],
    ids=["hangs up", "says nothing", "half a body", "a page", "other JSON", "a gateway's page"],
)
async def test_a_broken_answer_ends_in_bounded_time_with_its_code(
    open_book: OpenBook, model: str, streamed: bool, reply: Reply, code: str
) -> None:
    """Nothing waits for ever: every way of not answering has a code, and is tried again within bounds."""
    async with wild_provider(reply) as provider:
        with pytest.raises(ModelFailed) as failed:
            patience = SOON_TIRED if reply is SILENCE else HASTY
            await open_book(provider.url, patience=patience).ask(request(model), Heard() if streamed else None)
    if streamed and code == "model_answer_invalid":
        # A stream's reader skips what are no events, so for it the page was a stream without an end.
        assert failed.value.code in (code, "model_stream_cut")
    else:
        assert failed.value.code == code
    assert failed.value.transient
    assert len(failed.value.attempts) == len(provider.requests) == 2
    assert all(attempt.error and attempt.input_tokens is None for attempt in failed.value.attempts)


@on_both_apis
async def test_nobody_listening_is_unreachable(open_book: OpenBook, model: str) -> None:
    """A connection that cannot be made has its own code: nothing was asked."""
    with pytest.raises(ModelFailed) as failed:
        await open_book().ask(request(model))
    assert (failed.value.code, failed.value.transient) == ("model_unreachable", True)
    assert "No connection could be made." in failed.value.cause


@on_both_apis
async def test_a_stream_that_falls_silent_ends_at_the_total_time(open_book: OpenBook, model: str) -> None:
    """The time for the whole ends what the time between bytes lets pass."""
    events = [chunk({"content": "Half"})] if model == OPENAI else message_events(TEXT, stop_reason=None)
    patience = Patience(attempts=1, read_s=60, total_s=0.3)
    async with wild_provider(stream(events, then_silent=True)) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url, patience=patience).ask(request(model), Heard())
    assert failed.value.code == "model_timeout"


@pytest.mark.parametrize(
    ("model", "events"),
    [
        (OPENAI, [chunk({"role": "assistant"}), chunk({"content": "Half"}), usage_chunk(1000, 100), DONE]),
        (ANTHROPIC, message_events(TEXT, stop_reason=None)),
    ],
    ids=["openai", "anthropic"],
)
async def test_a_stream_without_a_finish_reason_is_cut_and_billed(
    open_book: OpenBook, model: str, events: list[Any]
) -> None:
    """A stream that ends politely but without a reason is no answer; what the provider counted is billed."""
    heard = Heard()
    async with wild_provider(stream(events)) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request(model), heard)
    (attempt,) = failed.value.attempts
    assert (failed.value.code, heard.text) == ("model_stream_cut", "Half")
    assert attempt.input_tokens == (1000 if model == OPENAI else 10)
    assert attempt.cost is not None
    assert attempt.cost > Decimal(0)


async def test_a_long_answer_that_comes_as_a_stream_unasked_for_needs_its_reason_too(open_book: OpenBook) -> None:
    """Anthropic's client streams long answers by itself, and takes one that just ends for whole."""
    async with wild_provider(stream(message_events(TEXT, stop_reason=None))) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request(ANTHROPIC))
    assert failed.value.code == "model_stream_cut"
    assert [attempt.input_tokens for attempt in failed.value.attempts] == [10, 10]


async def test_a_stream_cut_before_any_text_is_asked_for_again(open_book: OpenBook) -> None:
    """While nobody has heard anything, sending again repeats nothing."""
    cut, good = stream([chunk({"role": "assistant"})]), stream([chunk({"content": "Yes."}), chunk({}, "stop"), DONE])
    heard = Heard()
    async with wild_provider(cut, good) as provider:
        reply = await open_book(provider.url).ask(request(OPENAI), heard)
    assert (reply.text, heard.text) == ("Yes.", "Yes.")
    assert [attempt.error_code for attempt in reply.attempts] == ["model_stream_cut", None]


async def test_an_error_inside_a_stream_has_the_code_of_its_kind(open_book: OpenBook) -> None:
    """Providers report overload also after the stream has begun."""
    events = [*message_events(stop_reason=None), ("error", {"type": "error", "error": {"type": "overloaded_error"}})]
    async with wild_provider(stream(events)) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request(ANTHROPIC), Heard())
    assert (failed.value.code, len(provider.requests)) == ("model_server_error", 2)


@streamed_or_whole
async def test_an_answer_that_ends_for_an_error_is_none(open_book: OpenBook, streamed: bool) -> None:
    """Gateways end an answer with the reason "error" when who is behind them failed."""
    reply = whole(200, completion({"content": None}, "error"))
    if streamed:
        reply = stream([chunk({"role": "assistant"}), chunk({}, "error"), DONE])
    async with wild_provider(reply) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request("local:m"), Heard() if streamed else None)
    assert (failed.value.code, len(provider.requests)) == ("model_server_error", 2)


async def test_retry_after_is_waited_for(open_book: OpenBook) -> None:
    """A provider that asks for a pause within the bounds gets it before the next sending."""
    busy = whole(429, {"error": {"message": "slow down"}}, {"retry-after-ms": "150"})
    async with wild_provider(busy, whole(200, completion({"content": "Now."}))) as provider:
        loop = asyncio.get_running_loop()
        before = loop.time()
        reply = await open_book(provider.url).ask(request(OPENAI))
    assert reply.text == "Now."
    assert loop.time() - before >= 0.15


async def test_a_pause_beyond_the_bounds_is_not_waited_for(open_book: OpenBook) -> None:
    """A provider that wants an hour is not asked again; the run learns how long, and the fallback list is asked."""
    busy = whole(429, {"error": {"message": "slow down"}}, {"retry-after": "3600"})
    async with wild_provider(busy) as provider:
        book = open_book(provider.url)
        with pytest.raises(ModelFailed) as failed:
            await book.ask(request(OPENAI, fallback=("local:llama3",)))
    assert (failed.value.code, failed.value.transient, failed.value.retry_after_s) == ("model_rate_limited", True, 3600)
    assert [attempt.model for attempt in failed.value.attempts] == [OPENAI, "local:llama3"]


async def test_a_used_up_quota_is_not_waited_for(open_book: OpenBook) -> None:
    """A quota comes with the status of a rate limit, but no pause mends it."""
    error = {"message": "You exceeded your current quota", "code": "insufficient_quota", "type": "insufficient_quota"}
    async with wild_provider(whole(429, {"error": error})) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request(OPENAI))
    assert (failed.value.code, failed.value.transient) == ("model_rate_limited", False)
    assert len(provider.requests) == 1


@on_both_apis
async def test_a_redirect_is_not_followed(open_book: OpenBook, model: str) -> None:
    """A key does not travel to where a provider points."""
    async with wild_provider(whole(200, completion({"content": "stolen"}))) as elsewhere:
        away = whole(307, {}, {"location": f"{elsewhere.url}/v1/chat/completions"})
        async with wild_provider(away) as provider:
            with pytest.raises(ModelFailed):
                await open_book(provider.url).ask(request(model))
    assert not elsewhere.requests


async def test_an_error_page_is_told_in_300_characters(open_book: OpenBook) -> None:
    """A provider may answer with a whole page; the attempt keeps a line of it."""
    async with wild_provider(whole(500, "x" * 10_000 + CANARY)) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request(OPENAI))
    assert len(failed.value.cause) <= 300
    assert all(len(attempt.error or "") <= 300 for attempt in failed.value.attempts)


@on_both_apis
async def test_what_a_listener_raises_ends_the_request(open_book: OpenBook, model: str) -> None:
    """The reader's own error comes back as it is, and nothing is sent again."""
    events = [chunk({"content": "Hi"})] if model == OPENAI else message_events(TEXT)

    async def gone(piece: str) -> None:
        raise TimeoutError("the reader went away")

    async with wild_provider(stream(events)) as provider:
        with pytest.raises(TimeoutError, match="the reader went away"):
            await open_book(provider.url).ask(request(model), gone)
    assert len(provider.requests) == 1


@streamed_or_whole
async def test_a_cancelled_request_ends_at_once(open_book: OpenBook, streamed: bool) -> None:
    """Cancelling is not a failure to try again after."""
    async with wild_provider(SILENCE) as provider:
        asking = asyncio.create_task(open_book(provider.url).ask(request(OPENAI), Heard() if streamed else None))
        await provider.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert len(provider.requests) == 1


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"attempts": 11}, {"read_s": 0}, {"total_s": float("inf")}])
def test_patience_without_bounds_is_refused(bad: dict[str, Any]) -> None:
    """Every time is finite and every number of sendings small."""
    with pytest.raises(InvalidSetting, match=next(iter(bad))):
        Patience(**bad)
