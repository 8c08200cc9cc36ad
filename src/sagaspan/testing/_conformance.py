"""What every store must do, as tests: subclass it, say how a store of yours is made, and let pytest run it."""

from __future__ import annotations

from sagaspan.testing._conformance_budgets import BudgetsConform
from sagaspan.testing._conformance_calls import CallsConform
from sagaspan.testing._conformance_races import RacesConform
from sagaspan.testing._conformance_reading import ReadingConforms
from sagaspan.testing._conformance_trail import TrailConforms


class StoreConformance(CallsConform, BudgetsConform, ReadingConforms, TrailConforms, RacesConform):
    """The tests of a store. A subclass brings a fixture ``make_store``: a function that opens the test's ledger.

    The ledger is empty at first. Each call of ``make_store`` opens it once more, as another process would::

        class TestMyStore(StoreConformance):
            @pytest.fixture
            def make_store(self, tmp_path):
                return lambda: MyStore(tmp_path / "ledger")
    """
