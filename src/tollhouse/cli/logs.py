"""Log lines on stderr: one event a line, with stable fields; the worker's are what its operator watches."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

LOGGER = "tollhouse"


@contextmanager
def logging_to_stderr(level: int, *, as_json: bool = False) -> Iterator[None]:
    """Write the log lines of Tollhouse from ``level`` on to stderr, and nothing of it anywhere else meanwhile."""
    logger = logging.getLogger(LOGGER)
    before, propagated = logger.level, logger.propagate
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagated


def event_of(record: logging.LogRecord) -> dict[str, Any]:
    """The line as fields: ``at``, ``level``, ``event`` and the event's own. A line without an event has ``message``."""
    fields: Any = getattr(record, "tollhouse", None)
    message = record.getMessage()
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, Any] = {"at": at, "level": record.levelname.lower()}
    if fields is not None:
        return {**line, "event": message.partition(" ")[0], **fields}
    return {**line, "event": "log", "logger": record.name, "message": message}


class TextLines(logging.Formatter):
    """``2026-11-29T18:00:01.120Z doubt_appeared key=order-7:refund tool=issue_credit``."""

    def format(self, record: logging.LogRecord) -> str:
        at = event_of(record)["at"]
        text = f"{at} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = event_of(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
