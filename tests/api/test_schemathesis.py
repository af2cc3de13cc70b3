"""The OpenAPI document and the server agree: Schemathesis, with every check, finds nothing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Serve, called
from tests.api.shop import Shop
from tollhouse import Tool, destructive, external, tool
from tollhouse.house.access import Scope

SEED = 20261129
EXAMPLES = 25
CONFIG = Path(__file__).with_name("schemathesis.toml")
COMMAND = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


@tool(external())
async def issue_credit(account_id: str, amount_cents: int) -> dict[str, Any]:
    """Credit an account: the tool of the document's examples."""
    return {"credit_id": f"cr-{account_id}", "amount_cents": amount_cents}


@tool(destructive(), name="erase")
async def erase(path: str) -> str:
    """Erase a file, once a person agrees."""
    return path


async def prepared(client: httpx.AsyncClient) -> None:
    """The call of the document's examples, and one that is held."""
    example = {"account_id": "a1", "amount_cents": 2500}
    assert (await called(client, "issue_credit", example, "order-7:refund")).status_code == 200
    assert (await called(client, "erase", {"path": "/a"}, "held")).status_code == 202


# Its runs are long, and two of them would share the cores.
@pytest.mark.timeout(240)
async def test_schemathesis_finds_nothing(serve: Serve, shop: Shop, tmp_path: Path) -> None:
    """Examples, boundaries, made-up requests and sequences, right and wrong ones, from a fixed seed."""
    tools: list[Tool[Any]] = [issue_credit, erase, *(each for each in shop.tools if each.name in ("balance", "lost"))]
    served = await serve(*tools, keys=True)
    await prepared(await served.of("agent"))
    _, token = await served.keys.create("ada", [Scope.ADMIN])
    code, told = await schemathesis(served.url, token, tmp_path)
    assert code == 0, told
    assert "Tested: " in told


async def schemathesis(url: str, token: str, folder: Path, *more: str) -> tuple[int, str]:
    """Run it in a process of its own, with these further options; its exit code and what it said."""
    options = {
        "--checks": "all",
        "--seed": str(SEED),
        "--max-examples": str(EXAMPLES),
        "--header": f"Authorization: Bearer {token}",
        "--generation-database": "none",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, "--config-file", str(CONFIG), "run", f"{url}/openapi.json"),
        *(part for pair in options.items() for part in pair),
        *("--continue-on-failure", "--no-color", *more),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, told.decode(errors="replace")
