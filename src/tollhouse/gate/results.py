"""Results: kept losslessly and rebuilt from what is kept, so that the first caller and every replay get the same."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tollhouse.errors import ResultPurged
from tollhouse.ledger.codec import NotStorable, dumps, from_tree, loads, to_tree
from tollhouse.ledger.record import CallRecord, Stored
from tollhouse.ledger.store import Blob, Store

INLINE_BYTES_MOST = 64 * 1024
"""A body longer than this is kept as a blob, out of the row."""


class Unavailable:
    """Stands for a value that the ledger could not keep: the effect stands, its result is not on record.

    ``problem``: ``not_storable`` or ``no_space``; ``detail``: a bounded description of the value.
    """

    def __init__(self, problem: str, detail: str | None) -> None:
        self.problem, self.detail = problem, detail

    def __repr__(self) -> str:
        return f"<result {self.problem}: {self.detail}>"


class Kept(NamedTuple):
    """A result as stored, its body where that is kept apart, and the value that the caller gets."""

    stored: Stored
    blobs: tuple[Blob, ...]
    value: Any


def keep(value: Any, adapter: TypeAdapter[Any]) -> Kept:
    """Encode a tool's result and rebuild it. Never raises: what cannot be kept is described instead.

    A result that is not what the tool's return type says is kept as it came, marked ``not_as_declared``.
    """
    try:
        text = dumps(to_tree(value, lossless=True))
    except NotStorable as problem:
        detail = f"{problem.type_name} at {problem.path}: {problem.safe_repr}"
        return Kept(Stored(problem="not_storable", detail=detail), (), Unavailable("not_storable", detail))
    plain = from_tree(loads(text))
    problem_name = detail_text = None
    try:
        rebuilt = _typed(plain, adapter)
    except Exception as error:
        rebuilt, problem_name, detail_text = plain, "not_as_declared", _first_mistake(error)
    if len(text) <= INLINE_BYTES_MOST:
        return Kept(Stored(text, None, len(text), problem_name, detail_text), (), rebuilt)
    data = text.encode()
    blob = Blob(sha256(data).hexdigest(), data)
    return Kept(Stored(None, blob.digest, len(data), problem_name, detail_text), (blob,), rebuilt)


def _typed(plain: Any, adapter: TypeAdapter[Any]) -> Any:
    """The declared type from its kept form, which names a model's fields, not their aliases."""
    try:
        return adapter.validate_python(plain, by_alias=True, by_name=True)
    except ValidationError:
        # A type that takes nothing but its own instances was one before: an enum, say, is kept as its value.
        return adapter.validate_python(plain, strict=False, by_alias=True, by_name=True)


def _first_mistake(error: Exception) -> str:
    """What is wrong with a result, without its values. A type's own validator may raise anything."""
    if not isinstance(error, ValidationError):
        return f"the type's validator raised {type(error).__name__}"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "result"
    return f"{where}: {first['msg']}"


def without_body(stored: Stored) -> Stored:
    """The same result with no room for its body."""
    return Stored(size=stored.size, problem="no_space", detail="The store had no room for the result.")


async def rebuild(record: CallRecord, store: Store, adapter: TypeAdapter[Any] | None) -> Any:
    """The value a caller gets. ``adapter`` None (the tool is gone): builtins. Raises :class:`ResultPurged`."""
    stored = record.result
    if stored is None:
        return None
    if stored.problem == "purged":
        raise ResultPurged("The result of this call was purged.", key=record.key)
    if stored.problem in ("not_storable", "no_space"):
        return Unavailable(stored.problem, stored.detail)
    text = stored.text
    if text is None:
        data = await store.blob(record.tenant, stored.blob or "")
        if data is None:
            raise ResultPurged("The body of this call's result is not in the store any more.", key=record.key)
        text = data.decode()
    return built(text, adapter)


def built(text: str, adapter: TypeAdapter[Any] | None) -> Any:
    """The value in ``text``, in the declared type where it fits, as builtins where it does not (any more)."""
    value = from_tree(loads(text))
    if adapter is None:
        return value
    try:
        return _typed(value, adapter)
    except Exception:
        return value
