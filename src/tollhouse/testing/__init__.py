"""Public test tools: contract tests for your tools, a faulty receiver, proxies, crash points, a conformance suite.

Names are loaded when they are first used, since pytest imports this package in every project that has Tollhouse.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tollhouse.testing.contract_tests import (
        BREACHES,
        Breach,
        Report,
        ScenarioResult,
        assert_guarantee,
        assert_tool_contract,
        check_tool_contract,
    )
    from tollhouse.testing.proxy import Proxy
    from tollhouse.testing.receiver import Fault, Receiver

__all__ = [
    "BREACHES",
    "Breach",
    "Fault",
    "Proxy",
    "Receiver",
    "Report",
    "ScenarioResult",
    "assert_guarantee",
    "assert_tool_contract",
    "check_tool_contract",
]

_HOMES = {"Fault": "receiver", "Receiver": "receiver", "Proxy": "proxy"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'contract_tests')}"), name)
