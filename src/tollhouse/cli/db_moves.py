"""``tollhouse db copy`` and ``db backup``: taking a whole ledger somewhere else. ``operations`` does the work."""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tollhouse.cli.failures import OK, UsageMistake
from tollhouse.cli.ledger import existing, run
from tollhouse.cli.options import By, Json, Store, decider
from tollhouse.cli.screen import Screen
from tollhouse.cli.words import count
from tollhouse.errors import SigningKeyUnusable
from tollhouse.operations.backups import back_up
from tollhouse.operations.copying import Copied, abandon_copy, copy_ledger
from tollhouse.runs.proof.anchors import anchors_file
from tollhouse.runs.proof.keys import PRIVATE, PUBLIC, home_of
from tollhouse.stores import without_password


def copy(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The ledger to move.", show_default=False)],
    target: Annotated[
        str,
        typer.Option("--to", metavar="URL", help="An empty store, or one a copy was begun into.", show_default=False),
    ],
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give up a copy that was not finished, and open the source again.")
    ] = False,
    by: By = None,
    as_json: Json = False,
) -> int:
    """Move a ledger to another store, of either kind.

    The source is fenced first: from then on nothing can be written to it, by any process or release, and it stays so.
    The target is fenced until every row has arrived and was compared. A copy that was interrupted goes on when the same
    command is given again.
    """
    screen = Screen(as_json=as_json)
    if abandon:
        run(_abandon(source, target, decider(by)))
        facts: dict[str, object] = {"from": without_password(source), "to": without_password(target), "abandoned": True}
        screen.document(facts) if as_json else screen.line(f"{facts['from']} is open again.")
        return OK
    copied = run(_copy(source, target))
    if as_json:
        screen.document(_as_json(source, target, copied))
    else:
        _show(screen, source, target, copied)
    with contextlib.suppress(OSError, SigningKeyUnusable):  # nothing that this user can take along
        _say_what_stays(screen, source, target)
    return OK


async def _copy(source: str, target: str) -> Copied:
    return await copy_ledger(await existing(source), target)


async def _abandon(source: str, target: str, by: str) -> None:
    await abandon_copy(await existing(source), target, by=by)


def _as_json(source: str, target: str, copied: Copied) -> dict[str, object]:
    return {
        "from": without_password(source),
        "to": without_password(target),
        "resumed": copied.resumed,
        "rows": copied.rows,
        "digests": copied.digests,
        "abandoned": False,
    }


def _show(screen: Screen, source: str, target: str, copied: Copied) -> None:
    arrived = ", ".join(
        count(n, name.removesuffix("s")) for name, n in copied.rows.items() if name in ("calls", "events")
    )
    screen.line(f"{arrived} arrived in {without_password(target)} and were compared one by one.")
    screen.line(f"{without_password(source)} is fenced for good; point every process at the new ledger.")


def _say_what_stays(screen: Screen, source: str, target: str) -> None:
    """The key that signs proofs and the anchors are outside of ledgers on purpose, so that no copy takes them along."""
    before, after = home_of(source), home_of(target)
    if _differ(before / PUBLIC, after / PUBLIC):
        screen.note(f"Proofs of the new ledger are signed by another key, {after / PUBLIC}.")
        return
    files = [(before / name, after / name) for name in (PRIVATE, PUBLIC)]
    files.append((anchors_file(before, source), anchors_file(after, target)))
    left = [(old, new) for old, new in files if old.exists() and not new.exists()]
    if not left:
        return
    screen.note("What proofs need is outside the ledger, and stays. Before the new ledger is used, take it along:")
    if not after.exists():
        screen.note(f"    mkdir -m 700 -p {shlex.quote(str(after))}")
    for old, new in left:
        screen.note(f"    cp -p {shlex.quote(str(old))} {shlex.quote(str(new))}")


def _differ(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() != other.read_bytes()


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the copy goes; a new file.", show_default=False)],
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Copy a SQLite ledger to a new file while others go on writing.

    The copy is checked before this returns. Once it stands in for a lost ledger, run `tollhouse db restored` on it.
    """
    screen = Screen(as_json=as_json)
    if file.exists():
        raise UsageMistake(f"{file} exists already.", remedy="Name a file that does not exist.")
    if not file.absolute().parent.is_dir():
        raise UsageMistake(f"The folder {file.parent} does not exist.", remedy="Make it, or name another one.")

    async def work() -> int:
        return await back_up(await existing(store), file)

    calls = run(work())
    if as_json:
        screen.document({"file": str(file), "calls": calls})
    else:
        screen.line(f"{count(calls, 'call')} in {file}, whole and checked.")
    return OK


def fence_as_text(mark: str) -> str:
    """Why a ledger is fenced, in a sentence."""
    told = json.loads(mark)
    words = {
        "moved": f"It was moved to {told['to']}, or is being moved there, and cannot be written any more.",
        "receiving": f"It receives a copy of {told['from']} that is not finished, and cannot be written until it is.",
        "abandoned": f"It has part of a copy of {told['from']} that was given up. Drop it.",
    }
    return words[told["reason"]]
