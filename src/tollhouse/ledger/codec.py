"""Values as JSON trees and back: one marked form, for the arguments of a call and for its result.

``digest.encode_arguments`` encodes arguments with it, the gate keeps results in it, and replay decodes them again.
The two directions differ in what they owe:

* **Arguments** are what JSON says, the same from Python as over HTTP: a date is its ISO 8601 string, a tuple an array.
  What JSON has no word for is refused, naming the field, since two unlike calls must never look alike.
* **Results** are kept without loss (``lossless=True``): a value of a built-in type comes back equal and of the same
  type. Enums, pydantic models, dataclasses and URLs are kept in their plain Python form; the contract's result type
  builds them again from it.

The marked form is an object with one key, ``{"$bytes": "aGk="}``. A key of the user's that starts with ``$`` gets one
``$`` more, so a marker never means anything else. ``encodings`` is the table of all types, by example.
"""

from __future__ import annotations

import json
import math
import reprlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import Url

from tollhouse.errors import InvalidArguments
from tollhouse.ledger.canonical import ATOMS, STR_ONLY, JsonTree, Unencodable, canonical, json_path, parse_int
from tollhouse.ledger.compact import compact_encoder
from tollhouse.ledger.scalars import SCALARS, Scalar

MAX_DEPTH: Final = 100
"""Containers inside one another that a value may have; more is refused, as is one that contains itself."""

_PLAIN: Final = ATOMS | {float}
_BY_TYPE: Final[dict[type, Scalar]] = {scalar.kind: scalar for scalar in SCALARS}


class NotStorable(Unencodable):
    """A result, or a part of it at ``path``, has no lossless encoding.

    ``problem`` says why, as a phrase; ``type_name`` and ``safe_repr`` (at most 500 characters, printable whatever the
    object does) describe the part, so that a record can keep at least that.
    """

    def __init__(self, path: str, problem: str, *, type_name: str, safe_repr: str) -> None:
        super().__init__(path, problem)
        self.type_name = type_name
        self.safe_repr = safe_repr


class Unreadable(ValueError):
    """A tree is not one that this release's :func:`to_tree` writes: damaged, or written by a newer release."""


def to_tree(value: object, *, lossless: bool) -> JsonTree:
    """Encode a value as a new JSON tree that shares no container with it.

    Without ``lossless`` (arguments) raises :class:`InvalidArguments` naming path and type, never the value. Lone
    surrogates pass here; ``canonical`` refuses them. With ``lossless`` (results) raises :class:`NotStorable` and
    nothing else, whatever the objects inside do when they are read.
    """
    walk = _Walk(lossless=lossless)
    try:
        tree: JsonTree = value.copy() if type(value) is dict and _is_flat(value) else walk.encode(value)
    except (InvalidArguments, NotStorable):
        raise
    except RecursionError:
        walk.refuse("is nested too deeply for the stack that is left", value)
    except Exception as error:
        # Foreign code runs while a value is read: properties, serialisers, a dict that another thread changes.
        raise walk.refusal(f"could not be read ({type(error).__name__})", value) from error
    return tree


def from_tree(tree: JsonTree) -> Any:
    """Decode what :func:`to_tree` made, in either mode, into new containers.

    Raises :class:`Unreadable` for anything else.
    """
    try:
        return _decode(tree)
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"The stored value cannot be decoded ({type(error).__name__}).") from error


def dumps(tree: JsonTree) -> str:
    """The tree as compact ASCII JSON, which any store's text column holds: no NUL, no lone surrogate as such."""
    try:
        return _encode(tree)
    except ValueError:
        # An integer of more digits than Python converts to decimal at once; hexadecimal has no such bound.
        return _encode(_with_marked_ints(tree))


def loads(text: str) -> JsonTree:
    """Parse what :func:`dumps` or ``canonical`` wrote: integers exact, floats to the last bit.

    Raises ``json.JSONDecodeError`` for anything else.
    """
    tree: JsonTree
    try:
        tree, end = _scan(text, 0)
    except (ValueError, StopIteration):
        # Perhaps an integer of more digits than Python converts at once; an error of syntax comes again.
        return json.loads(text, parse_int=parse_int)  # type: ignore[no-any-return]
    return tree if end == len(text) else _DECODER.decode(text)


def invalid_argument(path: str, problem: str) -> InvalidArguments:
    """The error for an argument that JSON cannot say; ``problem`` is a phrase that does not show the value."""
    return InvalidArguments(f"The argument at {path} {problem}.", path=path)


_encode: Final = compact_encoder(allow_nan=False)
_DECODER: Final = json.JSONDecoder()
_scan: Final[Callable[[str, int], tuple[Any, int]]] = vars(_DECODER)["scan_once"]
"""Without the white space around a text, which is never there."""


def _is_flat(value: dict[Any, Any]) -> bool:
    """Whether a dict is its own encoding: the common case, decided without a Python step for each member."""
    return (
        ATOMS.issuperset(map(type, value.values()))
        and STR_ONLY.issuperset(map(type, value))
        and "$" not in "".join(value)
    )


class _Walk:
    """One encoding. ``steps`` and ``inside`` say where it stands: the path, and the containers around it."""

    __slots__ = ("inside", "lossless", "steps")

    def __init__(self, *, lossless: bool) -> None:
        self.lossless = lossless
        self.steps: list[str | int] = []
        self.inside: list[object] = []

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is dict:
            return self._mapping(value, value)
        if kind is list:
            return self._sequence(value)
        if kind is float:
            return self._float(value)
        if kind is tuple:
            return {"$tuple": self._sequence(value)} if self.lossless else self._sequence(value)
        if kind is set or kind is frozenset:
            return self._set(value, f"${kind.__name__}")
        scalar = _BY_TYPE.get(kind)
        return self._other(value) if scalar is None else self._scalar(scalar, value)

    def refusal(self, problem: str, value: object) -> InvalidArguments | NotStorable:
        path = json_path(self.steps)
        if not self.lossless:
            return invalid_argument(path, problem)
        return NotStorable(path, problem, type_name=_type_name(value), safe_repr=_safe_repr(value))

    def refuse(self, problem: str, value: object) -> NoReturn:
        raise self.refusal(problem, value)

    def _enter(self, container: object) -> None:
        if len(self.inside) >= MAX_DEPTH:
            if any(container is outer for outer in self.inside):
                self.refuse("contains itself", container)
            self.refuse(f"is nested more than {MAX_DEPTH} levels deep", container)
        self.inside.append(container)

    def _mapping(self, owner: object, members: Mapping[Any, Any]) -> dict[str, Any]:
        if not STR_ONLY.issuperset(map(type, members)):
            if not all(isinstance(key, str) for key in members):
                return self._odd_mapping(owner, members)
            members = {str.__str__(key): member for key, member in members.items()}
        self._enter(owner)
        tree = {}
        self.steps.append("")
        for key, member in members.items():
            self.steps[-1] = key
            tree["$" + key if key[:1] == "$" else key] = self.encode(member)
        self.steps.pop()
        self.inside.pop()
        return tree

    def _odd_mapping(self, owner: object, members: Mapping[Any, Any]) -> dict[str, Any]:
        if not self.lossless:
            odd = next(key for key in members if not isinstance(key, str))
            self.refuse(f"has a key of type {_type_name(odd)}; keys must be strings", owner)
        self._enter(owner)
        pairs = []
        self.steps.append("")
        for key, member in members.items():
            self.steps[-1] = key if type(key) in (str, int) else _safe_repr(key)
            pairs.append([self.encode(key), self.encode(member)])
        self.steps.pop()
        self.inside.pop()
        if not _decode_apart(key for key, _ in pairs):
            self.refuse("has keys that are no longer keys, or no longer different, in their plain form", owner)
        return {"$dict": pairs}

    def _sequence(self, members: Iterable[Any]) -> list[Any]:
        self._enter(members)
        trees = []
        self.steps.append(0)
        for index, member in enumerate(members):
            self.steps[-1] = index
            trees.append(self.encode(member))
        self.steps.pop()
        self.inside.pop()
        return trees

    def _set(self, members: Iterable[Any], marker: str) -> Any:
        """Sorted by encoding, since equal sets may come in any order.

        A set of models is kept as the list of their plain forms, which its type turns into a set again.
        """
        trees = sorted(self._sequence(members), key=dumps if self.lossless else _canonical_order)
        return {marker: trees} if self.lossless and _decode_apart(trees) else trees

    def _float(self, value: float) -> Any:
        if math.isfinite(value):
            return value
        if self.lossless:
            return {"$float": repr(value)}
        raise self.refusal(f"is {value!r}, which is not a JSON number", value)

    def _scalar(self, scalar: Scalar, value: Any) -> Any:
        if self.lossless:
            return {scalar.marker: scalar.write(value)}
        if scalar.argument is None:
            self._refuse_type(value)
        try:
            return scalar.argument(value)
        except ValueError as error:
            raise self.refusal(str(error), value) from None

    def _other(self, value: Any) -> Any:
        """Values of composite types, then subclasses of what has an encoding of its own."""
        if isinstance(value, Enum):
            return self.encode(value.value)
        if isinstance(value, BaseModel):
            return self._model(value)
        if is_dataclass(value) and not isinstance(value, type):
            return self._mapping(value, {field.name: getattr(value, field.name) for field in fields(value)})
        if _is_url(value):
            return str(value)
        for base, plain in _BASES:
            if isinstance(value, base):
                return self.encode(plain(value))
        return self._subclass_of_scalar(value)

    def _model(self, model: BaseModel) -> Any:
        """Its fields as they are: serialisers are for readers, may lose something, and are not asked.

        Arguments go by the names that the model reads and its JSON Schema shows, results by those of its fields.
        """
        kind, held = type(model), model.__dict__
        if kind.__pydantic_root_model__:
            return self.encode(held["root"])
        by_alias = not self.lossless and kind.model_config.get("validate_by_alias", True)
        kept = {
            _input_name(name, info) if by_alias else name: held[name]
            for name, info in kind.model_fields.items()
            if name in held and not info.exclude
        }
        return self._mapping(model, {**kept, **(model.__pydantic_extra__ or {})})

    def _subclass_of_scalar(self, value: Any) -> Any:
        scalar = next((scalar for scalar in SCALARS if isinstance(value, scalar.kind)), None)
        # A subclass may hold more than its base, as a timestamp of nanoseconds does; that must not get lost.
        if scalar is None or scalar.read(scalar.write(value)) != value:
            self._refuse_type(value)
        return self._scalar(scalar, value)

    def _refuse_type(self, value: object) -> NoReturn:
        self.refuse(f"is of type {_type_name(value)}, which has no encoding", value)


_BASES: Final[tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (tuple, tuple),
    ((list, deque), list),
    (frozenset, frozenset),
    (set, set),
    (Mapping, dict),
)
"""Bases whose subclasses are encoded as they are, and how to see a value as a plain one of them."""


def _canonical_order(tree: JsonTree) -> str:
    """By what the digest is made of, so that equal members stand in the same place whatever they are written as."""
    try:
        return canonical(tree).decode()
    except Unencodable:
        return dumps(tree)  # refused later, by path


def _input_name(name: str, info: FieldInfo) -> str:
    alias = info.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return next((choice for choice in choices if isinstance(choice, str)), name)


def _is_url(value: object) -> bool:
    # Where there is an instance the module is loaded; importing it here would cost 20 ms of start-up.
    networks = sys.modules.get("pydantic.networks")
    return isinstance(value, Url) or (networks is not None and isinstance(value, networks.AnyUrl))


def _decode_apart(trees: Iterable[JsonTree]) -> bool:
    """Whether these trees decode to values that can stand beside each other in a set."""
    values = [_decode(tree) for tree in trees]
    try:
        return len(set(values)) == len(values)
    except TypeError:
        return False


def _decode(tree: Any) -> Any:
    kind = type(tree)
    if kind is dict:
        if "$" in "".join(tree):
            return _decode_marked(tree)
        if _PLAIN.issuperset(map(type, tree.values())):
            return dict(tree)
        return dict(zip(tree, map(_decode, tree.values()), strict=True))
    if kind is list:
        return list(map(_decode, tree))
    if kind in _PLAIN:
        return tree
    raise Unreadable(f"The stored value holds a {_type_name(tree)}, which is not JSON.")


def _decode_marked(tree: dict[str, Any]) -> Any:
    markers = [key for key in tree if key[:1] == "$" and key[1:2] != "$"]
    if not markers:
        return {key[1:] if key[:1] == "$" else key: _decode(member) for key, member in tree.items()}
    read = _READERS.get(markers[0])
    if read is None or len(tree) > 1:
        raise Unreadable(f"The stored value is marked {markers[0][:40]!a}, which this release cannot read.")
    return read(tree[markers[0]])


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$tuple": lambda trees: tuple(map(_decode, trees)),
    "$set": lambda trees: set(map(_decode, trees)),
    "$frozenset": lambda trees: frozenset(map(_decode, trees)),
    "$dict": lambda pairs: {_decode(key): _decode(member) for key, member in pairs},
    "$float": float,
    "$int": lambda digits: int(digits, 16),
    **{scalar.marker: scalar.read for scalar in SCALARS},
}


def _with_marked_ints(tree: Any) -> Any:
    kind = type(tree)
    if kind is dict:
        return {key: _with_marked_ints(member) for key, member in tree.items()}
    if kind is list:
        return [_with_marked_ints(member) for member in tree]
    return {"$int": hex(tree)} if kind is int and tree.bit_length() > 2048 else tree


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


_BOUNDED: Final = reprlib.Repr()
_BOUNDED.maxother = _BOUNDED.maxstring = 500


def _safe_repr(value: object) -> str:
    """A description of at most 500 printable characters, even where ``__repr__`` raises."""
    try:
        text = _BOUNDED.repr(value)[:500]
    except Exception:
        text = f"<{_type_name(value)} without a representation>"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)[:500]
