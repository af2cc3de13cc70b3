"""Tools that are an HTTP endpoint, declared in one statement instead of written as a function.

For authors of tools, beside ``@tool``. What comes out is a tool like any other: the request leaves through
``ctx.http``, so that it passes the last check, carries the idempotency key, is sent once, and is *not sent*, *rejected*
or *unknown* by proof. Whatever fails before it leaves is *not sent*.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Unpack
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from tollhouse.contract.answers import Accepted
from tollhouse.contract.context import CallContext
from tollhouse.contract.effects import Declaration, Settings
from tollhouse.contract.terms import Effect
from tollhouse.contract.tool import Tool, tool
from tollhouse.errors import ContractError

Parameters = type[BaseModel] | Mapping[str, Any]
"""What a caller may give: a model, whose fields are the parameters, or names with their types.

A type is a Python type (``int``, ``Annotated[str, "Whose account"]``) or the word that JSON has for one (``"string"``,
``"integer"``, ``"number"``, ``"boolean"``, ``"array"``, ``"object"``); a pair is a type and its default.
"""

_JSON_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list[Any], "object": dict}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_SAFE = frozenset({"GET", "HEAD"})
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})
_PLACE = re.compile(r"\{([^{}]*)\}")
_SECRET = re.compile(r"\{secrets\.([^{}]+)\}")
_CONTEXT = "ctx"


def http_tool(
    name: str,
    method: str,
    url: str,
    declaration: Declaration,
    parameters: Parameters | None = None,
    *,
    description: str | None = None,
    query: Iterable[str] = (),
    headers: Mapping[str, str] | None = None,
    result: Any = Any,
    reconcile: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | Tool[Any] | None = None,
    **settings: Unpack[Settings],
) -> Tool[Any]:
    """Declare an endpoint a tool.

    ``url``: absolute; ``{name}`` in its path takes that parameter, percent-encoded, as one segment. Parameters named in
    ``query`` go there; of the others, ``GET``, ``HEAD`` and ``DELETE`` send all in the query, ``POST``, ``PUT`` and
    ``PATCH`` in a JSON body (a model's as the model writes itself, by alias). What is None is left out.
    ``headers``: fixed, but for ``{secrets.name}``, which is replaced by the tool's secret of that name.

    The result is the decoded JSON of a 2xx answer, or its text, its bytes, or None where it is empty; ``result`` is its
    declared type. A status that ``rejects`` names is a rejection; every other answer leaves the call in doubt, a
    redirect too, which is not followed. With ``accepts``, 202 means *accepted* under what ``Location`` says.

    Everything else is as for :func:`~tollhouse.tool`, but that it always departs at its check. Raises
    :class:`ContractError`, naming the field, on a contradiction.
    """
    verb = _check_method(method, declaration)
    given = _given(parameters)
    endpoint = Endpoint(verb, url, _check_path(url, given), _check_query(query, given), dict(headers or {}), parameters)

    async def send(ctx: CallContext, **arguments: Any) -> Any:
        return await endpoint.call(ctx, arguments, accepts=made.terms.accepts)

    send.__doc__ = description
    hints = {each: _segment(given[each].hint) if each in endpoint.path else given[each].hint for each in given}
    send.__annotations__ = {**hints, _CONTEXT: CallContext, "return": result}
    context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=CallContext)
    named = [inspect.Parameter(each, context.kind, default=given[each].default) for each in given]
    vars(send)["__signature__"] = inspect.Signature([*named, context])
    declare = tool(
        declaration,
        name=name,
        description=description,
        reconcile=reconcile,
        compensate=compensate,
        **Settings(**{**settings, "departs": "at_confirm"}),
    )
    made = declare(send)
    if isinstance(parameters, type):
        made.schema.whole = lambda values: _whole(parameters, values)
    return made


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a request goes and how its arguments are placed in it."""

    method: str
    url: str
    path: frozenset[str]
    query: frozenset[str]
    headers: Mapping[str, str]
    parameters: Parameters | None

    async def call(self, ctx: CallContext, arguments: Mapping[str, Any], *, accepts: bool) -> Any:
        """Send one request; raises what the client raises, for the gate to judge."""
        url = _PLACE.sub(lambda place: quote(_text(arguments[place[1]]), safe=""), self.url)
        body = self._body(arguments)
        asked: dict[str, Any] = {name: arguments[name] for name in self.query}
        content: dict[str, Any] = {}
        if self.method in _WITHOUT_BODY:
            asked = {**asked, **body}
        elif body or self.parameters is not None:
            content = {"json": body}
        response = await ctx.http.request(
            self.method,
            url,
            params={name: to_jsonable_python(value) for name, value in asked.items() if value is not None} or None,
            headers={name: _with_secrets(text, ctx.secrets) for name, text in self.headers.items()},
            **content,
        )
        response.raise_for_status()
        if accepts and response.status_code == 202:
            raise Accepted(response.headers["Location"])
        return _result(response)

    def _body(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What is placed neither in the path nor, by name, in the query."""
        if not isinstance(self.parameters, type):
            rest = arguments.keys() - self.path - self.query
            plain: dict[str, Any] = {k: v for k, v in arguments.items() if k in rest and v is not None}
            return dict(to_jsonable_python(plain))
        names = _fields(self.parameters)
        placed = {names[name][0] for name in self.path | self.query}
        whole = _whole(self.parameters, arguments)
        return whole.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=placed)


# -- parameters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """One parameter: its type with all that is said of it, and its default."""

    hint: Any
    default: Any = inspect.Parameter.empty


def _given(parameters: Parameters | None) -> dict[str, Given]:
    if parameters is None:
        return {}
    if isinstance(parameters, type) and issubclass(parameters, BaseModel):
        return {name: _from_field(info) for name, (_, info) in _fields(parameters).items()}
    if not isinstance(parameters, Mapping):
        raise ContractError(
            f"parameters= of type {type(parameters).__name__} is not understood.",
            field="parameters",
            remedy="Give a pydantic model, or a dict of names and types.",
        )
    return {_check_parameter(name): _from_type(name, kind) for name, kind in parameters.items()}


def _fields(model: type[BaseModel]) -> dict[str, tuple[str, FieldInfo]]:
    """The fields of a model by what a caller names them: the alias where Python can say it, else the field's name."""
    named = {}
    for name, info in model.model_fields.items():
        alias = info.alias
        named[alias if alias is not None and alias.isidentifier() else name] = (name, info)
    return named


def _whole(model: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    """The model with these arguments. Raises ``ValidationError`` where its own validators refuse them."""
    fields = _fields(model)
    return model.model_validate({fields[n][0]: value for n, value in values.items()}, by_alias=False, by_name=True)


def _from_field(info: FieldInfo) -> Given:
    annotated: Any = Annotated
    hint = annotated[(info.annotation, *info.metadata, Field(description=info.description))]
    return Given(hint, inspect.Parameter.empty if info.is_required() else info.get_default(call_default_factory=True))


def _from_type(name: str, kind: Any) -> Given:
    hint, default = kind if isinstance(kind, tuple) and len(kind) == 2 else (kind, inspect.Parameter.empty)
    if isinstance(hint, str):
        if hint not in _JSON_TYPES:
            raise ContractError(
                f"{name} is declared {hint!r}, which is no type of JSON.",
                field="parameters",
                remedy=f"Use {', '.join(_JSON_TYPES)}, or a Python type.",
            )
        hint = _JSON_TYPES[hint]
    return Given(hint, default)


def _segment(hint: Any) -> Any:
    return Annotated[hint, AfterValidator(_check_segment)]


def _check_segment(value: Any) -> Any:
    """Refuse what would name another path than the one declared."""
    if _text(value) in ("", ".", ".."):
        raise ValueError("must name one segment of the path")
    return value


def _text(value: Any) -> str:
    plain = to_jsonable_python(value)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


# -- contradictions --------------------------------------------------------------------------------------------------


def _check_parameter(name: Any) -> str:
    if isinstance(name, str) and name.isidentifier() and name != _CONTEXT:
        return name
    raise ContractError(
        f"{name!r} is no name for a parameter.",
        field="parameters",
        remedy="Use a name that Python can say, other than ctx; a model's alias may say how it is written on the wire.",
    )


def _check_method(method: str, declaration: Declaration) -> str:
    verb = str(method).upper()
    if verb not in _METHODS:
        raise ContractError(f"{method!r} is no method.", field="method", remedy=f"Use {', '.join(sorted(_METHODS))}.")
    effect = getattr(declaration, "effect", Effect.READ)
    if verb in _SAFE and effect is not Effect.READ:
        raise ContractError(
            f"{verb} has no effect, by HTTP's own word, yet {effect.value} is declared.",
            field="method",
            remedy="Declare read(), or use the method that the effect really has; GET carries no idempotency key.",
        )
    return verb


def _check_path(url: str, given: Mapping[str, Given]) -> frozenset[str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ContractError(
            f"{url!r} is no absolute URL.", field="url", remedy="Begin it with https:// and the host's name."
        )
    if _PLACE.search(f"{parts.netloc}?{parts.query}#{parts.fragment}") or "@" in parts.netloc:
        raise ContractError(
            "Only the path of a URL takes parameters, and no part of it credentials.",
            field="url",
            remedy="Name parameters of the query in query=, and put credentials into headers= as {secrets.name}.",
        )
    places = frozenset(_PLACE.findall(parts.path))
    if unknown := sorted(places - given.keys()):
        raise ContractError(f"The path takes {unknown[0]!r}, which is no parameter.", field="url")
    return places


def _check_query(query: Iterable[str], given: Mapping[str, Given]) -> frozenset[str]:
    names = frozenset((query,) if isinstance(query, str) else query)
    if unknown := sorted(names - given.keys()):
        raise ContractError(f"The query takes {unknown[0]!r}, which is no parameter.", field="query")
    return names


# -- on the wire -----------------------------------------------------------------------------------------------------


def _with_secrets(text: str, secrets: Mapping[str, str]) -> str:
    return _SECRET.sub(lambda place: secrets[place[1]], text)


def _result(response: Any) -> Any:
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not response.content:
        return None
    if kind == "application/json" or kind.endswith("+json"):
        return response.json()
    return response.text if kind.startswith("text/") else response.content
