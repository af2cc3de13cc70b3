"""The reference of models leaves nothing out."""

from __future__ import annotations

import dataclasses

from tollhouse.models.failures import CODES
from tollhouse.models.port import RequestAttempt
from tollhouse.models.provider import Endpoint
from tollhouse.models.retry import Patience
from tollhouse.models.script import Turn
from tollhouse.models.wire import SETTINGS
from tools.check_docs import DOCS, left_out

PAGE = DOCS / "reference" / "models.md"


def test_the_reference_tells_of_every_code_field_and_setting() -> None:
    """What users can write, read or meet has its place in the page."""
    fields = [field.name for kind in (Endpoint, Patience, RequestAttempt, Turn) for field in dataclasses.fields(kind)]
    assert not list(left_out("word", [*CODES, *fields, *SETTINGS], PAGE))


def test_the_reference_says_of_every_code_what_the_code_says() -> None:
    """Whether a code is sent again, and what it means, stands in one place and is copied to the page."""
    page = PAGE.read_text(encoding="utf-8")
    for code, (transient, meaning) in CODES.items():
        assert f"| `{code}` | {'yes' if transient else 'no'} | {meaning}" in page


def test_the_reference_says_the_defaults_of_patience() -> None:
    """Figures in the page are those in force."""
    page = PAGE.read_text(encoding="utf-8")
    for field in dataclasses.fields(Patience):
        assert f"| `{field.name}` | {field.default:g} |" in page
