"""Writes the parts of README and docs that come from the code or from examples; `make docs` calls it.

Pages are written by hand, but for two kinds of parts, each after a comment that readers do not see:

    <!-- generated: NAME -->        what stands between it and `<!-- end -->` is section NAME of tools/*reference.py
    <!-- example: PATH[#REGION] --> the code block after it holds examples/PATH, or the lines of it between
                                    `# <REGION>` and `# </REGION>`

Besides, a file of :data:`COPIES` is what its function says as a whole.

`--check` writes nothing and exits with 1 when a part is stale.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tollhouse.runs.agent_schema import schema_text
from tools import agents_reference, python_reference, reference, surface_reference

SECTIONS: dict[str, Callable[[], str]] = {
    name: made
    for part in (reference, python_reference, surface_reference, agents_reference)
    for name, made in part.SECTIONS.items()
}
ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

COPIES = {"docs/reference/tollhouse.schema.json": schema_text}
"""Files that editors and readers fetch from the docs as they are."""

GENERATED = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
EXAMPLE = re.compile(
    r"(<!-- example: (?P<path>[\w./-]+)(?:#(?P<region>[\w-]+))? -->\n```(?P<lang>\w*)\n)(.*?)(^```$)",
    re.DOTALL | re.MULTILINE,
)
REGION_MARK = re.compile(r"^\s*# </?[\w-]+>\n", re.MULTILINE)


class Unknown(Exception):
    """A page asks for a section, an example or a region that does not exist."""


def pages(root: Path = ROOT) -> list[Path]:
    """Every page there is: the README and all below docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def rendered(text: str) -> str:
    """The page with its generated parts and examples as they should be."""
    text = GENERATED.sub(lambda found: f"{found[1]}\n{section(found['name'])}\n\n{found[4]}", text)
    return EXAMPLE.sub(lambda found: f"{found[1]}{example(found['path'], found['region'])}{found[6]}", text)


def section(name: str) -> str:
    """What the code says about `name`, as Markdown."""
    if name not in SECTIONS:
        raise Unknown(f"There is no section {name!r}; there are {', '.join(sorted(SECTIONS))}.")
    return SECTIONS[name]().strip("\n")


def example(path: str, region: str | None) -> str:
    """The code of an example or of one region in it, without the marks of regions."""
    file = EXAMPLES / path
    if not file.is_file():
        raise Unknown(f"There is no example {path}.")
    text = file.read_text(encoding="utf-8")
    if region is not None:
        found = re.search(rf"^\s*# <{region}>\n(.*?)^\s*# </{region}>$", text, re.DOTALL | re.MULTILINE)
        if found is None:
            raise Unknown(f"examples/{path} has no region {region!r}.")
        text = textwrap.dedent(found[1]).strip("\n") + "\n"
    return REGION_MARK.sub("", text)


def stale() -> Iterator[tuple[Path, str]]:
    """Pages and copies that are not as they should be, with the text that they should have."""
    for name, wanted_of in COPIES.items():
        copy = ROOT / name
        if not copy.is_file() or copy.read_text(encoding="utf-8") != wanted_of():
            yield copy, wanted_of()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        try:
            wanted = rendered(text)
        except Unknown as unknown:
            raise Unknown(f"{page.relative_to(ROOT)}: {unknown}") from None
        if wanted != text:
            yield page, wanted


def main(arguments: list[str]) -> int:
    try:
        found = list(stale())
    except Unknown as unknown:
        print(unknown)
        return 1
    if "--check" in arguments:
        for page, _wanted in found:
            print(f"{page.relative_to(ROOT)} is stale: run `make docs`")
        return 1 if found else 0
    for page, wanted in found:
        page.write_text(wanted, encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
