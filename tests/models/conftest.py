"""A book whose names lead to a server of the test, with keys that no real provider knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tollhouse.models.book import ModelBook
from tollhouse.models.provider import Endpoint
from tollhouse.models.retry import Patience

CANARY = "sk-canary-9f8e7d6c5b4a3210"
"""The key of every provider here; nobody may ever see it but the provider."""

HASTY = Patience(attempts=2, wait_s=0.001, longest_wait_s=0.2)
"""Sends again almost at once; what is answered at all has time enough on a busy machine."""

OpenBook = Callable[..., ModelBook]


@pytest.fixture
async def open_book() -> AsyncIterator[OpenBook]:
    """`open_book(url)`: a book whose `openai`, `anthropic` and `local` are all at that server."""
    books: list[ModelBook] = []

    def _open(url: str = "http://127.0.0.1:9", **more: Any) -> ModelBook:
        endpoints = {
            "openai": Endpoint(f"{url}/v1", "OPENAI_API_KEY", sold_by="openai"),
            "anthropic": Endpoint(url, "ANTHROPIC_API_KEY", api="anthropic", sold_by="anthropic"),
            "local": Endpoint(f"{url}/v1", "LOCAL_KEY"),
            **more.pop("endpoints", {}),
        }
        environ = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "LOCAL_KEY"), CANARY)
        books.append(ModelBook(**{"endpoints": endpoints, "environ": environ, "patience": HASTY, **more}))
        return books[-1]

    yield _open
    for book in books:
        await book.close()
