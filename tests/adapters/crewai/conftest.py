"""A guard with its own ledger, and a log of what really happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sagaspan import Guard
from sagaspan.testing._stores import empty_ledger


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    (tmp_path / "ledger.db").write_bytes(empty_ledger())
    with Guard(f"sqlite:///{tmp_path}/ledger.db") as guard:
        yield guard


@pytest.fixture
def world() -> list[object]:
    """Every effect of a tool is appended here."""
    return []


@pytest.fixture(params=["native", "react"])
def native(request: pytest.FixtureRequest) -> bool:
    """Both protocols of calling tools: the provider's own, and text."""
    return bool(request.param == "native")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """CrewAI warns of its own deprecations while it does what it always did."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"))
