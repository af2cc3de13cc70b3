"""Through the providers' own clients against a server that answers as the providers do."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from tests.models.asking import Heard, asked, request, result
from tests.models.conftest import CANARY, OpenBook
from tests.support.aimock import Aimock
from tollhouse.models.port import Model, ModelFailed

MODELS = ("openai:gpt-4o-mini", "anthropic:claude-haiku-4-5", "local:llama3")
on_every_api = pytest.mark.parametrize("model", MODELS)
streamed_or_whole = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@on_every_api
@streamed_or_whole
async def test_text_arrives_whole_and_in_pieces(
    aimock: Aimock, open_book: OpenBook, model: str, streamed: bool
) -> None:
    """The reply's text is what was said, and what streams in adds up to it."""
    aimock.say("The refund is on its way to you.", chunkSize=4)
    heard = Heard()
    reply = await open_book(aimock.url).ask(request(model), heard if streamed else None)
    assert (reply.text, reply.finish_reason, reply.model) == ("The refund is on its way to you.", "stop", model)
    assert len(heard.pieces) > 1 if streamed else not heard.pieces
    assert heard.text == (reply.text if streamed else "")
    assert reply.provider is None


@on_every_api
@streamed_or_whole
async def test_calls_arrive_with_their_arguments(
    aimock: Aimock, open_book: OpenBook, model: str, streamed: bool
) -> None:
    """Parallel calls come in order, with arguments as objects and no key yet: the run mints those."""
    calls = [{"name": "refund", "arguments": {"amount": amount}} for amount in (10, 20)]
    aimock.serve({"match": {}, "response": {"toolCalls": calls}})
    reply = await open_book(aimock.url).ask(request(model), Heard() if streamed else None)
    assert reply.finish_reason == "calls"
    assert [(ask.tool, ask.arguments, ask.key) for ask in reply.asks] == [
        ("refund", {"amount": 10}, ""),
        ("refund", {"amount": 20}, ""),
    ]


# case C92
@on_every_api
@streamed_or_whole
async def test_one_sending_is_one_attempt_with_its_tokens(
    aimock: Aimock, open_book: OpenBook, model: str, streamed: bool
) -> None:
    """One request answered at once has one attempt; its cost is known where the price is, and None elsewhere."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    usage |= {"input_tokens": 1000, "output_tokens": 100}
    aimock.serve({"match": {}, "response": {"content": "Done.", "usage": usage}})
    reply = await open_book(aimock.url).ask(request(model), Heard() if streamed else None)
    (attempt,) = reply.attempts
    assert len(aimock.requests()) == 1
    assert (attempt.model, attempt.error_code, attempt.error) == (model, None, None)
    assert (attempt.input_tokens, attempt.output_tokens) == (1000, 100)
    costs = {"openai": Decimal("0.00021"), "anthropic": Decimal("0.0015"), "local": None}
    assert attempt.cost == costs[model.partition(":")[0]]
    assert attempt.took_s > 0


@on_every_api
async def test_a_history_of_two_rounds_is_taken_and_answered(aimock: Aimock, open_book: OpenBook, model: str) -> None:
    """Each call goes back with exactly one result under an id that the provider takes."""
    aimock.say("Both are done.")
    rounds = (asked("r1:1.1", 10), result("r1:1.1", "ok"), asked("r1:2.1", 20), result("r1:2.1", "no", failed=True))
    reply = await open_book(aimock.url).ask(request(model, "Refund both", *rounds))
    assert reply.text == "Both are done."
    (entry,) = aimock.requests()
    calls, results = _ids(entry["body"])
    assert calls == results
    assert len(set(calls)) == 2


def _ids(body: Any) -> tuple[list[str], list[str]]:
    """Ids of calls and of results in a request as aimock keeps it, which is in OpenAI's words."""
    calls = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or []]
    results = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    return calls, results


@on_every_api
@pytest.mark.parametrize(
    ("status", "code", "sendings", "transient"),
    [
        (400, "model_refused_request", 1, False),
        (401, "model_not_authorized", 1, False),
        (403, "model_not_authorized", 1, False),
        (404, "model_unknown", 1, False),
        (408, "model_timeout", 2, True),
        (409, "model_server_error", 2, True),
        (429, "model_rate_limited", 2, True),
        (500, "model_server_error", 2, True),
        (503, "model_server_error", 2, True),
        (529, "model_server_error", 2, True),
    ],
)
@streamed_or_whole
async def test_each_status_has_one_code_and_only_transient_ones_are_sent_again(
    aimock: Aimock,
    open_book: OpenBook,
    model: str,
    status: int,
    code: str,
    sendings: int,
    transient: bool,
    streamed: bool,
) -> None:
    """Statuses become stable codes; each sending, and no other, is an attempt with its error."""
    error = {"message": f"no, because {CANARY}", "type": "some_error"}
    aimock.serve({"match": {}, "response": {"error": error, "status": status, "retryAfter": 0}})
    with pytest.raises(ModelFailed) as failed:
        await open_book(aimock.url).ask(request(model), Heard() if streamed else None)
    assert (failed.value.code, failed.value.transient) == (code, transient)
    assert [attempt.error_code for attempt in failed.value.attempts] == [code] * sendings
    assert len(aimock.requests()) == sendings
    assert f"HTTP {status}: no, because [secret]" in failed.value.cause


@on_every_api
async def test_an_output_schema_reaches_the_model(aimock: Aimock, open_book: OpenBook, model: str) -> None:
    """A schema goes along in the provider's own way where there is one."""
    aimock.say('{"ok": true}')
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    reply = await open_book(aimock.url).ask(request(model, output_schema=schema))
    assert reply.text == '{"ok": true}'


@on_every_api
async def test_half_a_stream_fails_without_being_asked_again(aimock: Aimock, open_book: OpenBook, model: str) -> None:
    """Text that was passed on is never said twice: the answer that broke off fails, transiently."""
    aimock.say("This sentence will never be finished", chunkSize=5, truncateAfterChunks=4, latency=20)
    heard = Heard()
    with pytest.raises(ModelFailed) as failed:
        await open_book(aimock.url).ask(request(model, fallback=("local:other",)), heard)
    assert (failed.value.code, failed.value.transient) == ("model_stream_cut", True)
    assert heard.text
    assert "This sentence will never be finished".startswith(heard.text)
    assert len(failed.value.attempts) == len(aimock.requests()) == 1


async def test_the_fallback_list_is_asked_in_order(aimock: Aimock, open_book: OpenBook) -> None:
    """What one model refuses, the next may answer; the reply says who did, and has every attempt."""
    refused = {"error": {"message": "no"}, "status": 400}
    busy = {"error": {"message": "busy"}, "status": 429, "retryAfter": 0}
    aimock.serve(
        {"match": {"model": "gpt-4o-mini"}, "response": refused},
        {"match": {"model": "claude-haiku-4-5"}, "response": busy},
        {"match": {"model": "llama3"}, "response": {"content": "I can."}},
    )
    reply = await open_book(aimock.url).ask(request(MODELS[0], fallback=(MODELS[1], "nobody:x", MODELS[2])), Heard())
    assert (reply.text, reply.model) == ("I can.", MODELS[2])
    codes = [(attempt.model, attempt.error_code) for attempt in reply.attempts]
    assert codes == [
        (MODELS[0], "model_refused_request"),
        (MODELS[1], "model_rate_limited"),
        (MODELS[1], "model_rate_limited"),
        (MODELS[2], None),
    ]


@on_every_api
async def test_many_requests_at_a_time_keep_to_themselves(aimock: Aimock, open_book: OpenBook, model: str) -> None:
    """One book serves a whole process: each request gets its own answer and streams its own text."""
    words = [f"word-{number:02}" for number in range(20)]
    aimock.serve(*({"match": {"userMessage": word}, "response": {"content": f"Heard {word}."}} for word in words))
    book: Model = open_book(aimock.url)
    heard = [Heard() for _word in words]
    asking = (book.ask(request(model, word), each) for word, each in zip(words, heard, strict=True))
    replies = await asyncio.gather(*asking)
    assert [reply.text for reply in replies] == [f"Heard {word}." for word in words]
    assert [each.text for each in heard] == [reply.text for reply in replies]
