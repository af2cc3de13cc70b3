"""Whatever a run recorded, what goes to a provider is a history that it takes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from tests.models.asking import REFUND, asked, request, result
from tollhouse.models.convert import answer_of, history_for, names_for
from tollhouse.models.names import WireIds, WireNames
from tollhouse.models.port import Ask, AssistantMessage, Message, ToolMessage, ToolSpec, UserMessage

TAKEN = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def history(*messages: Message | str, **more: Any) -> list[ModelMessage]:
    """The messages as they go to the provider layer."""
    made = request("openai:m", *messages, **more) if messages else request("openai:m", messages=())
    return history_for(made, names_for(made), "openai")


def assert_taken(written: list[ModelMessage]) -> None:
    """The strictest provider's rules: turns begin and end with us, ids are its kind, calls and results are pairs, and
    no text is empty."""
    assert isinstance(written[0], ModelRequest)
    assert isinstance(written[-1], ModelRequest)
    met: set[str] = set()
    for index, message in enumerate(written):
        if isinstance(message, ModelRequest):
            assert message.parts
            said = [part.content for part in message.parts if isinstance(part, UserPromptPart | ToolReturnPart)]
            assert all(isinstance(text, str) and text.strip() for text in said)
            continue
        assert all(part.content.strip() for part in message.parts if isinstance(part, TextPart))
        ids = [call.tool_call_id for call in message.tool_calls]
        answer = written[index + 1]
        results = [part.tool_call_id for part in answer.parts if isinstance(part, ToolReturnPart)]
        assert results == ids
        assert [part.tool_call_id for part in answer.parts[: len(ids)] if isinstance(part, ToolReturnPart)] == ids
        assert all(TAKEN.fullmatch(one) and len(one) <= 40 for one in ids)
        assert all(TAKEN.fullmatch(call.tool_name) and isinstance(call.args, dict) for call in message.tool_calls)
        assert met.isdisjoint(ids)
        assert len(set(ids)) == len(ids)
        met.update(ids)


_keys = st.sampled_from(["r:1.1", "r:1.2", "r:2.1", "", "a b/ü" * 30])
_tools = st.sampled_from(["refund", "crm.refund", "crm_refund", "a/b", "x" * 90])
_asks = st.builds(Ask, _keys, _tools, st.none() | st.just({"amount": 1}), raw=st.none() | st.just('{"amount'))
_messages: st.SearchStrategy[Message] = (
    st.builds(UserMessage, st.sampled_from(["Hi", "", " "]))
    | st.builds(ToolMessage, _keys, _tools, st.sampled_from(["done", "", "\n"]), st.booleans())
    | st.builds(AssistantMessage, st.sampled_from(["Well", ""]), st.lists(_asks, max_size=3).map(tuple))
)


@given(st.lists(_messages, max_size=8))
def test_any_history_at_all_is_taken(messages: list[Message]) -> None:
    """Results missing, doubled, late or of nobody; keys that come again; words left out: it is taken."""
    made = request("openai:m", messages=tuple(messages))
    assert_taken(history_for(made, names_for(made), "openai"))


def test_blank_text_among_thoughts_does_not_go_back() -> None:
    """A model that thinks puts blank text before its calls; its provider wants the thought back, not the blank."""
    parts: list[ModelResponsePart] = [
        ThinkingPart("Hm.", signature="s", provider_name="openai"),
        TextPart("\n\n"),
        ToolCallPart("refund", {}),
    ]
    answer = answer_of(ModelResponse(parts=parts), names_for(request("openai:m")), "openai")
    ask = replace(answer.asks[0], key="r:1.1")
    written = history("Go", AssistantMessage(answer.text, (ask,), answer.provider), result("r:1.1", "done"))
    assert_taken(written)
    response = written[1]
    assert isinstance(response, ModelResponse)
    assert [type(part) for part in response.parts] == [ThinkingPart, ToolCallPart]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_call_that_was_cut_before_its_arguments_has_none(reason: Any) -> None:
    """An answer that ended while a call was written, for its length or its contents, is no call without arguments."""
    response = ModelResponse(parts=[ToolCallPart("refund", "")], finish_reason=reason)
    (ask,) = answer_of(response, names_for(request("openai:m")), "openai").asks
    assert (ask.arguments, ask.raw) == (None, "")


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    """A result that was never recorded is told as such, and as a failure."""
    written = history("Go", asked("r:1.1", 1), "And?")
    (result_part, said) = written[2].parts
    assert isinstance(result_part, ToolReturnPart)
    assert (result_part.content, result_part.outcome) == ("No result was recorded for this call.", "failed")
    assert isinstance(said, UserPromptPart)


def test_results_stand_in_the_order_of_their_calls_before_what_was_said() -> None:
    """Results that came in another order, and after words, go first and in order."""
    both = AssistantMessage("", (Ask("r:1.1", "refund", {}), Ask("r:1.2", "refund", {})))
    written = history("Go", both, "Hurry", result("r:1.2", "two"), result("r:1.1", "one"))
    assert [part.content for part in written[2].parts if not isinstance(part, str)] == ["one", "two", "Hurry"]  # type: ignore[union-attr]


def test_a_result_of_no_open_call_is_told_in_words() -> None:
    """What came late is not lost: the model hears it as something said."""
    written = history("Go", asked("r:1.1", 1), result("r:1.1", "first"), result("r:1.1", "again"))
    assert [str(part.content) for part in written[2].parts] == ["first", "Result of refund: again"]  # type: ignore[union-attr]


def test_no_messages_are_still_a_question() -> None:
    """A history of nothing goes out with a word in it, since providers refuse an empty one."""
    assert_taken(history())


def test_arguments_that_could_not_be_read_go_back_as_an_object() -> None:
    """The model sees what it wrote, within bounds, in a form that every provider takes back."""
    broken = AssistantMessage("", (Ask("r:1.1", "refund", None, raw="{" * 5000),))
    written = history("Go", broken, result("r:1.1", "unreadable", failed=True))
    assert isinstance(written[1], ModelResponse)
    assert written[1].tool_calls[0].args == {"unreadable_arguments": "{" * 2000}


@pytest.mark.parametrize(
    "provider",
    [
        {},
        {"adapter": "other", "origin": "openai", "response": {}},
        {"adapter": "pydantic-ai", "origin": "openai"},
        {"adapter": "pydantic-ai", "origin": "openai", "response": {"kind": "response", "parts": [{"part_kind": "x"}]}},
        {"adapter": "pydantic-ai", "origin": "openai", "response": {"kind": "response", "parts": []}},
        {"adapter": "pydantic-ai", "origin": "openai", "response": {"kind": "request", "parts": []}},
    ],
)
def test_opaque_parts_that_cannot_be_read_are_left_out(provider: dict[str, Any]) -> None:
    """Another release's or adapter's JSON is no reason to fail: text and calls say enough."""
    message = AssistantMessage("Well", asked("r:1.1", 1).asks, provider)
    written = history("Go", message, result("r:1.1", "done"))
    assert_taken(written)
    assert isinstance(written[1], ModelResponse)
    assert (written[1].text, len(written[1].tool_calls)) == ("Well", 1)


def test_the_same_history_is_written_the_same_each_time() -> None:
    """Providers' caches recognise a history by its beginning."""
    messages = ("Go", asked("r:1.1", 1), result("r:1.1", "done"))
    once, again = history(*messages), history(*messages)
    assert [str(each.parts).split("timestamp")[0] for each in once] == [
        str(each.parts).split("timestamp")[0] for each in again
    ]
    assert WireIds().mint("r:1.1") == WireIds().mint("r:1.1")


@given(st.lists(st.text(max_size=70)))
def test_names_of_tools_are_taken_and_lead_back(tools: list[str]) -> None:
    """Each tool has its own name on the wire, and each name its tool."""
    names = WireNames(tools)
    wire = {tool: names.wire(tool) for tool in tools}
    assert len(set(wire.values())) == len(wire)
    for tool, name in wire.items():
        assert TAKEN.fullmatch(name)
        assert names.tool(name) == tool
        assert name == tool or not TAKEN.fullmatch(tool)


def test_a_dotted_tool_is_asked_for_and_answered_under_its_own_name() -> None:
    """Names that a provider refuses are spelled otherwise on the wire alone."""
    dotted = ToolSpec("crm.refund", "", REFUND.json_schema)
    plain = ToolSpec("crm_refund", "", REFUND.json_schema)
    names = names_for(request("openai:m", tools=(dotted, plain)))
    assert (names.wire("crm.refund"), names.wire("crm_refund")) == ("crm_refund_2", "crm_refund")
    assert names.tool("crm_refund_2") == "crm.refund"
