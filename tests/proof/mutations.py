"""Every way to change a bundle in one place: each with the name of the record that a verifier must blame."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from tollhouse.runs.proof.bundle import Bundle
from tollhouse.runs.proof.records import event_name

Path = tuple[str | int, ...]
SINGULAR = {"runs": "run", "calls": "call", "children": "child", "definitions": "definition", "blobs": "blob"}
NAMED_BY = {"runs": "id", "calls": "key", "children": "id", "definitions": "digest", "blobs": "digest"}


class Mutation(NamedTuple):
    """``record``: what must be named; ``where``: the place, for a test's message."""

    where: str
    record: str
    bundle: Bundle


def mutations_of(bundle: Bundle) -> Iterator[Mutation]:
    """Every value turned into another one, every member and item dropped, doubled, added or moved."""
    for path in places(bundle["contents"], ("contents",)):
        value = at(bundle, path)
        if not isinstance(value, dict | list):
            yield mutated(bundle, path, f"changed {path}", lambda holder, name, was: put(holder, name, other(was)))
            yield mutated(bundle, path, f"nothing at {path}", lambda holder, name, was: put(holder, name, blank(was)))
        if len(path) > 2:
            yield mutated(bundle, path, f"strange {path}", lambda holder, name, was: put(holder, name, strange(was)))
            yield mutated(bundle, path, f"dropped {path}", lambda holder, name, _was: holder.__delitem__(name))
        if isinstance(value, dict) and len(path) > 2:
            yield mutated(bundle, (*path, "more"), f"added to {path}", lambda holder, name, _was: put(holder, name, 1))
        if isinstance(path[-1], int) and len(path) > 2:
            yield mutated(bundle, path, f"doubled {path}", lambda holder, name, was: holder.insert(name, was))
            if path[-1] > 0:
                yield mutated(bundle, path, f"moved {path}", lambda holder, name, was: swap(holder, name))


def places(tree: Any, path: Path) -> Iterator[Path]:
    """The path of every value in a tree, itself included."""
    yield path
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, member in members:
        yield from places(member, (*path, name))


def mutated(bundle: Bundle, path: Path, where: str, change: Any) -> Mutation:
    """One mutation at a place, with the record that stands there in the sound bundle."""
    copied = copy.deepcopy(bundle)
    holder = at(copied, path[:-1])
    known = isinstance(holder, list) or path[-1] in holder
    change(holder, path[-1], holder[path[-1]] if known else None)
    return Mutation(where, record_at(bundle, path), copied)


def record_at(bundle: Bundle, path: Path) -> str:
    """The record that a place belongs to; that of a whole stream is its head, of all events the first."""
    contents = bundle["contents"]
    if len(path) < 3:
        return "bundle"
    _, member, number = path[:3]
    if member == "about":
        return "about"
    item = contents[member][number]
    if member != "streams":
        return f"{SINGULAR[str(member)]} {item[NAMED_BY[str(member)]]}"
    if len(path) > 3 and path[3] == "events":
        return event_name(item["stream"], item["events"][path[4] if len(path) > 4 else 0]["seq"])
    return f"head {item['stream']}"


def at(tree: Any, path: Path) -> Any:
    """What stands at a place."""
    for name in path:
        tree = tree[name]
    return tree


def put(holder: Any, name: Any, value: Any) -> None:
    """Set a member or an item."""
    holder[name] = value


def swap(holder: list[Any], number: int) -> None:
    """Let two neighbours change places."""
    holder[number - 1], holder[number] = holder[number], holder[number - 1]


def other(value: Any) -> Any:
    """A value of the same kind that is not this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        middle = len(value) // 2
        return value[:middle] + ("b" if value[middle : middle + 1] == "a" else "a") + value[middle + 1 :]
    return 1


def strange(value: Any) -> Any:
    """A value of a kind that has no place there."""
    return {"a": 1} if isinstance(value, list) else [1]


def blank(value: Any) -> Any:
    """A value that says nothing, or something where nothing was said."""
    return "" if value is None or isinstance(value, int) else None
