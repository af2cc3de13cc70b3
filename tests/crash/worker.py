"""The process that crashes: one house, steered by JSON lines on its standard input.

Started by :class:`tests.crash.process.Worker`. A line ``{"id", "verb", "args", "kwargs"}`` calls that method of the
house (of what it is part of, for a verb such as ``runs.start``); the answer carries the id. ``{"reached"}`` is written
before anything happens at a crash point, ``{"event"}`` for each thing the house tells. It ends when its input does.
"""

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from tollhouse import did_not_happen, happened
from tollhouse.errors import TollhouseError
from tollhouse.gate.outcome import Outcome
from tollhouse.gate.view import RecordedCall
from tollhouse.runs.view import RunView
from tollhouse.testing.crashpoints import Crash, Crashes, crashing_house


def say(**line: Any) -> None:
    """One line, in one write, so that it is out before whatever comes next."""
    os.write(1, json.dumps(line, default=str).encode() + b"\n")


def load(name: str) -> Any:
    """The factory of tools named ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


async def main(spec: dict[str, Any]) -> None:
    """Open the house, obey, close it."""
    crashes = Crashes(*(Crash(**each) for each in spec["crashes"]), announce=lambda point: say(reached=point))
    tools = [each for name, options in spec["tools"].items() for each in load(name)(reach=crashes.reach, **options)]
    async with crashing_house(spec["store"], crashes, tools=tools, on_event=tell, **spec["settings"]) as house:
        say(ready=house._core.owner_id)
        await obey(house)
    say(closed=True)


def tell(kind: str, facts: Mapping[str, Any]) -> None:
    """Pass on what the house tells."""
    say(event=kind, facts=dict(facts))


async def obey(target: Any) -> None:
    """Carry out each line beside the others, until there are no more. ``target``: whose methods the verbs are."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(answer(target, **json.loads(line)))


async def answer(target: Any, id: int, verb: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """One line's answer."""
    try:
        value = await attrgetter(verb)(target)(*(decoded(each) for each in args), **kwargs)
        say(id=id, value=shown(value))
    except TollhouseError as error:
        say(id=id, error=error.as_dict())
    except Exception as error:
        say(id=id, error={"code": type(error).__name__, "cause": str(error), "sent": None})


def decoded(argument: Any) -> Any:
    """An answer of a person or callback from its JSON form; anything else as it is."""
    match argument:
        case {"happened": value}:
            return happened(value)
        case {"did_not_happen": evidence}:
            return did_not_happen(evidence)
    return argument


def shown(value: Any) -> Any:
    """What the parent needs of an answer."""
    if isinstance(value, Outcome):
        return {"state": value.state, "value": value.value, "replayed": value.replayed, "attempts": value.attempts}
    if isinstance(value, RecordedCall):
        return {"state": value.state, "result": value.result, "version": value.version}
    if isinstance(value, RunView):
        return {"id": value.id, "state": value.state, "started_before": value.started_before}
    return value


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
