"""The lossy tool for workers."""

from collections.abc import Callable
from typing import Any

from tests.doubt.scenes import lossy
from tollhouse.contract.tool import Tool


def tools(reach: Callable[[str], None]) -> list[Tool[Any]]:
    """``credit``, whose every reply is lost."""
    return [lossy()]
