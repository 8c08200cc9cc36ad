"""For tests of your own agents: let them crash at every step, fail on order, and stop the clock. Docs: testing.md.

Nothing here is imported by ``import sagaspan``, and nothing needs pytest.
"""

from sagaspan.testing._assertions import assert_history, assert_settled, assert_undone
from sagaspan.testing._conformance import StoreConformance
from sagaspan.testing._crashes import CrashPoint, crash_points
from sagaspan.testing._failures import Failure, fail
from sagaspan.testing._frozen import FrozenClock, frozen_clock
from sagaspan.testing._lives import Crash
from sagaspan.testing._stores import ledgers_on, temporary_store
from sagaspan.testing._worlds import World

__all__ = [
    "Crash",
    "CrashPoint",
    "Failure",
    "FrozenClock",
    "StoreConformance",
    "World",
    "assert_history",
    "assert_settled",
    "assert_undone",
    "crash_points",
    "fail",
    "frozen_clock",
    "ledgers_on",
    "temporary_store",
]
