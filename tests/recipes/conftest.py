"""Real parts for the recipes: a payment provider, a mail server and object storage."""

from __future__ import annotations

import asyncio
import importlib.util
import mailbox
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tollhouse.testing.ports import free_port

RECIPES = Path(__file__).resolve().parents[2] / "examples" / "recipes"


@pytest.fixture
def recipe() -> Callable[[str], ModuleType]:
    """Loads one recipe as a fresh module."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def stripe_port() -> Iterator[int]:
    """A payment provider in a process of its own, which ignores idempotency keys."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("localstripe")), "--port", str(port), "--from-scratch"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _wait_for(f"http://127.0.0.1:{port}/js.stripe.com/v3/", process)
        yield port
        process.terminate()


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Object storage in a process of its own."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _wait_for(f"http://127.0.0.1:{port}/moto-api/", process)
        made = urllib.request.Request(f"http://127.0.0.1:{port}/shop", method="PUT")
        with urllib.request.urlopen(made, timeout=10):
            yield port
        process.terminate()


class MailServer:
    """A real SMTP server that archives what it takes; the next ``forget_replies`` letters are not answered in time."""

    def __init__(self, folder: Path) -> None:
        from aiosmtpd.controller import Controller

        self.archive, self.forget_replies = folder, 0
        with closing(mailbox.Maildir(folder, create=True)):
            pass
        self.controller = Controller(self, hostname="127.0.0.1", port=free_port())

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.controller.port}"

    @property
    def letters(self) -> list[str]:
        """Subjects in the archive."""
        with closing(mailbox.Maildir(self.archive)) as archive:
            return sorted(str(message["Subject"]) for message in archive)

    async def handle_DATA(self, _server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - its name there
        """Archive a letter, and answer it unless told to forget."""
        del session
        with closing(mailbox.Maildir(self.archive)) as archive:
            archive.add(envelope.content)
        if self.forget_replies:
            self.forget_replies -= 1
            await asyncio.sleep(2)
        return "250 taken"


@pytest.fixture
def mail_server(tmp_path: Path) -> Iterator[MailServer]:
    """A mail server with an empty archive."""
    server = MailServer(tmp_path / "archive")
    server.controller.start()
    yield server
    server.controller.stop()


def _wait_for(url: str, process: subprocess.Popen[Any]) -> None:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as answered:
            answered.close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing listens at {url}")
