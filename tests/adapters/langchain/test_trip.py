"""The example of the demo: an agent file that knows nothing of the guard, and a world that can be counted."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sagaspan import Guard
from tests.adapters.langchain.scripts import ask

TRIP = Path(__file__).parents[3] / "examples" / "trip.py"


@pytest.fixture
def trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a fresh module with a world of its own."""
    monkeypatch.setenv("TRIP_WORLD", str(tmp_path / "world.jsonl"))
    monkeypatch.delenv("TRIP_CARD", raising=False)
    spec = importlib.util.spec_from_file_location("trip", TRIP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "trip", module)
    spec.loader.exec_module(module)
    return module


def test_it_knows_nothing_of_the_guard() -> None:
    """The example imports nothing of this library: that is its point."""
    assert "import sagaspan" not in TRIP.read_text()
    assert "from sagaspan" not in TRIP.read_text()


def test_it_runs_by_itself(tmp_path: Path) -> None:
    """``python examples/trip.py`` books a trip in the working directory."""
    done = subprocess.run([sys.executable, TRIP], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "booked and paid" in done.stdout
    assert len((tmp_path / "trip-world.jsonl").read_text().splitlines()) == 3


def test_without_a_guard_a_declined_card_leaves_the_bookings(trip: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The damage: a flight and a room that nobody pays for."""
    monkeypatch.setenv("TRIP_CARD", "declined")
    with pytest.raises(trip.CardDeclined):
        trip.agent.invoke(ask(trip.TASK))
    assert {kind: counts["active"] for kind, counts in trip.bookings().items()} == {
        "flight": 1,
        "hotel": 1,
        "charge": 0,
    }


def test_under_a_guard_they_are_cancelled(guard: Guard, trip: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same agent under a guard leaves nothing behind, and the caller still gets the bank's error."""
    monkeypatch.setenv("TRIP_CARD", "declined")
    policies = {
        "book_flight": {"compensate": trip.cancel_flight},
        "book_hotel": {"compensate": trip.cancel_hotel},
        "charge_card": {"effect": "write"},
    }
    with pytest.raises(trip.CardDeclined):
        guard.wrap(trip.agent, policies).invoke(ask(trip.TASK))
    assert trip.bookings() == {
        "flight": {"active": 0, "cancelled": 1, "booked": 1},
        "hotel": {"active": 0, "cancelled": 1, "booked": 1},
        "charge": {"active": 0, "cancelled": 0, "booked": 0},
    }
