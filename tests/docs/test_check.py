"""The check of the docs finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

import tollhouse
from tests.docs.pages import Reader, blocks_of, commands_of, matches
from tools import check_docs, docs, reference


def _page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_name_that_a_page_leaves_out_is_told(tmp_path: Path) -> None:
    """A name counts only as code or as a heading: in passing it tells nobody anything."""
    page = _page(tmp_path, "# Page\n\n### in_a_heading\n\nAlso `as_code` and `within(some=1)`, but only_in_passing.\n")
    faults = list(check_docs.left_out("setting", ["in_a_heading", "as_code", "within", "only_in_passing"], page))
    assert [fault.rsplit(" ", 1)[-1] for fault in faults] == ["only_in_passing"]


def test_code_in_a_block_documents_nothing(tmp_path: Path) -> None:
    """An example that uses a name does not say what it means."""
    page = _page(tmp_path, "```python\nTollhouse.open(lease_s=1)\n```\n")
    assert list(check_docs.left_out("setting", ["lease_s"], page))


def test_new_setting_without_docs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the code has and no page tells of fails the check."""
    monkeypatch.setattr(tollhouse, "__all__", [*tollhouse.__all__, "brand_new"])
    assert any("brand_new" in fault for fault in check_docs.undocumented())


def test_kinds_of_events_are_read_from_the_code(tmp_path: Path) -> None:
    """Both branches of a choice count, and so do kinds that helpers pass on; other calls do not."""
    (tmp_path / "rules.py").write_text(
        "advance(record, now, 'late' if is_late else 'in_time', {})\n"
        "_refused(record, now, 'denied', 'why')\n"
        "core.tell('doubt_appeared', key=key)\n"
        "Draft('held', {})\n"
        "log.info('no kind')\n",
        encoding="utf-8",
    )
    assert check_docs.kinds_in(tmp_path) == {"late", "in_time", "denied", "doubt_appeared", "held"}


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What it gets", "what-it-gets"),
        ("call_in_doubt", "call_in_doubt"),
        ("Send through `ctx.http` or your own", "send-through-ctxhttp-or-your-own"),
        ("tollhouse calls list", "tollhouse-calls-list"),
    ],
)
def test_anchors_are_those_of_the_rendered_page(heading: str, anchor: str) -> None:
    """A heading's anchor is what a browser is sent to."""
    assert anchor in check_docs.anchors(f"# Title\n\n## {heading}\n")


def test_second_heading_of_one_name_has_an_anchor_of_its_own() -> None:
    """The second of two equal headings is numbered."""
    assert check_docs.anchors("## Rules\n\n## Rules\n") == {"rules", "rules-1"}


@pytest.mark.parametrize(
    "line",
    [
        "written in one session",
        "as #12 asks",
        "see issue 7",
        "in " + "/home" + "/ada/ledger.db",
        "TODO: say more",
        "a seamless experience",
    ],
)
def test_words_without_a_place_in_the_docs_are_told(line: str) -> None:
    """The docs speak of the project alone."""
    assert list(check_docs.faults_of(line))


@pytest.mark.parametrize("line", ["[`code`](errors.md#call_held)", "sqlite:////var/lib/app/name.db", "round 2 of 7"])
def test_ordinary_words_pass(line: str) -> None:
    """A rule that fires on ordinary text would be switched off."""
    assert not list(check_docs.faults_of(line))


def test_generated_part_and_example_are_put_in_their_place() -> None:
    """Only the parts that are marked change."""
    generated = "<!-- generated: states -->\nold\n<!-- end -->"
    example = "<!-- example: readme.py -->\n```python\nold\n```"
    text = docs.rendered(f"before\n\n{generated}\n\n{example}\nafter\n")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert reference.states() in text
    assert docs.example("readme.py", None) in text
    assert "old" not in text.splitlines()
    assert docs.rendered(text) == text


def test_region_of_an_example_comes_without_its_marks() -> None:
    """A page may show a part of a program that runs as a whole."""
    region = docs.example("how_to/contracts.py", "read")
    assert region.startswith("@tool(read())")
    assert "# <" not in region
    assert "write()" not in region


@pytest.mark.parametrize(
    "page", ["<!-- generated: nothing -->\n<!-- end -->", "<!-- example: no.py -->\n```python\n```"]
)
def test_page_that_asks_for_what_is_not_there_is_refused(page: str) -> None:
    """A mistyped name is an error and no empty part."""
    with pytest.raises(docs.Unknown):
        docs.rendered(page)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("one\ntwo", "one\ntwo\n", True),
        ("one", "one\ntwo\n", False),
        ("one\n...", "one\ntwo\nthree\n", True),
        ("...\nthree", "one\ntwo\nthree\n", True),
        ("it took ... s", "it took 12.5 s\n", True),
        ("it took ... s", "it took\n12.5 s\n", False),
        ("a (b)", "a b\n", False),
    ],
)
def test_output_is_compared_as_it_is_shown(shown: str, printed: str, *, same: bool) -> None:
    """Three dots stand for text in a line, or alone for lines; nothing else is special."""
    assert matches(shown, printed) is same


def test_page_whose_output_is_not_what_it_shows_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of a page can fail: that is what makes it a test."""
    page = _page(tmp_path, "```console\n$ echo right\nwrong\n```\n")
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    with pytest.raises(AssertionError, match="the page shows"):
        Reader(tmp_path).follow(page)


def test_command_that_fails_fails_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exit code that the page does not announce is a fault."""
    page = _page(tmp_path, "```console\n$ exit 4\n```\n")
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    with pytest.raises(AssertionError, match="ended with 4"):
        Reader(tmp_path).follow(page)


RUN, OTHER = "run_" + "a" * 26, "run_" + "b" * 26


def test_service_stays_until_the_page_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that a page keeps is there for the commands after it, and is stopped as a person would stop it."""
    service = "trap 'rm up; exit 0' INT; touch up; echo at 127.0.0.1:8787; while true; do sleep 0.02; done"
    page = _page(
        tmp_path,
        f'<!-- stays -->\n```console\n$ bash -c "{service}" 127.0.0.1:8787\nat ...\n```\n\n'
        "```console\n$ ls up\nup\n```\n",
    )
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    Reader(folder).follow(page)
    assert not (folder / "up").exists()


def test_service_that_does_not_end_as_the_page_says_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was to be killed by what it does, and was not, is a fault of the page."""
    page = _page(tmp_path, "<!-- stays -->\n<!-- ends: 137 -->\n```console\n$ echo ready\nready\n```\n")
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    with pytest.raises(AssertionError, match="ended with 0"):
        Reader(tmp_path).follow(page)


def test_command_is_given_again_until_it_shows_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens in another process may take a moment."""
    count = "echo x >> count; wc -l < count | tr -d ' '"
    page = _page(tmp_path, f"<!-- soon -->\n```console\n$ {count}\n3\n```\n")
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    Reader(tmp_path).follow(page)


def test_ids_of_runs_stand_for_those_that_a_reader_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows ids of its own; each stands for one and the same run throughout."""
    first, second = "run_" + "1" * 26, "run_" + "2" * 26
    steps = f"$ echo {first} && echo {second} # once\n{RUN}\n{OTHER}\n"
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    Reader(tmp_path).follow(_page(tmp_path, f"```console\n{steps}$ echo is {RUN}\nis {RUN}\n```\n"))
    with pytest.raises(AssertionError, match="the page shows"):
        wrong = f"```console\n{steps}$ echo {second}\n{RUN}\n```\n"
        Reader(tmp_path).follow(_page(tmp_path, wrong))


def test_blocks_carry_what_the_comments_above_them_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments belong to the block below them, and generated parts hold no blocks to run."""
    page = _page(
        tmp_path,
        "<!-- generated: x -->\n```python\n1 / 0\n```\n<!-- end -->\n\n"
        "<!-- ends: 3 -->\n```console\n$ one \\\n    two\nout\n$ three\n```\n",
    )
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    (block,) = blocks_of(page)
    assert block.says == {"ends": "3"}
    assert [(command.line, command.output) for command in commands_of(block)] == [("one two", "out"), ("three", None)]
