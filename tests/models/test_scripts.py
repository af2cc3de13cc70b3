"""Scripted models: the same answer each time, found by the request alone."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.models.asking import Heard, asked, request, result
from tests.models.conftest import HASTY
from tollhouse.errors import InvalidSetting
from tollhouse.models.book import ModelBook, Script
from tollhouse.models.port import Ask, AssistantMessage, ModelFailed, ModelReply, ModelRequest

REFUNDS: list[Any] = [
    {"say": "Looking it up.", "call": [{"tool": "find_order", "arguments": {"order": "{{ input }}"}}]},
    {"call": [{"tool": "refund", "arguments": {"amount": "{{ results.0.paid }}", "note": "for {{results.0.id}}"}}]},
    "Refunded {{ results.0.paid }}: {{ results.1 }}.",
]


def book(script: Script, **more: Any) -> ModelBook:
    """A book with one script, called `play`."""
    return ModelBook(scripts={"play": script}, patience=HASTY, **more)


def play(*messages: Any, **more: Any) -> ModelRequest:
    """A request to that script."""
    return request("scripted:play", *messages, **more)


async def test_turns_follow_each_other_and_use_what_calls_brought() -> None:
    """Placeholders are filled with what was said and with results; one alone keeps its type."""
    house = book(REFUNDS)
    first = await house.ask(play("o-7"))
    assert (first.text, first.finish_reason) == ("Looking it up.", "calls")
    assert first.asks == (Ask("", "find_order", {"order": "o-7"}),)
    found = (asked("r:1.1", 1), result("r:1.1", '{"id": "o-7", "paid": 25}'))
    second = await house.ask(play("o-7", *found))
    assert second.asks[0].arguments == {"amount": 25, "note": "for o-7"}
    done = (asked("r:2.1", 25), result("r:2.1", "it is done"))
    third = await house.ask(play("o-7", *found, *done))
    assert (third.text, third.finish_reason) == ("Refunded 25: it is done.", "stop")


async def test_the_key_says_which_turn_it_is() -> None:
    """A run's turn outranks the history, which may hold other runs of a thread."""
    reply = await book(["one", "two", "three"]).ask(play("Go", key="run-1:2"))
    assert reply.text == "two"


async def test_another_process_goes_on_in_the_same_place() -> None:
    """Nothing is remembered between requests: a new book gives the same turn."""
    asked_again = play("o-7", key="run-1:1")
    assert (await book(REFUNDS).ask(asked_again)).asks == (await book(REFUNDS).ask(asked_again)).asks


async def test_a_turn_with_when_is_taken_whenever_its_words_come() -> None:
    """Words in the last message outrank the place in the list, and take no place in it."""
    house = book([{"when": "STOP", "say": "Stopped."}, "one", "two"])
    assert (await house.ask(play("please stop now", key="r:2"))).text == "Stopped."
    assert (await house.ask(play("go on", key="r:2"))).text == "two"


@pytest.mark.parametrize(
    ("turn", "pieces"),
    [
        ({"stream": ["Re", "fun", "ded"]}, ["Re", "fun", "ded"]),
        ({"stream": ["{{ results }}", " of ", "{{ input }}"]}, ["[]", " of ", "Hello"]),
        ({"say": "All is well"}, ["All ", "is ", "well"]),
    ],
)
async def test_text_streams_in_pieces(turn: dict[str, Any], pieces: list[str]) -> None:
    """Pieces as the script has them, or word by word; they add up to the text."""
    heard = Heard()
    reply = await book([turn]).ask(play(), heard)
    assert heard.pieces == pieces
    assert reply.text == "".join(pieces)


async def test_a_turn_that_fails_for_a_while_is_asked_again() -> None:
    """A transient failure is retried as a provider's would be, and each sending is an attempt."""
    reply = await book([{"fail": "model_rate_limited", "times": 1, "say": "Now."}]).ask(play())
    assert reply.text == "Now."
    assert [attempt.error_code for attempt in reply.attempts] == ["model_rate_limited", None]


async def test_a_turn_that_fails_for_good_leads_to_the_fallback_list() -> None:
    """Scripts can be fallbacks and have them."""
    house = ModelBook(scripts={"play": [{"fail": "model_not_authorized"}], "other": ["I can."]}, patience=HASTY)
    reply = await house.ask(play(fallback=("scripted:other",)))
    assert (reply.text, reply.model, len(reply.attempts)) == ("I can.", "scripted:other", 2)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{ results.-1.id }}", "o-8"),
        ("{{results.0}}", '{"id": "o-7", "paid": [1, null]}'),
        ("paid {{ results.0.paid.0 }} of {{ results.0.paid }}", "paid 1 of [1, null]"),
        ("{{ input }} and {braces} {{ }}", "second and {braces} {{ }}"),
    ],
)
async def test_placeholders_reach_into_results_since_the_last_words(template: str, filled: str) -> None:
    """Results count from what was said last, from either end; what is no placeholder stays as it is."""
    earlier = ("first", asked("r:1.1", 1), result("r:1.1", '{"id": "o-6"}'))
    both = AssistantMessage("", (Ask("s:1.1", "refund", {}), Ask("s:1.2", "refund", {})))
    now = ("second", both, result("s:1.1", '{"id": "o-7", "paid": [1, null]}'), result("s:1.2", '{"id": "o-8"}'))
    reply = await book([template]).ask(play(*earlier, *now, key="s:1"))
    assert reply.text == filled


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (["one"], "no turn for this request"),
        (["one", "{{ results.4.id }}"], "results.4.id, which is not there"),
        (["one", "{{ nonsense }}"], "nonsense, which is not there"),
    ],
)
async def test_a_script_that_cannot_go_on_says_why(script: list[Any], cause: str) -> None:
    """A mistake in a script fails its request for good."""
    with pytest.raises(ModelFailed, match=cause) as failed:
        await book(script).ask(play(key="r:2"))
    assert (failed.value.code, failed.value.transient) == ("model_refused_request", False)


async def test_a_script_may_cost_something() -> None:
    """Limits on tokens and cost can be tried without a provider; what is not said is nothing."""
    house = book([{"say": "a", "tokens": [100, 20], "cost": "0.05"}, "b"])
    (paid,) = (await house.ask(play(key="r:1"))).attempts
    (free,) = (await house.ask(play(key="r:2"))).attempts
    assert (paid.input_tokens, paid.output_tokens, paid.cost) == (100, 20, Decimal("0.05"))
    assert (free.input_tokens, free.output_tokens, free.cost) == (0, 0, Decimal(0))


async def test_a_call_may_have_broken_arguments() -> None:
    """Arguments given as text stand for what a model wrote that is no object."""
    reply = await book([{"call": [{"tool": "refund", "arguments": '{"amount'}]}]).ask(play())
    assert reply.asks == (Ask("", "refund", None, raw='{"amount'),)


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        ("Hello", "Hello", 0),
        ([{"tool": "refund", "arguments": {"amount": 1}}], "", 1),
        ([Ask("", "refund", {"amount": 1})], "", 1),
        (ModelReply("Both", (Ask("", "refund", {}),), "calls", "", ()), "Both", 1),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_answers_with_a_text_calls_or_a_reply(
    said: Any, text: str, calls: int, is_async: bool
) -> None:
    """Each kind of answer of a function becomes a reply of its name, with one attempt."""

    def at_once(asked_for: ModelRequest) -> Any:
        return said

    async def later(asked_for: ModelRequest) -> Any:
        return said

    heard = Heard()
    reply = await book(later if is_async else at_once).ask(play(), heard)
    assert (reply.text, heard.text, len(reply.asks), reply.model) == (text, text, calls, "scripted:play")
    assert len(reply.attempts) == 1


async def test_a_function_may_fail_as_a_model_does() -> None:
    """The failure a function raises is treated as a provider's."""
    left = [ModelFailed("model_timeout", "too slow", transient=True)]

    def once_slow(asked_for: ModelRequest) -> str:
        if left:
            raise left.pop()
        return "ok"

    reply = await book(once_slow).ask(play())
    assert [attempt.error_code for attempt in reply.attempts] == ["model_timeout", None]


async def test_a_waiting_turn_can_be_cancelled() -> None:
    """Time that a script takes is time in which its run may be killed."""
    asking = asyncio.create_task(book([{"say": "late", "wait_s": 60}]).ask(play()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("play.yaml", "- say: From a file.\n"),
        ("play.yml", "turns:\n  - From a file.\n"),
        ("play.json", '["From a file."]'),
    ],
)
async def test_a_script_may_stand_in_a_file(tmp_path: Path, name: str, text: str) -> None:
    """Files are found in the book's folder, in YAML or JSON."""
    (tmp_path / name).write_text(text)
    house = ModelBook(base=tmp_path)
    assert house.known(f"scripted:{name}")
    assert (await house.ask(request(f"scripted:{name}"))).text == "From a file."


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ([], "no list of turns"),
        ({"turn": []}, "no list of turns"),
        ([7], "Turn 1 .* neither a text nor a mapping"),
        (["a", {"sya": "b"}], "Turn 2 .* has 'sya'"),
        ([{"say": 7}], "wrong kind"),
        ([{"when": "x"}], "says nothing"),
        ([{"fail": "model_sad"}], "unknown code"),
        ([{"call": [{"arguments": {}}]}], "not {tool, arguments}"),
        ([{"call": [{"tool": "x", "arguments": [1]}]}], "neither a mapping nor a text"),
        ([{"stream": [1]}], "no text"),
        ([{"stream": ["a"], "say": "a"}], "both say and stream"),
        ([{"say": "x", "tokens": [1]}], "tokens"),
        ([{"say": "x", "wait_s": True}], "wrong kind"),
        ([{"say": "x", "cost": "dear"}], "cost"),
        ([{"say": "x", "cost": "-1"}], "cost"),
        ([{"say": "x", "wait_s": -1}], "wait_s"),
        ([{"fail": "model_timeout", "times": 0}], "times"),
    ],
)
def test_a_script_with_a_mistake_is_refused_with_its_turn(script: Any, cause: str) -> None:
    """Mistakes are found when the book is made, not in the middle of a run."""
    with pytest.raises(InvalidSetting, match=cause):
        book(script)


def test_a_file_that_is_no_script_is_not_known(tmp_path: Path) -> None:
    """What cannot be read is said of the name, in a sentence."""
    (tmp_path / "bad.yaml").write_text("- [unclosed")
    house = ModelBook(base=tmp_path)
    assert house.known("scripted:bad.yaml").why == "The script 'bad.yaml' is not readable as JSON or YAML."
    assert house.known("scripted:none.yaml").why == "There is no script 'none.yaml'."
    (tmp_path / "image.yaml").write_bytes(b"\x89PNG\xff\xfe")
    assert house.known("scripted:image.yaml").why == "The script 'image.yaml' is not readable as JSON or YAML."


async def test_function_may_fail_with_a_word_of_its_own() -> None:
    """A code that no provider has is the function's to choose; it reaches the run as it is."""

    def broken(_request: ModelRequest) -> str:
        raise ModelFailed("mill_stopped", "The mill stands still.", transient=False)

    with pytest.raises(ModelFailed) as failed:
        await ModelBook(scripts={"play": broken}).ask(play())
    assert (failed.value.code, failed.value.cause) == ("mill_stopped", "scripted:play: The mill stands still.")


async def test_call_that_a_script_fills_with_no_object_is_one_of_no_arguments() -> None:
    """What a placeholder brings in may be a list or a number, as what a model writes may be."""
    turn = {"call": [{"tool": "{{ results.0 }}", "arguments": "{{ results }}"}]}
    reply = await book([turn]).ask(play("Go", asked("r:1.1", 1), result("r:1.1", "7"), key="r:1"))
    assert [(ask.tool, ask.arguments, ask.raw) for ask in reply.asks] == [("7", None, "[7]")]
