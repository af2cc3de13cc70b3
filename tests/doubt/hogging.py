"""Tools for workers that misbehave towards their own process."""

import time
from collections.abc import Callable
from typing import Any

from tollhouse import external, tool
from tollhouse.contract.tool import Tool


def tools(reach: Callable[[str], None], *, seconds: float = 0.0) -> list[Tool[Any]]:
    """``hog`` blocks the event loop for ``seconds``."""

    @tool(external())
    async def hog() -> str:
        reach("inside_hog")
        time.sleep(seconds)
        return "done"

    return [hog]
