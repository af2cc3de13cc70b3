"""The command as a process: how it is started, what it loads, what becomes of its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shop
from tests.cli.processes import command, environment, running, tollhouse
from tollhouse import __version__, happened

INSTALLED = Path(sys.executable).parent / "tollhouse"


def test_version_is_printed_however_it_is_started() -> None:
    """As `python -m tollhouse` and as the installed command."""
    assert tollhouse("--version").stdout == f"tollhouse {__version__}\n"
    done = subprocess.run([INSTALLED, "--version"], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == f"tollhouse {__version__}\n"


def test_help_of_the_root_loads_no_command() -> None:
    """It must be fast, whatever commands there are."""
    code = (
        "import sys\n"
        "sys.argv = ['tollhouse', '--help']\n"
        "from tollhouse.cli.app import app, COMMANDS\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print([c.target for c in COMMANDS if c.target.split(':')[0] in sys.modules])\n"
        "print([name for name in ('rich', 'asyncpg', 'httpx2') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.splitlines()[-2:] == ["[]", "[]"]


def test_importing_the_package_loads_no_terminal_library() -> None:
    """Those who use the library never pay for the command line."""
    code = "import sys, tollhouse; print([n for n in ('typer', 'rich', 'tollhouse.cli') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == "[]\n"


def test_answer_is_the_only_thing_on_stdout(filled: Shop, tmp_path: Path) -> None:
    """What a tool's module prints, and what the tool prints, goes to stderr."""
    (tmp_path / "my_noisy.py").write_text("from tests.cli.shop import issue_credit\nprint('noise from the module')\n")
    filled.credit("order-1", "lost")
    done = tollhouse("calls", "reconcile", "order-1", "--tools", str(tmp_path / "my_noisy.py"), *filled.at, "--json")
    assert done.exit_code == 0
    assert done.json["state"] == "succeeded"
    assert "noise from the module" in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_reader_that_goes_away_changes_neither_exit_code_nor_stderr(filled: Shop, options: tuple[str, ...]) -> None:
    """As with `| head`: what was decided is decided, and nobody complains."""
    for number in range(60):
        filled.credit(f"order-{number}", "lost" if number == 0 else "a1")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        arguments = command("calls", "list", *filled.at, *options)
        done = subprocess.run(arguments, stdout=gone, stderr=subprocess.PIPE, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (3, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_full_disk_under_the_output_is_told_without_a_traceback(filled: Shop, options: tuple[str, ...]) -> None:
    """An answer that is cut off is never taken for a whole one."""
    filled.credit("order-1", "a1")
    with Path("/dev/full").open("wb") as full:
        arguments = command("calls", "list", *filled.at, *options)
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, env=environment(), check=False)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "error: The output could not be written in full (No space left on device).  [output_not_written]",
        "  remedy: Make room. What the command did stands: look before you repeat it.",
    ]


def test_interrupt_ends_without_a_traceback(filled: Shop, tmp_path: Path) -> None:
    """Ctrl-C while a command waits."""
    (tmp_path / "my_slow.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    arguments = command("calls", "reconcile", "order-1", "--tools", str(tmp_path / "my_slow.py"), *filled.at)
    with running(arguments) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "importing\n"
        process.send_signal(2)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_output_is_ascii_where_the_locale_is(filled: Shop) -> None:
    """No terminal is too old to read an answer: JSON is ASCII, text never fails to be written."""
    filled.credit("order-1", "lost")
    filled.house.resolve("order-1", happened({"id": "é", "amount_cents": 1}), reason="vu à l'écran", by="ada")
    old = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    as_json = tollhouse("calls", "show", "order-1", "--json", *filled.at, env=old)
    assert json.loads(as_json.stdout)["result"]["id"] == "é"
    text = tollhouse("calls", "show", "order-1", *filled.at, env=old)
    assert (text.exit_code, text.stderr) == (0, "")
    assert "ada says it happened" in text.stdout
