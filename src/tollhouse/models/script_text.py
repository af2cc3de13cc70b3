"""The few words of a scripted model's texts: ``{{ results.0.id }}`` and ``{{ input }}``, and nothing more.

``scripted.py`` fills them in. A text that is one placeholder and nothing else becomes the value itself, of its type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tollhouse.models.port import Message, ToolMessage, UserMessage

_PLACEHOLDER = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


class NoSuchValue(Exception):
    """A placeholder names what is not there."""


def values_of(messages: Sequence[Message]) -> dict[str, Any]:
    """What placeholders may name: ``input``, what was said last; ``results``, what its calls brought, in order.

    A result that is JSON is its value, any other its text.
    """
    said = max((at for at, message in enumerate(messages) if isinstance(message, UserMessage)), default=-1)
    results = [_value(message.text) for message in messages[said + 1 :] if isinstance(message, ToolMessage)]
    return {"input": messages[said].text if said >= 0 else "", "results": results}


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with its placeholders filled in, at any depth. Raises :class:`NoSuchValue`."""
    if isinstance(template, str):
        return _filled(template, values)
    if isinstance(template, Mapping):
        return {key: fill(each, values) for key, each in template.items()}
    if isinstance(template, list | tuple):
        return [fill(each, values) for each in template]
    return template


def as_text(value: Any) -> str:
    """A value within a text: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _filled(text: str, values: Mapping[str, Any]) -> Any:
    whole = _PLACEHOLDER.fullmatch(text.strip())
    if whole:
        return _look_up(whole[1], values)
    return _PLACEHOLDER.sub(lambda found: as_text(_look_up(found[1], values)), text)


def _look_up(path: str, values: Mapping[str, Any]) -> Any:
    value: Any = values
    for step in path.split("."):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise NoSuchValue(path) from None
    return value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
