"""A faulty receiver for tests: one process for each test process, empty and well-behaved for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tollhouse.testing.receiver import Receiver


@pytest.fixture(scope="session")
def receiver_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """The process behind `receiver`; tests use that instead."""
    with Receiver.start(tmp_path_factory.mktemp("receiver") / "book.jsonl") as receiver:
        yield receiver


@pytest.fixture
def receiver(receiver_process: Receiver) -> Receiver:
    """A receiver with an empty book; the test may kill or restart it."""
    if not receiver_process.running:
        receiver_process.restart()
    receiver_process.reset()
    return receiver_process
