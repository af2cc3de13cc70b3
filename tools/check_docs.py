"""Fails when README or docs are stale, leave something out, point nowhere, or say what has no place in them.

`make check` calls it. Each check yields sentences; none at all means that the docs are in order.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tollhouse
from tollhouse.contract.effects import Settings
from tollhouse.operations.production import REASONS
from tollhouse.settings import HouseSettings
from tools import agents_reference, cli_reference, docs, reference

ROOT = docs.ROOT
SOURCE = ROOT / "src" / "tollhouse"
EVENTFUL = ("ledger", "gate", "doubt", "house")
"""The packages that write events and tell listeners; others have words of their own under the same names."""
DOCS = ROOT / "docs"

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


# -- stale ---------------------------------------------------------------------------------------------------


def stale_pages() -> Iterator[str]:
    """Generated parts and examples are what the code and the files say."""
    try:
        for page, _wanted in docs.stale():
            yield f"{_name(page)} is stale: run `make docs`"
    except docs.Unknown as unknown:
        yield str(unknown)


# -- left out ------------------------------------------------------------------------------------------------


def undocumented() -> Iterator[str]:
    """Everything that users can write, read or meet has its place in the reference."""
    errors = [error.code for error in reference.error_classes()]
    yield from left_out("error code", errors, DOCS / "reference" / "errors.md")
    settings = [field.name for field in dataclasses.fields(HouseSettings)]
    yield from left_out("setting", settings, DOCS / "reference" / "settings.md")
    yield from left_out("contract field", Settings.__annotations__, DOCS / "reference" / "contract.md")
    yield from left_out("public name", tollhouse.__all__, DOCS / "reference" / "api.md")
    kinds = kinds_in(*(SOURCE / name for name in EVENTFUL))
    yield from left_out("kind of event", kinds, DOCS / "reference" / "history.md")
    yield from left_out("command", [shown.line for shown in cli_reference.commands()], DOCS / "reference" / "cli.md")
    yield from left_out("field", agents_reference.field_names(), DOCS / "reference" / "agents-file.md")
    yield from left_out("code", REASONS, DOCS / "reference" / "production-check.md")
    yield from _options_left_out()


def left_out(what: str, names: Iterable[str], page: Path) -> Iterator[str]:
    """Names that the page neither has as code nor as a heading."""
    text = page.read_text(encoding="utf-8")
    told = words_as_code(text) | set(_HEADING.findall(text))
    for name in names:
        if name not in told:
            yield f"{_name(page)} does not tell of the {what} {name}"


def words_as_code(text: str) -> set[str]:
    """What stands in backticks outside of blocks, whole and word by word."""
    spans = [found[2].strip() for found in _CODE.finditer(_FENCED.sub("", text))]
    return {*spans, *(word for span in spans for word in re.split(r"[\s,()=]+", span))}


def _options_left_out() -> Iterator[str]:
    page = DOCS / "reference" / "cli.md"
    parts = dict(_parts(page.read_text(encoding="utf-8")))
    for shown in cli_reference.commands():
        told = words_as_code(parts.get(shown.line, ""))
        for option in cli_reference.options(shown.command):
            if option.opts[0] not in told:
                yield f"{_name(page)} does not tell of {option.opts[0]} of `{shown.line}`"


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The page cut at its headings of third rank: heading and what follows it."""
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        heading, _, rest = part.partition("\n")
        yield heading, rest


# Who writes or tells an event, and which of its arguments is the kind.
_KIND_AT = {"Draft": 0, "_refused": 2, "_sent": 2, "advance": 2, "tell": 0}


def kinds_in(*folders: Path) -> set[str]:
    """Every kind of event that the rules write or the house tells of: read from the calls that name them."""
    return {
        kind
        for folder in folders
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for kind in _kinds_of(node)
    }


def _kinds_of(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    at = _KIND_AT.get(name)
    if at is None or len(call.args) <= at:
        return
    given = call.args[at]
    for part in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


# -- links ---------------------------------------------------------------------------------------------------


def broken_links() -> Iterator[str]:
    """Every link within the project leads to a file that is there, and to a heading in it."""
    for page in docs.pages():
        for target in _links(page):
            file, _, anchor = target.partition("#")
            found = (page.parent / file).resolve() if file else page
            if not found.exists():
                yield f"{_name(page)} links to {target}, which is not there"
            elif anchor and anchor not in anchors(found.read_text(encoding="utf-8")):
                yield f"{_name(page)} links to {target}, which has no such heading"


def lost_pages() -> Iterator[str]:
    """Every page can be reached from the README by following links."""
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        waiting += [(page.parent / target.partition("#")[0]).resolve() for target in _links(page)]
    yield from (f"{_name(page)} is linked from nowhere" for page in docs.pages() if page not in reached)


def _links(page: Path) -> list[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(text: str) -> set[str]:
    """The anchors of a page, as its readers' browsers know them."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if number == 0 else f"{slug}-{number}" for slug, last in found.items() for number in range(last + 1)}


# -- words that have no place --------------------------------------------------------------------------------

FORBIDDEN = {
    "speaks of how it was made": re.compile(r"\bsessions?\b|\bAI[- ]written\b|\bthis prompt\b", re.IGNORECASE),
    "names an issue by number": re.compile(r"(?<![\w&/])#\d+\b|\bissue \d+\b", re.IGNORECASE),
    "names a path of one machine": re.compile(r"(?<![\w.~-])/(?:root|home|work|Users|tmp)/[\w.-]+"),
    "leaves work for later": re.compile(r"\b(?:TODO|FIXME|TBD|coming soon)\b"),
    "boasts": re.compile(
        r"\b(?:blazing(?:ly)?|seamless(?:ly)?|effortless(?:ly)?|world-class|cutting-edge|revolutionary|game-chang\w+)\b",
        re.IGNORECASE,
    ),
}


def forbidden_words() -> Iterator[str]:
    """The project speaks of itself, without paths, numbers and adjectives that help no reader."""
    for page in docs.pages():
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            for what, word in faults_of(line):
                yield f"{_name(page)}:{number} {what}: {word}"


def faults_of(line: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the words of a line."""
    for what, pattern in FORBIDDEN.items():
        if found := pattern.search(line):
            yield what, found.group()


CHECKS: tuple[Callable[[], Iterator[str]], ...] = (
    stale_pages,
    undocumented,
    broken_links,
    lost_pages,
    forbidden_words,
)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page)


def main() -> int:
    faults = [fault for check in CHECKS for fault in check()]
    print("\n".join(faults) or f"{len(docs.pages())} pages in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
