"""What a model sees of a tool, and what its arguments and result are: read from the function's own type hints."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from tollhouse.contract.context import CallContext
from tollhouse.errors import ContractError, InvalidArguments

_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class Schema:
    """The parameters and the result of one function. Built once, at decoration."""

    def __init__(self, fn: Callable[..., Any], name: str, names: Mapping[str, Any]) -> None:
        hints = _hints(fn, names)
        self.result_type: Any = hints.get("return", Any)
        self.context_parameter: str | None = None
        fields: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        for position, parameter in enumerate(inspect.signature(fn).parameters.values()):
            hint = hints.get(parameter.name, Any)
            if _is_context(hint):
                if self.context_parameter is not None:
                    raise ContractError("The context is asked for twice.", field="parameters")
                self.context_parameter = parameter.name
                continue
            slot = f"a{position}"
            self._names[slot] = parameter.name
            fields[slot] = _field(parameter, hint)
        self.whole: Callable[[Mapping[str, Any]], object] | None = None
        """A check of all arguments together, by name; raises ``ValidationError``."""
        self._model = _model(name, fields)
        self._result: TypeAdapter[Any] | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arguments, in the order of the signature, without injected ones."""
        return tuple(self._names.values())

    def json_schema(self, description: str | None) -> dict[str, Any]:
        """The JSON Schema of the arguments, with the tool's description."""
        try:
            schema = self._model.model_json_schema(by_alias=True)
        except PydanticUserError as error:
            raise _no_schema(error) from None
        if description:
            schema["description"] = description
        return schema

    def validate(self, arguments: Mapping[str, Any], *, key: str | None = None) -> dict[str, Any]:
        """Arguments as the function takes them: coerced, with defaults. Raises :class:`InvalidArguments`."""
        try:
            values = self._model.model_validate(arguments).__dict__
            named = {name: values[slot] for slot, name in self._names.items()}
            if self.whole is not None:
                self.whole(named)
        except ValidationError as error:
            raise _invalid(error, key) from None
        except Exception as error:  # a validator of the author's may raise anything, with the value in its message
            cause = f"The arguments do not fit the tool: a check of theirs raised {type(error).__name__}."
            raise InvalidArguments(cause, path="arguments", key=key) from None
        return named

    @property
    def result(self) -> TypeAdapter[Any]:
        """The adapter of the result type; built at first use, since most processes never need most tools'.

        Never raises: the effect has happened by then, whatever the type does while its schema is made.
        """
        if self._result is None:
            try:
                self._result = TypeAdapter(self.result_type)
            except Exception:
                self._result = TypeAdapter(Any)
        return self._result


def _hints(fn: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, localns=dict(names), include_extras=True)
    except Exception as error:  # a hint is any expression, and may raise anything
        raise ContractError(
            f"A type hint of {fn.__qualname__} cannot be resolved: {error}.",
            field="parameters",
            remedy="Define the type before the tool, at module level.",
        ) from None


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_context(part) for part in typing.get_args(hint))
    return isinstance(hint, type) and issubclass(hint, CallContext)


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[Any, Any]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ContractError(
            f"Parameter {parameter.name!r} has no name a caller could give.",
            field="parameters",
            remedy="Use named parameters only; no *args, **kwargs or positional-only ones.",
        )
    default = ... if parameter.default is parameter.empty else parameter.default
    said: dict[str, Any] = {} if (text := _description(hint)) is None else {"description": text}
    return hint, Field(default, alias=parameter.name, title=parameter.name, **said)


def _description(hint: Any) -> str | None:
    """The text in ``Annotated[int, "how many cents"]``; a ``Field(description=...)`` there speaks for itself."""
    if typing.get_origin(hint) is not typing.Annotated:
        return None
    return next((text for text in hint.__metadata__ if isinstance(text, str)), None)


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    try:
        return create_model(name, __config__=_CONFIG, **fields)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        raise _no_schema(error) from None


def _no_schema(error: Exception) -> ContractError:
    first = str(error).splitlines()[0].rstrip(".")
    return ContractError(
        f"No schema can be made of the parameters: {first}.",
        field="parameters",
        remedy="Use types that JSON can say: numbers, text, lists, dicts, dataclasses, pydantic models.",
    )


def _invalid(error: ValidationError, key: str | None) -> InvalidArguments:
    """The first mistakes in words, without the values: arguments may hold what nobody should read in a log."""
    told = []
    for mistake in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        where = ".".join(str(part) for part in mistake["loc"]) or "arguments"
        told.append((where, mistake["msg"]))
    cause = "; ".join(f"{where}: {what}" for where, what in told)
    return InvalidArguments(f"The arguments do not fit the tool: {cause}.", path=told[0][0], key=key)
