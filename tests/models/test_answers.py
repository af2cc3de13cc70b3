"""Answers that are odd but answers: what a run makes of missing ids, broken arguments, silence and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.asking import Heard, asked, request, result
from tests.models.conftest import OpenBook
from tests.support.wild_provider import (
    Reply,
    call,
    chunk,
    completion,
    message,
    message_events,
    stream,
    whole,
    wild_provider,
)
from tollhouse.models.port import AssistantMessage, Message, ModelFailed, UserMessage, message_as_json, message_of

OPENAI, ANTHROPIC, LOCAL = "openai:gpt-4o-mini", "anthropic:claude-haiku-4-5", "local:llama3"

SHORT = {"max_tokens": 100}
"""Anthropic's client streams every answer that may be long; a short one comes whole."""


def openai_calls(*calls: dict[str, Any], streamed: bool, finish_reason: str = "tool_calls") -> Reply:
    """An answer of OpenAI's kind with these calls."""
    if not streamed:
        return whole(200, completion({"tool_calls": list(calls)}, finish_reason))
    deltas = [chunk({"tool_calls": [{"index": index, **each}]}) for index, each in enumerate(calls)]
    return stream([*deltas, chunk({}, finish_reason), "[DONE]"])


def anthropic_calls(*calls: dict[str, Any], streamed: bool) -> Reply:
    """An answer of Anthropic's kind with these calls: blocks with `name`, `input` and maybe `id`."""
    if not streamed:
        return whole(200, message(*({"type": "tool_use", **each} for each in calls), stop_reason="tool_use"))
    blocks = [
        (
            {"type": "tool_use", **each, "input": {}},
            {"type": "input_json_delta", "partial_json": json.dumps(each["input"])},
        )
        for each in calls
    ]
    return stream(message_events(*blocks, stop_reason="tool_use"))


streamed_or_whole = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


# case H05
@streamed_or_whole
@pytest.mark.parametrize("ids", [{}, {"id": None}, {"id": ""}, {"id": "same"}], ids=["none", "null", "empty", "same"])
@pytest.mark.parametrize("model", [OPENAI, LOCAL])
async def test_missing_and_repeated_ids_lose_no_call(
    open_book: OpenBook, model: str, ids: dict[str, Any], streamed: bool
) -> None:
    """Two calls are two calls whatever their ids, in one answer and over two rounds."""
    first = openai_calls(
        call("refund", '{"amount": 10}', **ids), call("refund", '{"amount": 20}', **ids), streamed=streamed
    )
    second = openai_calls(call("refund", '{"amount": 30}', **ids), streamed=streamed)
    async with wild_provider(first, second) as provider:
        book = open_book(provider.url)
        one = await book.ask(request(model), Heard() if streamed else None)
        two = await book.ask(request(model), Heard() if streamed else None)
    assert [ask.arguments for ask in one.asks] == [{"amount": 10}, {"amount": 20}]
    assert [ask.arguments for ask in two.asks] == [{"amount": 30}]


@pytest.mark.parametrize("ids", [("a", "b"), (None, None), ("a", "a"), ("a", None)])
@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("in_one_chunk", [True, False])
async def test_calls_of_a_stream_that_share_a_number_stay_apart(
    open_book: OpenBook, ids: tuple[str | None, ...], index: int | None, in_one_chunk: bool
) -> None:
    """Some servers give every call of a stream the same number; run together they would be a call of nobody."""
    calls = [
        {"index": index, **call("refund", json.dumps({"amount": amount}), id=given)} for amount, given in enumerate(ids)
    ]
    deltas = [calls] if in_one_chunk else [[each] for each in calls]
    chunks = [chunk({"tool_calls": each}) for each in deltas]
    async with wild_provider(stream([*chunks, chunk({}, "tool_calls"), "[DONE]"])) as provider:
        reply = await open_book(provider.url).ask(request(LOCAL), Heard())
    assert [(ask.tool, ask.arguments, ask.provider_id) for ask in reply.asks] == [
        ("refund", {"amount": amount}, given) for amount, given in enumerate(ids)
    ]


@pytest.mark.parametrize("again", [{"id": "a"}, {"id": ""}, {}])
@pytest.mark.parametrize("name", ["refund", "", None])
async def test_a_call_whose_name_comes_with_every_piece_is_one_call(
    open_book: OpenBook, again: dict[str, Any], name: str | None
) -> None:
    """Other servers repeat name and id with each piece of the arguments."""
    pieces = [call("refund", '{"amo', id="a"), call(name or "", 'unt": ', **again), call(name or "", "7}", **again)]
    chunks = [chunk({"tool_calls": [{"index": 0, **piece}]}) for piece in pieces]
    async with wild_provider(stream([*chunks, chunk({}, "tool_calls"), "[DONE]"])) as provider:
        reply = await open_book(provider.url).ask(request(LOCAL), Heard())
    assert [(ask.tool, ask.arguments) for ask in reply.asks] == [("refund", {"amount": 7})]


async def test_a_call_whose_name_comes_in_pieces_is_one_call(open_book: OpenBook) -> None:
    """A name is what its pieces add up to, as long as no arguments have begun."""
    pieces = [call("ref", "", id="a"), call("und", ""), call("", '{"amount": 7}')]
    chunks = [chunk({"tool_calls": [{"index": 0, **piece}]}) for piece in pieces]
    async with wild_provider(stream([*chunks, chunk({}, "tool_calls"), "[DONE]"])) as provider:
        reply = await open_book(provider.url).ask(request(LOCAL), Heard())
    assert [(ask.tool, ask.arguments) for ask in reply.asks] == [("refund", {"amount": 7})]


@streamed_or_whole
@pytest.mark.parametrize("ids", [{}, {"id": None}, {"id": ""}], ids=["none", "null", "empty"])
async def test_missing_ids_of_anthropic_lose_no_call(open_book: OpenBook, ids: dict[str, Any], streamed: bool) -> None:
    """An API of Anthropic's kind may leave ids out as well."""
    calls = [{"name": "refund", "input": {"amount": amount}, **ids} for amount in (10, 20)]
    async with wild_provider(anthropic_calls(*calls, streamed=streamed)) as provider:
        reply = await open_book(provider.url).ask(request(ANTHROPIC, settings=SHORT), Heard() if streamed else None)
    assert [(ask.arguments, ask.provider_id) for ask in reply.asks] == [({"amount": 10}, None), ({"amount": 20}, None)]


@streamed_or_whole
async def test_repeated_ids_of_anthropic_lose_no_call(open_book: OpenBook, streamed: bool) -> None:
    """Blocks that share an id are still two calls."""
    calls = [{"id": "toolu_1", "name": "refund", "input": {"amount": amount}} for amount in (10, 20)]
    async with wild_provider(anthropic_calls(*calls, streamed=streamed)) as provider:
        reply = await open_book(provider.url).ask(request(ANTHROPIC, settings=SHORT), Heard() if streamed else None)
    assert [ask.arguments for ask in reply.asks] == [{"amount": 10}, {"amount": 20}]


# case C35
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
async def test_ids_reused_across_rounds_go_back_as_pairs(open_book: OpenBook, model: str) -> None:
    """Whatever ids a provider used, each call goes back with its own result under an id of ours."""
    rounds: list[Message] = [
        asked("run:1.1", 10, provider_id="search:0"),
        result("run:1.1", "first"),
        asked("run:2.1", 20, provider_id="search:0"),
        result("run:2.1", "second"),
    ]
    good = completion({"content": "ok"}) if model == OPENAI else message({"type": "text", "text": "ok"})
    async with wild_provider(whole(200, good)) as provider:
        await open_book(provider.url).ask(request(model, "Go", *rounds, settings=SHORT))
    pairs = _pairs(provider.bodies[0]["messages"])
    assert [text for _id, text in pairs] == ["first", "second"]
    assert len({call_id for call_id, _text in pairs}) == 2


def _pairs(messages: list[Any]) -> list[tuple[str, str]]:
    """Each call's id with the text of the result that has it, in either API's words."""
    calls, results = [], {}
    for each in messages:
        calls += [one["id"] for one in each.get("tool_calls") or []]
        if each["role"] == "tool":
            results[each["tool_call_id"]] = each["content"]
        for block in each["content"] if isinstance(each["content"], list) else []:
            if block["type"] == "tool_use":
                calls.append(block["id"])
            if block["type"] == "tool_result":
                results[block["tool_use_id"]] = json.dumps(block["content"])
    return [(one, next(word for word in ("first", "second") if word in results[one])) for one in calls]


@streamed_or_whole
async def test_fifty_calls_in_one_answer_all_arrive(open_book: OpenBook, streamed: bool) -> None:
    """Nothing is dropped for being much; how much is too much is for the run's limits to say."""
    calls = [call("refund", json.dumps({"amount": amount}), id=f"c{amount}") for amount in range(50)]
    async with wild_provider(openai_calls(*calls, streamed=streamed)) as provider:
        reply = await open_book(provider.url).ask(request(OPENAI), Heard() if streamed else None)
    assert [ask.arguments for ask in reply.asks] == [{"amount": amount} for amount in range(50)]
    assert reply.asks[49].provider_id == "c49"


@streamed_or_whole
@pytest.mark.parametrize("raw", ['{"amount": 1', "[1]", '"x"', '{"amount": NaN}', "null", "{'amount': 1}", "[" * 9999])
async def test_arguments_that_are_no_object_are_kept_as_text(open_book: OpenBook, raw: str, streamed: bool) -> None:
    """Nobody guesses what was meant: the ask has no arguments, and the text for the record."""
    async with wild_provider(openai_calls(call("refund", raw, id="c"), streamed=streamed)) as provider:
        reply = await open_book(provider.url).ask(request(OPENAI), Heard() if streamed else None)
    (ask,) = reply.asks
    assert (ask.arguments, ask.raw, ask.tool) == (None, raw, "refund")


@pytest.mark.parametrize(("finish_reason", "arguments"), [("tool_calls", {}), ("length", None)])
async def test_no_arguments_are_an_empty_object_unless_the_answer_was_cut(
    open_book: OpenBook, finish_reason: str, arguments: dict[str, Any] | None
) -> None:
    """Silence says "no arguments", but not where the answer ended for its length in the middle of the call."""
    reply_with = openai_calls(call("refund", "", id="c"), streamed=False, finish_reason=finish_reason)
    async with wild_provider(reply_with) as provider:
        reply = await open_book(provider.url).ask(request(OPENAI))
    assert reply.asks[0].arguments == arguments


async def test_a_tool_that_was_never_offered_keeps_the_name_it_was_called_by(open_book: OpenBook) -> None:
    """The run refuses it; the adapter only tells what was asked."""
    async with wild_provider(openai_calls(call("rm_rf", "{}", id="c"), streamed=False)) as provider:
        reply = await open_book(provider.url).ask(request(OPENAI))
    assert reply.asks[0].tool == "rm_rf"


@pytest.mark.parametrize("content", [None, "", "  \n"])
@streamed_or_whole
async def test_an_empty_answer_is_an_error(open_book: OpenBook, content: str | None, streamed: bool) -> None:
    """Neither text nor a call is no answer; it was billed all the same."""
    deltas = [chunk({"content": content}), chunk({}, "stop"), "[DONE]"]
    reply = stream(deltas) if streamed else whole(200, completion({"content": content}))
    async with wild_provider(reply) as provider:
        with pytest.raises(ModelFailed) as failed:
            await open_book(provider.url).ask(request(OPENAI), Heard() if streamed else None)
    assert (failed.value.code, failed.value.transient) == ("model_answered_nothing", True)
    if not streamed:
        assert [attempt.output_tokens for attempt in failed.value.attempts] == [5, 5]
        assert all(attempt.cost for attempt in failed.value.attempts)


@streamed_or_whole
async def test_a_refusal_is_an_answer(open_book: OpenBook, streamed: bool) -> None:
    """A provider that declines has answered; asking again would get the same."""
    deltas = [chunk({"refusal": "I cannot."}), chunk({}, "stop"), "[DONE]"]
    reply_with = stream(deltas) if streamed else whole(200, completion({"refusal": "I cannot."}))
    async with wild_provider(reply_with) as provider:
        reply = await open_book(provider.url).ask(request(OPENAI), Heard() if streamed else None)
    assert (reply.finish_reason, reply.text) == ("refused", "I cannot.")


async def test_an_answer_cut_for_its_length_says_so(open_book: OpenBook) -> None:
    """The run decides whether half a text will do."""
    async with wild_provider(whole(200, completion({"content": "Half"}, "length"))) as provider:
        reply = await open_book(provider.url).ask(request(OPENAI))
    assert (reply.finish_reason, reply.text) == ("length", "Half")


async def test_texts_apart_stream_as_they_stand_in_the_whole(open_book: OpenBook) -> None:
    """What streams in adds up to the reply's text also when a call stands between two texts."""
    text = {"type": "text", "text": ""}
    use = {"type": "tool_use", "id": "t", "name": "refund", "input": {}}
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (text, {"type": "text_delta", "text": "Before."}),
        (use, {"type": "input_json_delta", "partial_json": "{}"}),
        (text, {"type": "text_delta", "text": "After."}),
    ]
    heard = Heard()
    async with wild_provider(stream(message_events(*blocks, stop_reason="tool_use"))) as provider:
        reply = await open_book(provider.url).ask(request(ANTHROPIC), heard)
    assert heard.text == reply.text
    assert "Before." in reply.text
    assert "After." in reply.text


THOUGHT = {"type": "thinking", "thinking": "Money matters.", "signature": "sig-123"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "refund", "input": {"amount": 1}}


async def test_signed_thoughts_go_back_to_who_signed_them_and_to_nobody_else(open_book: OpenBook) -> None:
    """A provider gets its own signatures back, with our ids in its calls; another gets text and calls alone."""
    thinking = whole(200, message(THOUGHT, USE, stop_reason="tool_use"))
    said, answer = message({"type": "text", "text": "ok"}), completion({"content": "ok"})
    async with wild_provider(thinking, whole(200, said), whole(200, answer)) as provider:
        book = open_book(provider.url)
        first = await book.ask(request(ANTHROPIC, settings=SHORT))
        kept = AssistantMessage(first.text, asked("r:1.1", 1).asks, first.provider)
        told = json.loads(json.dumps(message_as_json(kept)))
        history = (UserMessage("Go"), message_of(told), result("r:1.1", "done"))
        await book.ask(request(ANTHROPIC, *history, settings=SHORT))
        await book.ask(request(OPENAI, *history))
    _first, back, elsewhere = provider.bodies
    (thought, use) = back["messages"][1]["content"]
    assert (thought["thinking"], thought["signature"]) == ("Money matters.", "sig-123")
    assert use["id"] == back["messages"][2]["content"][0]["tool_use_id"] != "toolu_1"
    assert "sig-123" not in json.dumps(elsewhere)
    assert "Money matters." not in json.dumps(elsewhere)


async def test_a_schema_is_told_in_words_where_there_is_no_other_way(open_book: OpenBook) -> None:
    """An endpoint that takes no schemas, and a schema that is no object, go into the instructions."""
    async with wild_provider(whole(200, completion({"content": "[1]"}))) as provider:
        schema = {"type": "array", "items": {"type": "integer"}}
        await open_book(provider.url).ask(request(OPENAI, output_schema=schema))
    (body,) = provider.bodies
    assert "response_format" not in body
    assert json.dumps(schema, separators=(",", ":")) in json.dumps(body).replace('\\"', '"')


async def test_a_schema_of_an_object_goes_as_the_providers_own(open_book: OpenBook) -> None:
    """Where the provider can hold the model to a schema, it does."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    async with wild_provider(whole(200, completion({"content": '{"ok": true}'}))) as provider:
        await open_book(provider.url).ask(request(OPENAI, output_schema=schema))
    format_asked = provider.bodies[0]["response_format"]
    assert format_asked["type"] == "json_schema"
    assert format_asked["json_schema"]["schema"]["properties"]["ok"] == {"type": "boolean"}


async def test_settings_reach_the_model_and_unknown_ones_are_refused(open_book: OpenBook) -> None:
    """Neutral names become the provider's; what is not one of them is refused before anything is sent."""
    async with wild_provider(whole(200, completion({"content": "ok"}))) as provider:
        book = open_book(provider.url)
        await book.ask(request(OPENAI, settings={"temperature": 0.5, "max_tokens": 7}))
        with pytest.raises(ModelFailed, match="no model setting extra_headers") as failed:
            await book.ask(request(OPENAI, settings={"extra_headers": {"x": "y"}}))
    (body,) = provider.bodies
    assert (body["temperature"], body["max_completion_tokens"]) == (0.5, 7)
    assert (failed.value.code, failed.value.attempts) == ("model_refused_request", ())
