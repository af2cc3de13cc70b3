"""What a command works with, and where that was said: a flag outranks the environment, and both the agents' file.

The agents' file is the one that ``--file`` names, or else ``tollhouse.yaml`` in the current folder. That one is looked
at only for what neither a flag nor the environment says, so a command that is told everything works beside any file.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tollhouse.cli.failures import UsageMistake
from tollhouse.cli.loading import importable, load_tools
from tollhouse.cli.options import DEFAULT_FILE, STORE_ENV, named_tools
from tollhouse.cli.words import clean
from tollhouse.contract.tool import Tool

if TYPE_CHECKING:
    from tollhouse.runs.agent_files import Draft


def agents_file(file: str | None) -> Draft | None:
    """The agents' file as it was read; None where none is named and there is none here.

    Raises :class:`UsageMistake` where the one named is not there or is a module of tools,
    :class:`~tollhouse.errors.AgentFileInvalid` where it cannot be read.
    """
    path = Path(DEFAULT_FILE if file is None else file)
    if not path.is_file():
        if file is None:
            return None
        raise UsageMistake(f"There is no file {clean(file)}.", remedy="Correct the path of the agents' file.")
    if path.suffix == ".py":
        named = clean(str(path))
        raise UsageMistake(f"{named} is a Python module, not an agents' file.", remedy=f"Name it as --tools {named}.")
    stat = path.stat()
    return _read(path, Path.cwd(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)
def _read(path: Path, _folder: Path, _changed_ns: int, _size: int) -> Draft:
    """Once for a command, however many of its parts ask. Imported here, since most commands read no file."""
    from tollhouse.runs.agent_files import draft

    return draft(path)


def url_of(store: str | None, file: str | None = None) -> str:
    """The ledger's URL. Raises :class:`UsageMistake` where none was named, and
    :class:`~tollhouse.errors.AgentFileInvalid` where the file that should name it is wrong."""
    if store is not None and store.strip():
        return store
    found = agents_file(file)
    named = None if found is None else found.proved().store
    if named is None:
        raise UsageMistake(
            "No ledger is named.",
            remedy=f"Give --store URL, set {STORE_ENV}, or name it in {DEFAULT_FILE}: such as sqlite:///tollhouse.db.",
        )
    return named


def tools_from(tools: list[str] | None, file: str | None = None) -> list[Tool[Any]]:
    """The tools of the modules that are named, none where none are. Raises as ``load_tools`` does, and as
    :func:`url_of`."""
    if sources := named_tools(tools):
        return load_tools(sources)
    found = agents_file(file)
    return [] if found is None else tools_of_file(found)


def tools_of_file(found: Draft) -> list[Tool[Any]]:
    """The tools of the modules that the file names; the file is proved with them."""
    importable(found.file.path.parent)
    loaded = load_tools(found.file.tools)
    found.proved({tool.name for tool in loaded})
    return loaded
