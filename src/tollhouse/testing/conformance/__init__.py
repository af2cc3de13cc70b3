"""The conformance suite that every store passes, and that the author of another store can run.

Needs pytest and pytest-asyncio. Subclass :class:`StoreConformance` in a test module and override one fixture::

    from tollhouse.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: my_store.open(f"{tmp_path}/ledger")

``open_store`` returns a function that opens another handle on one and the same store each time it is awaited; the
store is empty when a test begins. Nothing else is needed: the tests speak to
:class:`~tollhouse.ledger.store.Store` only, and take seconds. A store that keeps runs too, as
:class:`~tollhouse.ledger.run_record.RunStore`, passes :class:`RunStoreConformance` in the same way.
"""

from __future__ import annotations

from tollhouse.testing.conformance.history import HistoryTests
from tollhouse.testing.conformance.lives import LifeTests
from tollhouse.testing.conformance.owners import LeaseTests, OrphanTests
from tollhouse.testing.conformance.queries import DueTests, FindTests
from tollhouse.testing.conformance.repeats import ConcurrentTwinTests, RepeatTests
from tollhouse.testing.conformance.run_taking import RegistryTests, RunTenantTests, TakingTests, WakeTests
from tollhouse.testing.conformance.runs import ConcurrentRunTests, RunFindTests, RunWriteTests
from tollhouse.testing.conformance.tenants import TenantTests
from tollhouse.testing.conformance.values import ValueTests
from tollhouse.testing.conformance.writes import (
    ConcurrentWriteTests,
    ConstraintTests,
    OwnerCheckTests,
    RepeatedWriteTests,
    TogetherTests,
    WriteTests,
)

__all__ = ["RunStoreConformance", "StoreConformance"]


class StoreConformance(
    WriteTests,
    OwnerCheckTests,
    RepeatedWriteTests,
    TogetherTests,
    ConcurrentWriteTests,
    ConstraintTests,
    RepeatTests,
    ConcurrentTwinTests,
    LeaseTests,
    OrphanTests,
    HistoryTests,
    FindTests,
    DueTests,
    ValueTests,
    TenantTests,
    LifeTests,
):
    """Everything a store promises; see the module's docstring."""


class RunStoreConformance(
    RunWriteTests,
    ConcurrentRunTests,
    RunFindTests,
    TakingTests,
    WakeTests,
    RegistryTests,
    RunTenantTests,
):
    """Everything that a store which keeps runs promises besides; see the module's docstring."""
