"""What a script is: its turns, as YAML or JSON says them, read and checked before anything runs.

``book.py`` reads scripts with it; ``scripted.py`` plays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from tollhouse.errors import InvalidSetting
from tollhouse.models.failures import CODES
from tollhouse.models.port import Json

_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a script.

    ``say``: its text, streamed word by word. ``stream``: its text instead, in the pieces it comes in. ``call``: the
    calls it asks for. ``fail``: the code it fails with instead; ``times``: how often in one process before it answers;
    None: always. ``when``: it is taken whenever the last message has this text in it, whatever its place. ``wait_s``:
    time it takes. ``tokens``: input and output, for limits; ``cost``: US dollars.
    """

    say: str = ""
    stream: tuple[str, ...] = ()
    call: tuple[Json, ...] = ()
    fail: str | None = None
    times: int | None = None
    when: str | None = None
    wait_s: float = 0.0
    tokens: tuple[int, int] = (0, 0)
    cost: Decimal = Decimal(0)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "say": (str,),
    "stream": (list, tuple),
    "call": (list, tuple),
    "fail": (str,),
    "times": (int,),
    "when": (str,),
    "wait_s": (int, float),
    "tokens": (list, tuple),
    "cost": (str, int, float),
}
_ANSWERS = frozenset({"say", "stream", "call", "fail"})


def turns_of(script: object, name: str) -> tuple[Turn, ...]:
    """The turns of a script: a list of turns, or a mapping with ``turns``; a text alone is a turn that says it.

    Raises :class:`~tollhouse.errors.InvalidSetting` that names the turn, counted from 1.
    """
    listed = script.get("turns") if isinstance(script, Mapping) else script
    if not isinstance(listed, list | tuple) or not listed:
        raise InvalidSetting(f"The script {name!r} is no list of turns.", remedy="Write turns such as `- say: Hello.`")
    return tuple(_turn(each, f"Turn {number} of the script {name!r}") for number, each in enumerate(listed, start=1))


def _turn(given: object, where: str) -> Turn:
    if isinstance(given, str):
        return Turn(say=given)
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"{where} is neither a text nor a mapping.")
    for name, value in given.items():
        if name not in _KINDS:
            raise InvalidSetting(f"{where} has {name!r}.", remedy=f"Known: {', '.join(_KINDS)}.")
        if not isinstance(value, _KINDS[name]) or isinstance(value, bool):
            raise InvalidSetting(f"{where} has a {name} of the wrong kind.")
    if "say" in given and "stream" in given:
        raise InvalidSetting(f"{where} has both say and stream.", remedy="Give its text once.")
    if not _ANSWERS & set(given):
        raise InvalidSetting(f"{where} says nothing.", remedy="Give it say, stream, call or fail.")
    _check_answer(given, where)
    _check_figures(given, where)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if "cost" in values:
        values["cost"] = Decimal(str(values["cost"]))
    return Turn(**values)


def _check_answer(given: Mapping[str, Any], where: str) -> None:
    if "fail" in given and given["fail"] not in CODES:
        raise InvalidSetting(f"{where} fails with an unknown code.", remedy=f"Known: {', '.join(CODES)}.")
    for call in given.get("call", ()):
        if not isinstance(call, Mapping) or not isinstance(call.get("tool"), str) or set(call) - {"tool", "arguments"}:
            raise InvalidSetting(f"{where} has a call that is not {{tool, arguments}}.")
        if not isinstance(call.get("arguments", {}), Mapping | str):
            raise InvalidSetting(f"{where} has a call whose arguments are neither a mapping nor a text.")
    if not all(isinstance(piece, str) for piece in given.get("stream", ())):
        raise InvalidSetting(f"{where} has a piece of stream that is no text.")


def _check_figures(given: Mapping[str, Any], where: str) -> None:
    tokens = given.get("tokens", (0, 0))
    if len(tokens) != 2 or not all(type(count) is int and count >= 0 for count in tokens):
        raise InvalidSetting(f"{where} has tokens that are not [input, output].")
    if not 0 <= given.get("wait_s", 0) <= _LONGEST_WAIT_S:
        raise InvalidSetting(f"{where} has a wait_s that is not 0 to {_LONGEST_WAIT_S:g} seconds.")
    if given.get("times", 1) < 1:
        raise InvalidSetting(f"{where} has times below 1.")
    if not _is_cost(given.get("cost", 0)):
        raise InvalidSetting(f"{where} has a cost that is no sum of dollars.")


def _is_cost(given: str | float) -> bool:
    try:
        cost = Decimal(str(given))
    except InvalidOperation:
        return False
    return cost.is_finite() and cost >= 0
