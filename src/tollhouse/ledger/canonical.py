"""Canonical JSON: equal trees give equal bytes, on any machine and in any release.

``digest`` hashes these bytes to notice that a key came back with other arguments and to bind approvals, and the
events' hash chain is built on them; so what this module writes for a tree may never change.

It is RFC 8785 (keys sorted by UTF-16 code units, no white space, ECMAScript numbers, UTF-8) with two deviations,
made so that numbers which Python calls equal are written alike and none loses a digit:

* an integer of any size is written in full decimal, never by way of a float;
* a float without a fraction is written as the integer that it is: ``1.0`` as ``1``, ``-0.0`` as ``0``, ``1e21`` as
  ``1000000000000000000000``. RFC 8785 agrees below 2**53; above, it rounds to 17 digits or writes ``1e+21``.

NaN, infinity, lone surrogates, keys that are not strings and anything that is not JSON are refused by path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from tollhouse.ledger.compact import compact_encoder

JsonTree = dict[str, Any] | list[Any] | str | int | float | bool | None
"""A plain JSON tree; its members are JSON trees again."""

MAX_DEPTH = 320
"""Containers inside one another that :func:`canonical` follows. The codec admits 100 levels of a value and needs up
to three tree levels for one; the rest is room for an envelope. It also ends a structure that contains itself."""

ATOMS = frozenset({str, int, bool, type(None)})
"""Types that JSON says as they are, whatever their value. Floats are apart: NaN and infinity are not JSON."""

STR_ONLY = frozenset({str})

_encode = compact_encoder(ensure_ascii=False, allow_nan=False, sort_keys=True)


class Unencodable(ValueError):
    """A value has no encoding. ``path`` says where (``$.a[2]``), ``problem`` what is wrong, as a phrase."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


def canonical(tree: object) -> bytes:
    """The canonical bytes of a plain JSON tree (dict, list, str, int, float, bool, None, and subclasses of them).

    Trees that are equal in Python (``==``, so ``1`` and ``1.0``, keys in any order, shared objects or separate ones)
    give the same bytes. Raises :class:`Unencodable` naming the path of the first member that has no encoding.
    """
    try:
        if _is_plain(tree, MAX_DEPTH):
            return _encode(tree).encode()
    except (ValueError, RecursionError):
        pass  # a lone surrogate, a huge integer, a full stack: the careful way tells which, and where
    parts: list[str] = []
    steps: list[str | int] = []
    try:
        _write(tree, parts, steps)
    except RecursionError:
        raise Unencodable(json_path(steps), "is nested too deeply for the stack that is left") from None
    return "".join(parts).encode()


def json_path(steps: Iterable[str | int]) -> str:
    """A path for people and programs, ``$.orders[2]["odd key"]``: ASCII, long keys cut."""
    return "$" + "".join(map(_step_text, steps))


def int_text(number: int) -> str:
    """All decimal digits of an integer, also beyond the length at which Python refuses to convert it."""
    try:
        return int.__repr__(number)
    except ValueError:
        return str(Decimal(number))


def parse_int(text: str) -> int:
    """The inverse of :func:`int_text`."""
    try:
        return int(text)
    except ValueError:
        return int(Decimal(text))


def _is_plain(tree: Any, room: int) -> bool:
    """Whether the standard library's C encoder writes this tree canonically; cheap, and right when in doubt.

    It sorts by code point, which is the order of UTF-16 among ASCII keys, and turns other keys into strings. It writes
    floats by ``repr``, which is ECMAScript's form for a fraction in these bounds.
    """
    if not room:
        return False
    kind = type(tree)
    if kind is dict:
        if not (STR_ONLY.issuperset(map(type, tree)) and "".join(tree).isascii()):
            return False
        members: Iterable[Any] = tree.values()
    elif kind is list:
        members = tree
    else:
        return kind in ATOMS or (kind is float and 1e-4 <= abs(tree) < 1e16 and not tree.is_integer())
    if ATOMS.issuperset(map(type, members)):
        return True
    for member in members:  # noqa: SIM110 - a generator in all() would double the stack frames for each level
        if not _is_plain(member, room - 1):
            return False
    return True


def _write(tree: Any, parts: list[str], steps: list[str | int]) -> None:
    if isinstance(tree, str):
        parts.append(_string_text(tree, steps))
    elif tree is None or isinstance(tree, bool):
        parts.append({None: "null", True: "true", False: "false"}[tree])
    elif isinstance(tree, int):
        parts.append(int_text(tree))
    elif isinstance(tree, float):
        parts.append(_float_text(tree, steps))
    elif not isinstance(tree, (dict, list)):
        raise Unencodable(json_path(steps), f"is of type {type(tree).__name__}, which is not JSON")
    elif len(steps) >= MAX_DEPTH:
        raise Unencodable(json_path(steps), f"is nested more than {MAX_DEPTH} levels deep or contains itself")
    elif isinstance(tree, dict):
        _write_object(tree, parts, steps)
    else:
        _write_array(tree, parts, steps)


def _write_object(tree: dict[Any, Any], parts: list[str], steps: list[str | int]) -> None:
    for key in tree:
        if not isinstance(key, str):
            problem = f"has a key of type {type(key).__name__}; keys must be strings"
            raise Unencodable(json_path(steps), problem)
    opening = "{"
    steps.append("")
    for key in sorted(tree, key=_utf16_code_units):
        steps[-1] = key
        parts.append(f"{opening}{_string_text(key, steps)}:")
        _write(tree[key], parts, steps)
        opening = ","
    steps.pop()
    parts.append("}" if tree else "{}")


def _write_array(tree: list[Any], parts: list[str], steps: list[str | int]) -> None:
    opening = "["
    steps.append(0)
    for index, member in enumerate(tree):
        steps[-1] = index
        parts.append(opening)
        _write(member, parts, steps)
        opening = ","
    steps.pop()
    parts.append("]" if tree else "[]")


def _utf16_code_units(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _string_text(text: str, steps: Sequence[str | int]) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unencodable(json_path(steps), "holds a lone surrogate, which is not text") from None
    return _encode(text)


def _float_text(number: float, steps: Sequence[str | int]) -> str:
    if not math.isfinite(number):
        raise Unencodable(json_path(steps), f"is {float.__repr__(number)}, which is not a JSON number")
    if number.is_integer():
        return int_text(int(number))
    text = float.__repr__(number)
    digits, _, exponent = text.partition("e-")
    if not exponent:
        return text
    if int(exponent) <= 6:
        # ECMAScript turns to exponents two places later than Python does.
        return f"{Decimal(text):f}"
    return f"{digits}e-{int(exponent)}"


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if step.isascii() and step.isidentifier() and len(step) <= 60:
        return f".{step}"
    return f"[{json.dumps(step if len(step) <= 60 else step[:57] + '...')}]"
