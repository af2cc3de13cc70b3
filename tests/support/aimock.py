"""A server that answers as OpenAI and Anthropic do: npm's `@copilotkit/aimock`, one process for each test process.

`tests/conftest.py` makes the fixtures known. A test says what is answered with `aimock.serve(...)`, in the words of
aimock's own fixture files, and reads what was asked in `aimock.requests()`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

NODE = Path(__file__).resolve().parent.parent / "node"
_CLI = NODE / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
_LISTENING = "listening on "


class Aimock:
    """A running aimock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._control = httpx2.Client(base_url=f"{url}/__aimock", trust_env=False)

    def serve(self, *fixtures: dict[str, Any]) -> None:
        """Answer with these from now on, the first that matches."""
        self._control.post("/fixtures", json={"fixtures": list(fixtures)}).raise_for_status()

    def say(self, content: str, **more: Any) -> None:
        """Answer everything with this text."""
        self.serve({"match": {}, "response": {"content": content}, **more})

    def requests(self) -> list[dict[str, Any]]:
        """What was asked since the last reset, oldest first: `path`, `headers` and `body` of each."""
        entries: list[dict[str, Any]] = self._control.get("/journal").raise_for_status().json()
        return entries

    def reset(self) -> None:
        """Forget all answers and requests."""
        self._control.post("/reset").raise_for_status()

    def close(self) -> None:
        self._control.close()


@pytest.fixture(scope="session")
def aimock_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    """The process behind `aimock`; tests use that instead."""
    if not _CLI.is_file():
        pytest.fail("aimock is not installed: run `make test`, which installs what tests/node names")
    empty = tmp_path_factory.mktemp("aimock") / "none.json"
    empty.write_text('{"fixtures": []}')
    command = ["node", str(_CLI), "-p", "0", "-f", str(empty), "--log-level", "info"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if _LISTENING in line:
                break
        else:
            pytest.fail(f"aimock did not start: {''.join(lines)}")
        aimock = Aimock(line.partition(_LISTENING)[2].strip())
        yield aimock
        aimock.close()
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture
def aimock(aimock_process: Aimock) -> Aimock:
    """An aimock that answers nothing yet and was asked nothing."""
    aimock_process.reset()
    return aimock_process
