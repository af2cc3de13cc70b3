"""Every command and example in the README and the docs does what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Reader, blocks_of
from tools.docs import EXAMPLES, ROOT, pages

NEEDS_POSTGRES = "<!-- needs: postgres -->"


def _runs(page: Path) -> bool:
    return any(block.lang in ("python", "console") for block in blocks_of(page))


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in pages() if _runs(page)], ids=_named)
def test_reader_of_the_page_sees_what_it_shows(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whoever follows a page in its order gets the outputs that it shows."""
    settings = {}
    if NEEDS_POSTGRES in page.read_text(encoding="utf-8"):
        settings["TOLLHOUSE_STORE"] = request.getfixturevalue("postgres_url")
    Reader(tmp_path, settings).follow(page)


def _in_pages() -> set[Path]:
    """Examples that some page saves whole or in part."""
    blocks = [block for page in pages() for block in blocks_of(page)]
    return {EXAMPLES / block.says["example"].split("#")[0] for block in blocks if "example" in block.says}


def test_every_example_stands_in_a_page() -> None:
    """An example that no page shows is one that nobody reads."""
    assert {file for file in EXAMPLES.rglob("*.*") if file.suffix in (".py", ".yaml")} == _in_pages()
