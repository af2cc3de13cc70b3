"""Finding the tools of a user's modules. Called by every command that takes ``--tools``.

A source is a dotted module or a path ending in ``.py``, with ``:name`` for one tool (or a list of them) in it; without
a name, every tool that the module holds. The current folder is importable, as it is with ``python -m``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from tollhouse.contract.tool import Tool
from tollhouse.errors import ContractError, TollhouseError

_OURS = (Path(__file__).resolve().parent.parent,)
_LIBRARIES = tuple({Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class ToolsNotLoaded(TollhouseError):
    """A module with tools could not be imported, or holds none."""

    code: ClassVar[str] = "tools_not_loaded"
    default_remedy: ClassVar[str] = "Correct the module; `tollhouse check --tools` shows what it holds."


def load_tools(sources: Iterable[str]) -> list[Tool[Any]]:
    """The tools of all sources, each once, in the order in which they were found.

    What modules print while they are imported goes to stderr. Raises :class:`ToolsNotLoaded`, or
    :class:`ContractError` with the place in the user's file.
    """
    found: dict[int, Tool[Any]] = {}
    for source in sources:
        found |= {id(tool): tool for tool in tools_of(source)}
    return list(found.values())


def tools_of(source: str) -> list[Tool[Any]]:
    """The tools of one source; see :func:`load_tools`."""
    place, _, name = source.rpartition(":")
    if not name.isidentifier() or not place:
        place, name = source, ""
    module = _imported(place)
    if not name:
        tools = list(_tools_in(vars(module).values()))
        if not tools:
            raise ToolsNotLoaded(f"{place} holds no tools.", remedy="Decorate functions with @tool(...) in it.")
        return tools
    if not hasattr(module, name):
        raise ToolsNotLoaded(f"{place} has nothing named {name}.")
    named = getattr(module, name)
    tools = list(_tools_in([named] if isinstance(named, Tool) else _members(named)))
    if not tools:
        raise ToolsNotLoaded(f"{name} in {place} is neither a tool nor a list of tools.")
    return tools


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, Iterable) else ()


def _tools_in(values: Iterable[Any]) -> Iterator[Tool[Any]]:
    return (value for value in values if isinstance(value, Tool))


def _imported(place: str) -> ModuleType:
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return _from_file(Path(place)) if place.endswith(".py") else _from_path(place)
        except ToolsNotLoaded:
            raise
        except ContractError as error:
            where = _place_in_user_code(error)
            raise ContractError(f"{where}: {error.cause}", field=error.field, remedy=error.remedy) from error
        except (Exception, SystemExit) as error:
            raise _not_imported(place, error) from error


def importable(folder: Path) -> None:
    """Let the modules of a folder be imported by their names."""
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.insert(0, place)


def _from_path(place: str) -> ModuleType:
    importable(Path())
    return importlib.import_module(place)


def _from_file(path: Path) -> ModuleType:
    """The module in a file, by its own name, so that its neighbours can be imported as it imports them."""
    file = path.resolve()
    if not file.is_file():
        raise ToolsNotLoaded(f"There is no file {path}.", remedy="Correct --tools, or tools in the agents' file.")
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    name = file.stem if known is None else f"{file.stem}_{abs(hash(str(file))):x}"
    if (again := sys.modules.get(name)) is not None:
        return again
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _not_imported(place: str, error: BaseException) -> ToolsNotLoaded:
    top = place.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name in (place, top):
        return ToolsNotLoaded(
            f"There is no module {place}, neither in this folder nor installed.",
            remedy="Name a module with dots, or a path that ends in .py, in --tools or in the agents' file.",
        )
    message = " ".join(str(error).split()) or "no message"
    return ToolsNotLoaded(f"{_place_in_user_code(error)}: {type(error).__name__}: {message}")


def _place_in_user_code(error: BaseException) -> str:
    """Where in the user's files it went wrong, as ``file:line``: the innermost line that is neither ours nor a
    library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_within(f.filename, _OURS)]
    theirs = [f for f in frames if not _is_within(f.filename, _LIBRARIES)] or frames
    return f"{_short(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else "the module"


def _is_within(filename: str, folders: Iterable[Path]) -> bool:
    return filename.startswith("<") or any(Path(filename).is_relative_to(folder) for folder in folders)


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
