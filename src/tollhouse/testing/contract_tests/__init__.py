"""Contract tests: a user's tool is executed against a receiver that misbehaves, and told which promise it breaks.

``assert_tool_contract`` runs every scenario against the faulty receiver, a process of its own; ``assert_guarantee``
compares what a tool really guarantees with what its users rely on. Both are for users' own test suites.
"""

from tollhouse.testing.contract_tests.breaches import BREACHES, Breach
from tollhouse.testing.contract_tests.guarantees import assert_guarantee
from tollhouse.testing.contract_tests.report import Report, ScenarioResult
from tollhouse.testing.contract_tests.run import assert_tool_contract, check_tool_contract

__all__ = [
    "BREACHES",
    "Breach",
    "Report",
    "ScenarioResult",
    "assert_guarantee",
    "assert_tool_contract",
    "check_tool_contract",
]
