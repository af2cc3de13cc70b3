"""A house belongs to the process that opened it: a forked child is refused, and the parent notices nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.crash.process import ROOT

ASYNC = """
import asyncio, os, sys
from tollhouse import Tollhouse, external, happened, tool
from tollhouse.errors import HouseClosed

@tool(external())
async def credit() -> str:
    return "cr-1"

async def refused(house):
    asked = [
        house.call(credit, key="child"), house.get("parent"), house.count(), house.reconcile("parent"),
        house.wait("parent"), house.resolve("parent", happened(), by="ada", reason="seen"),
    ]
    for one in asked:
        try:
            await one
        except HouseClosed as closed:
            assert "fork" in closed.cause, closed.cause
        else:
            return 1
    await house.close()
    return 0

async def main():
    async with Tollhouse.open(sys.argv[1], tools=[credit], lease_s=1.0) as house:
        await house.call(credit, key="parent")
        child = os.fork()
        if not child:
            code = 1
            try:
                code = await refused(house)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (await house.call(credit, key="after")).value == "cr-1"
        assert (await house.call(credit, key="parent")).replayed
        assert sum((await house.count()).values()) == 2

asyncio.run(main())
"""
SYNC = """
import os, sys
from tollhouse import Tollhouse, external, tool
from tollhouse.errors import HouseClosed

@tool(external())
async def credit() -> str:
    return "cr-1"

with Tollhouse.open_sync(sys.argv[1], tools=[credit], lease_s=1.0) as house:
    house.call(credit, key="parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            house.call(credit, key="child")
        except HouseClosed as closed:
            code = 0 if "fork" in closed.cause else 2
        house.close()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert house.call(credit, key="after").value == "cr-1"
    assert house.call(credit, key="parent").replayed
    assert sum(house.count().values()) == 2
"""
LEFT_BY_CHILD = """
import os, sys
from tollhouse import Tollhouse, external, tool

@tool(external())
async def credit() -> str:
    return "cr-1"

with Tollhouse.open_sync(sys.argv[1], tools=[credit], lease_s=1.0) as house:
    house.call(credit, key="parent")
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert house.call(credit, key="after").value == "cr-1"
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("script", [ASYNC, SYNC, LEFT_BY_CHILD], ids=["async", "sync", "child leaves the block"])
async def test_forked_child_is_refused_and_the_parent_goes_on(house_store_url: str, script: str) -> None:
    """In a child nothing answers for ever: it is told, at once, that a handle does not cross a fork."""
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, house_store_url],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
