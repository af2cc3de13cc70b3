"""``tollhouse proof``, ``runs proof`` and ``calls proof``: making signed bundles, and verifying them anywhere.

Making one reads a ledger and signs with the key beside it; verifying one needs neither ledger nor network.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tollhouse.cli.failures import FAILED, IN_DOUBT, OK, UsageMistake
from tollhouse.cli.ledger import existing, run
from tollhouse.cli.options import File, Json, Key, Store, Tenant
from tollhouse.cli.screen import Screen
from tollhouse.cli.words import count
from tollhouse.errors import ExtraMissing
from tollhouse.ledger.keys import DEFAULT_TENANT, check_key, check_tenant
from tollhouse.runs.proof.anchors import Anchors, anchors_file
from tollhouse.runs.proof.bundle import Bundle, anchor, prove_call, prove_run, text_of
from tollhouse.runs.proof.keys import PUBLIC, Signer, home_of, open_signer
from tollhouse.runs.proof.verdict import Problem, Result, Verdict
from tollhouse.runs.proof.verify import read_bundle, verify
from tollhouse.stores import open_store

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Verify proofs of runs and calls, and show the key that signs them.",
)

_EXIT_CODES = {Result.PASS: OK, Result.FAIL: FAILED, Result.INCOMPLETE: IN_DOUBT}
SHOWN_MOST = 20
"""Problems of a kind that are shown to a person: the first says most."""

_STYLES = {Result.PASS: "green", Result.FAIL: "bold red", Result.INCOMPLETE: "bold yellow"}

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where to write it; standard output when left out."),
]
WithoutBlobs = Annotated[
    bool, typer.Option("--without-blobs", help="Name large results and texts by digest only, without their bytes.")
]
Prove = Callable[[Any, Signer], Awaitable[Bundle]]


@app.command("verify")
def verify_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The bundle.", show_default=False)],
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="PUBLIC",
            help="The public key of whoever made it, from them and not from the bundle.",
            show_default=False,
        ),
    ] = None,
    anchors: Annotated[
        Path | None,
        typer.Option(
            "--anchors",
            metavar="FILE",
            help="A copy of the ledger's anchors: every chain must reach at least as far.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Say, offline, whether a proof is whole and unchanged.

    Exits with 0 when it passes, 1 when it fails, and 3 when it is whole and something in it is still open.
    """
    _need_extra()
    screen = Screen(as_json=as_json)
    pinned = None if key is None else _text(key)
    verdict = verify(read_bundle(_text(file)), key=pinned, anchors=None if anchors is None else _text(anchors))
    if as_json:
        screen.document(verdict.as_json())
    else:
        _show(screen, verdict)
    return _EXIT_CODES[verdict.result]


@app.command("key")
def show_key(store: Store = None, file: File = None, as_json: Json = False) -> int:
    """Print the public key for whoever verifies proofs.

    Proofs of a ledger are signed with its other half, which the first start makes.
    """
    _need_extra()
    screen = Screen(as_json=as_json)
    url = run(_opened_url(store, file))
    home = home_of(url)
    signer = open_signer(home)
    if as_json:
        screen.document(
            {
                "key_id": signer.key_id,
                "public_key": signer.public_pem,
                "file": str(home / PUBLIC),
                "anchors": str(anchors_file(home, url)),
            }
        )
    else:
        for line in signer.public_pem.splitlines():
            screen.line(line)
    return OK


def prove_call_command(
    key: Key,
    output: Output = None,
    without_blobs: WithoutBlobs = False,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Write a signed proof of one call.

    It holds its row, its history, and what came back.
    """
    name, whose = check_key(key), check_tenant(tenant)

    async def prove(opened: Any, signer: Signer) -> Bundle:
        return await prove_call(opened, whose, name, signer, with_blobs=not without_blobs)

    return _make(prove, (store, file), output, Screen(as_json=as_json))


def prove_run_command(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The id of the run.", show_default=False)],
    output: Output = None,
    without_blobs: WithoutBlobs = False,
    store: Store = None,
    file: File = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> int:
    """Write a signed proof of a run.

    It holds its journal, its calls, what it ran under, and what came back.
    """
    whose = check_tenant(tenant)

    async def prove(opened: Any, signer: Signer) -> Bundle:
        return await prove_run(opened, opened, whose, run_id, signer, with_blobs=not without_blobs)

    return _make(prove, (store, file), output, Screen(as_json=as_json))


def _make(prove: Prove, named: tuple[str | None, str | None], output: Path | None, screen: Screen) -> int:
    """Make a bundle, anchor its chains, and write it out. The bundle is JSON with and without ``--json``."""
    _need_extra()

    async def make() -> Bundle:
        opened = await open_store(await existing(*named), volatile=True)
        try:
            home = home_of(opened.url)
            signer = open_signer(home)
            bundle = await prove(opened, signer)
            _anchor(bundle, Anchors(anchors_file(home, opened.url), signer), screen)
            return bundle
        finally:
            await opened.close()

    bundle = run(make())
    if output is None:
        screen.document(bundle, indent=1)
        return OK
    try:
        output.write_text(text_of(bundle), encoding="ascii")
    except OSError as error:
        raise UsageMistake(f"{output} cannot be written: {error.strerror}.", remedy="Correct --output.") from None
    if screen.as_json:
        screen.document({"file": str(output), **bundle["contents"]["about"]})
    else:
        screen.line(f"Wrote {output}. Verify it anywhere:")
        screen.command(f"tollhouse proof verify {shlex.quote(str(output))}")
    return OK


def _anchor(bundle: Bundle, anchors: Anchors, screen: Screen) -> None:
    try:
        anchor(bundle, anchors)
    except OSError as error:
        screen.note(f"The chains of this proof are not anchored: {anchors.path} cannot be written ({error.strerror}).")


async def _opened_url(store: str | None, file: str | None) -> str:
    opened = await open_store(await existing(store, file), volatile=True)
    try:
        return opened.url
    finally:
        await opened.close()


# -- showing -------------------------------------------------------------------------------------------------------


def _show(screen: Screen, verdict: Verdict) -> None:
    about = verdict.about
    screen.line(f"{verdict.result.value}: {about.get('kind')} {about.get('id')}", style=_STYLES[verdict.result])
    counts = ", ".join(count(number, name.removesuffix("s")) for name, number in verdict.counts.items() if number)
    key = f"{str(verdict.key_id)[:16]}, {'as given' if verdict.pinned else 'the one in the bundle'}"
    screen.pairs([("holds", counts), ("key", key)])
    _list(screen, "Wrong, the first first", verdict.problems)
    _list(screen, "Still open", verdict.open)
    for heading, lines in (("Erased", verdict.erased), ("Note", verdict.notes)):
        if lines:
            screen.heading(heading)
            screen.pairs([("", line) for line in lines])


def _list(screen: Screen, heading: str, problems: tuple[Problem, ...]) -> None:
    if problems:
        screen.heading(heading)
        screen.pairs([(problem.record, problem.what) for problem in problems[:SHOWN_MOST]])
    if len(problems) > SHOWN_MOST:
        screen.line(f"  and {len(problems) - SHOWN_MOST} more; --json has all of them.")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageMistake(f"{path} cannot be read: {reason}.", remedy="Name a file that is there.") from None


def _need_extra() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise ExtraMissing("Signatures need the package cryptography.", remedy="Run pip install 'tollhouse[server]'.")
