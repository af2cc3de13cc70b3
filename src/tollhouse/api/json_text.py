"""JSON as it is read from requests and written to responses: strict in, never invalid out.

What a reader would have to guess is refused: a member that is given twice, NaN and infinities, a body that is no UTF-8.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from tollhouse.errors import InvalidRequest

JSON = "application/json"


def read_json(body: bytes) -> Any:
    """The value of a body. Raises :class:`InvalidRequest`, which repeats nothing of the body but a member's name."""
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is no UTF-8: byte {error.start} cannot be read.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"The body is no JSON: {error.msg} at {where}.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except ValueError as error:
        raise InvalidRequest(f"The body is no JSON that can be read: {error}.") from None


def write_json(value: Any) -> bytes:
    """The value as UTF-8. What no UTF-8 can hold (a lone surrogate in a result) is written as its escape."""
    text = _ENCODER.encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _ASCII_ENCODER.encode(value).encode()


class JSONAnswer(Response):
    """A response of one JSON document."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return write_json(content)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two members of one name a reader would keep one, and nobody would know which was meant."""
    whole = dict(pairs)
    if len(whole) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the member {next(n for n in names if names.count(n) > 1)[:40]!a} is given twice")
    return whole


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_no_number)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_ASCII_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"))
