"""Runs a page of the docs as a reader would: its files are saved, its programs and commands run, in its order.

In a page, a block marked ``python`` is a program: after an ``example`` comment it is saved under the example's name,
as is a file of any other kind, otherwise it is run at once. One marked ``console`` holds commands after ``$ `` and what
they print; ``...`` stands for any text within a line, or alone for any lines. A comment above a block may say more:

    <!-- ends: 3 -->                   the last command of the block ends with that exit code
    <!-- runs on -->                   the command goes on until the test has seen its first output
    <!-- stays -->                     the last command goes on beside those after it, in a terminal of its own; at the
                                       next such block or the end of the page Ctrl-C stops it, unless it `ends` itself
    <!-- soon -->                      the last command is given again until it prints what the page shows
    <!-- replies: TEXT -->             TEXT is typed to the last command of the block
    <!-- not run: REASON -->           it cannot run in a test, for the reason given

The ids of runs in a page stand for those that a reader is given, and :data:`ADDRESS` for one that is free.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.docs import EXAMPLES, ROOT

BIN = Path(sys.executable).parent
TIMEOUT_S = 60.0
ADDRESS = "127.0.0.1:8787"
"""Where pages serve."""

_FENCE = re.compile(r"^```(?P<lang>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- (?P<verb>[a-z ]+?)(?:: (?P<what>.*?))? -->\n\Z")
_RUN_ID = re.compile(r"\brun_[0-9a-z]{26}\b")
_SECTION = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block: where it stands, what it is, and what the comments above it say."""

    place: str
    lang: str
    text: str
    says: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One command of a console block with the output that the page shows; None: it shows none."""

    line: str
    output: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    """Every code block that was written by hand or comes from an example, in order."""
    text = _SECTION.sub("", page.read_text(encoding="utf-8"))
    for found in _FENCE.finditer(text):
        says, before = {}, text[: found.start()]
        while comment := _COMMENT.search(before):
            says[comment["verb"]] = comment["what"] or ""
            before = before[: comment.start()]
        first = found["text"].strip().splitlines()[0] if found["text"].strip() else "empty"
        yield Block(f"{page.relative_to(ROOT)}: {first}", found["lang"], found["text"], says)


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block, in order."""
    commands: list[Command] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        while lines[0].endswith("\\"):
            lines[0] = lines[0][:-1] + lines.pop(1).strip()
        commands.append(Command(lines[0], "\n".join(lines[1:]) or None))
    return commands


def matches(shown: str, printed: str) -> bool:
    """Whether what a program printed is what the page shows."""
    pieces = []
    for line in shown.rstrip().splitlines():
        if line.strip() == "...":
            pieces.append(r"(?:.*\n)*?")
        else:
            pieces.append(".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r" *\n")
    printed = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
    return re.fullmatch("".join(pieces), printed) is not None


class Reader:
    """Somebody who follows a page, in a folder of their own. ``settings``: what stands for ``export`` in the page."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder, self._fixed = folder, dict(settings or {})
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("TOLLHOUSE_")}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)  # each of a page's many processes would compile all again
        self._env |= {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONUNBUFFERED": "1"}
        self._address = f"127.0.0.1:{_free_port()}"
        self._env |= {"COLUMNS": "200", "NO_COLOR": "1", "TOLLHOUSE_LISTEN": self._address, **self._fixed}
        self._ids: dict[str, str] = {}
        self._service: Service | None = None

    def follow(self, page: Path) -> None:
        """Do all that the page says. Raises AssertionError where something else comes out than it shows."""
        try:
            self._follow(page)
            self._stop_service()
        finally:
            if self._service is not None:
                self._service.kill()

    def _follow(self, page: Path) -> None:
        for block in blocks_of(page):
            if "not run" in block.says:
                assert block.says["not run"], f"{block.place}: say why it is not run"
            elif block.lang == "python" or "example" in block.says:
                self._program(block)
            elif block.lang == "console":
                self._console(block)

    def _program(self, block: Block) -> None:
        example = block.says.get("example")
        if example is None:
            self._run(["python", "-"], block.place, typed=block.text)
            return
        file = EXAMPLES / example.split("#")[0]
        shutil.copy(file, self._folder / file.name)

    def _console(self, block: Block) -> None:
        commands = commands_of(block)
        for command in commands:
            last, line = command is commands[-1], self._own(command.line)
            if command.line.startswith("make "):
                self._run(["make", "-n", "-C", str(ROOT), *command.line.split()[1:]], block.place)
            elif command.line.startswith("pip install "):
                _check_installable(command.line)
            elif command.line.startswith("export "):
                name, _, value = command.line.removeprefix("export ").partition("=")
                self._env[name] = self._fixed.get(name, value)
            elif "runs on" in block.says:
                self._run_on(command, block.place)
            elif last and "stays" in block.says:
                self._stay(command, block)
            elif last and "soon" in block.says:
                self._repeat(command, block)
            else:
                printed = self._run(
                    ["bash", "-c", line],
                    f"{block.place}\n$ {line}",
                    typed=block.says.get("replies", "") if last else "",
                    ends=_ends(block) if last else 0,
                )
                self._compare(command, printed, block.place)

    def _repeat(self, command: Command, block: Block) -> None:
        """Give a command again until it prints what the page shows: what it tells of happens in another process."""
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            place, patient = f"{block.place}\n$ {command.line}", time.monotonic() < until_s
            try:
                printed = self._run(["bash", "-c", self._own(command.line)], place, ends=_ends(block))
                self._compare(command, printed, block.place)
            except AssertionError:
                if not patient:
                    raise
            else:
                return

    def _stay(self, command: Command, block: Block) -> None:
        """Start a service, and go on when it has printed what the page shows."""
        self._stop_service()
        self._service = Service(
            self._own(command.line), self._folder, self._env, ends=_ends(block), by_itself="ends" in block.says
        )
        self._service.wait_until(lambda printed: self._same(command.output or "", printed), block.place)

    def _stop_service(self) -> None:
        if self._service is not None:
            self._service.stop()
            self._service = None

    def _own(self, text: str) -> str:
        """A text of the page with the ids and the address of this reader."""
        return _RUN_ID.sub(lambda found: self._ids.get(found[0], found[0]), text).replace(ADDRESS, self._address)

    def _same(self, shown: str, printed: str) -> bool:
        """Whether it printed what is shown; an id that the page shows for the first time is the next one printed."""
        new = [name for name in dict.fromkeys(_RUN_ID.findall(shown)) if name not in self._ids]
        given = [name for name in dict.fromkeys(_RUN_ID.findall(printed)) if name not in self._ids.values()]
        before = dict(self._ids)
        self._ids |= dict(zip(new, given, strict=False))
        if matches(self._own(shown), printed):
            return True
        self._ids = before
        return False

    def _compare(self, command: Command, printed: str, place: str) -> None:
        if command.output is not None:
            assert self._same(command.output, printed), (
                f"{place}\n$ {command.line}\nthe page shows:\n{command.output}\nit printed:\n{printed}"
            )

    def _run(self, command: list[str], place: str, *, typed: str = "", ends: int = 0) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, input=typed, text=True, check=False, timeout=TIMEOUT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        # A shell says 128 + N where a signal N ended a process; this sees a shell that became that process.
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        assert code == ends, f"{place}\nended with {code}, not {ends}:\n{done.stdout}"
        return done.stdout

    def _run_on(self, command: Command, place: str) -> None:
        """Start a service, wait for the first line that the page shows, and stop it as a service manager would."""
        shown = (command.output or "").splitlines()
        assert shown, f"{place}: show the first line that it prints"
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.line}"], cwd=self._folder, env=self._env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            printed = process.stdout.readline()
            assert matches(shown[0], printed), f"{place}\nprinted {printed!r}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) in (0, -signal.SIGTERM), place
        finally:
            process.kill()
            process.communicate()


class Service:
    """A command that goes on, in a terminal of its own. ``by_itself``: nobody stops it, and it still ends."""

    def __init__(self, line: str, folder: Path, env: Mapping[str, str], *, ends: int, by_itself: bool) -> None:
        self._line, self._ends, self._by_itself = line, ends, by_itself
        self._screen = folder.parent / f"{folder.name}.screen"
        with self._screen.open("wb") as screen:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=folder, env=dict(env), stdout=screen, stderr=subprocess.STDOUT
            )

    def wait_until(self, seen: Callable[[str], bool], place: str) -> None:
        """Return when its screen is as it should be."""
        until_s = time.monotonic() + TIMEOUT_S
        while not seen(printed := self._screen.read_text(encoding="utf-8")):
            going = self._process.poll() is None and time.monotonic() < until_s
            assert going, f"{place}\n$ {self._line}\nprinted:\n{printed}"
            time.sleep(0.02)

    def stop(self) -> None:
        """Press Ctrl-C, unless it ends by itself; it ends as the page says."""
        if not self._by_itself:
            self._process.send_signal(signal.SIGINT)
        code = self._process.wait(TIMEOUT_S)
        code = code if code >= 0 else 128 - code
        assert code == self._ends, f"$ {self._line}\nended with {code}:\n{self._screen.read_text(encoding='utf-8')}"

    def kill(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.wait()


def _ends(block: Block) -> int:
    return int(block.says.get("ends", "0"))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _check_installable(line: str) -> None:
    """Every extra that a page names exists; installing itself is what made this test run."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.fullmatch(r"pip install '?(?:\.|tollhouse)(?:\[(?P<extras>[\w,]+)\])?'?", line)
    assert named is not None, f"{line}: not an installation of this project"
    extras = set((named["extras"] or "").split(",")) - {""}
    assert extras <= set(project["optional-dependencies"]), f"{line}: there is no such extra"
