"""The messages of a run as AG-UI has them, for the snapshots of its streams.

Ids are made of the journal's numbers and the calls' keys, so that they are the same in every stream of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


class Transcript:
    """What was said in a run so far. ``known``: what the client has said it has; None: nothing."""

    def __init__(self, run_id: str, known: list[dict[str, Any]] | None) -> None:
        self._run_id, self.is_all_ours = run_id, known is None
        self._messages: dict[str, dict[str, Any]] = {each["id"]: each for each in known or ()}
        self._ours: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All of them, in order; none before this run's model has said anything that the client may lack."""
        if not self._ours:
            return []
        return list(self._messages.values())

    def begin(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Take up what the run was started with, unless the client said it."""
        if not self.is_all_ours:
            return
        for number, message in enumerate(messages, start=1):
            if message["role"] != "tool":
                self._add({"id": f"{self._run_id}:in.{number}", "role": message["role"], "content": message["text"]})

    def answer(self, message_id: str, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Take up what the model said; the calls that it asks for."""
        calls = [
            {"id": ask["key"], "type": "function", "function": {"name": ask["tool"], "arguments": _arguments(ask)}}
            for ask in message["asks"]
        ]
        said: dict[str, Any] = {"id": message_id, "role": "assistant"}
        if message["text"] or not calls:
            said["content"] = message["text"]
        if calls:
            said["toolCalls"] = calls
        self._add(said)
        return calls

    def result(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Take up what came of a call, as a message."""
        message = {
            "id": f"{result['key']}:result",
            "role": "tool",
            "toolCallId": result["key"],
            "content": result["text"],
        }
        self._add(message)
        return message

    def asked(self, key: str) -> tuple[str, Any]:
        """The tool and the arguments of a call that was asked for."""
        for message in reversed(self._ours):
            for call in message.get("toolCalls", ()):
                if call["id"] == key:
                    return call["function"]["name"], json.loads(call["function"]["arguments"])
        return "a call", None

    def _add(self, message: dict[str, Any]) -> None:
        self._ours.append(message)
        self._messages.setdefault(message["id"], message)


def _arguments(ask: Mapping[str, Any]) -> str:
    """As JSON text, also where the model sent none."""
    given = ask["arguments"]
    return json.dumps({"$raw": ask.get("raw")} if given is None else given)
