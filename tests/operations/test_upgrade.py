"""Upgrading under load: the release before and the new one work beside each other, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tollhouse
from tests.operations.scenes import TOOLS, fill, pay
from tollhouse import Tollhouse
from tollhouse.errors import StoreSchema
from tollhouse.operations.purge import purge
from tollhouse.stores import check, upgrade

OLD_SCHEMA = 1

PROCESS = """
import asyncio, sys
from tollhouse import Tollhouse, external, tool
from tollhouse.errors import TollhouseError
from tollhouse.stores import check

@tool(external())
async def pay(to: str) -> str:
    return f"paid {to}"

async def main():
    loop, url = asyncio.get_running_loop(), sys.argv[1]
    async with Tollhouse.open(url, tools=[pay], every_s=0.1) as house:
        print("ready", (await check(url)).latest, flush=True)
        command = loop.run_in_executor(None, sys.stdin.readline)
        called = 0
        while not command.done():
            await house.call(pay, {"to": str(called)}, key=f"{sys.argv[2]}:{called}")
            called += 1
        key = (await command).strip()
        try:
            print(called, (await house.call(pay, {"to": key}, key=f"pay:{key}")).value, flush=True)
        except TollhouseError as error:
            print(called, error.code, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def release_before(tmp_path: Path) -> Path:
    """A folder with the package as it was before its last migration: it knows the first schema only."""
    folder = tmp_path / "before"
    later = [f"{number:04}_*" for number in range(OLD_SCHEMA + 1, 100)]
    unwanted = shutil.ignore_patterns("__pycache__", *later)
    shutil.copytree(Path(tollhouse.__file__).parent, folder / "tollhouse", ignore=unwanted)
    return folder


class Caller:
    """A process of one release that calls and calls until it is told to end."""

    def __init__(self, url: str, name: str, package: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, url, name],
            env={name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            | {"PYTHONPATH": str(package)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        word, latest = self._process.stdout.readline().split()
        assert word == "ready"
        self.latest = int(latest)

    def end_with(self, to: str) -> tuple[int, str]:
        """How many calls it made without an error, and what paying that one came to."""
        said, _ = self._process.communicate(f"{to}\n", timeout=60)
        assert self._process.returncode == 0
        called, _, answer = said.strip().partition(" ")
        return int(called), answer

    def kill(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def calling(url: str, name: str, package: Path) -> Iterator[Caller]:
    """A caller that is killed in the end."""
    caller = Caller(url, name, package)
    try:
        yield caller
    finally:
        caller.kill()


async def test_both_releases_call_while_the_schema_is_upgraded(house_store_url: str, release_before: Path) -> None:
    """The old one made the ledger; the new one works on it as it is, upgrades it, and the old one goes on."""
    new_package = Path(tollhouse.__file__).parents[1]
    with (
        calling(house_store_url, "old", release_before) as old,
        calling(house_store_url, "new", new_package) as new,
    ):
        report = await check(house_store_url)
        assert (report.version, old.latest, new.latest) == (OLD_SCHEMA, OLD_SCHEMA, report.latest)
        assert report.latest > OLD_SCHEMA
        assert await upgrade(house_store_url) == list(report.pending)
        with calling(house_store_url, "older", release_before) as later:
            for caller in (old, new, later):
                called, answer = caller.end_with("last")
                assert called > 0
                assert answer == "paid last"


async def test_release_before_is_held_to_what_the_new_one_purged(house_store_url: str, release_before: Path) -> None:
    """It knows nothing of purging, yet a purged key is taken for it, too."""
    with calling(house_store_url, "old", release_before) as old:
        await upgrade(house_store_url)
        async with Tollhouse.open(house_store_url, tools=TOOLS, background=False, grace_s=0.0) as house:
            await house.call(pay, {"to": "ada"}, key="pay:ada")
        await purge(house_store_url, "default", older_than_s=-60.0)
        assert old.end_with("ada")[1] == "result_purged"


async def test_new_release_works_on_the_schema_before(house_store_url: str, release_before: Path) -> None:
    """Calls need no upgrade; what does says so and changes nothing."""
    with calling(house_store_url, "old", release_before) as old:
        old.end_with("first")
    async with Tollhouse.open(house_store_url, tools=TOOLS, background=False, grace_s=0.0) as house:
        await fill(house)
        with pytest.raises(StoreSchema, match="version") as refused:
            await purge(house_store_url, "default", older_than_s=0)
        assert "db upgrade" in refused.value.remedy
    assert (await check(house_store_url)).version == OLD_SCHEMA
