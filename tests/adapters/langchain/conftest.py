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
    with Guard(f"sqlite:///{tmp_path}/ledger.db", prices={"scripted": {"input": 0, "output": 0}}) as guard:
        yield guard


@pytest.fixture
def world() -> list[object]:
    """Every effect of a tool is appended here."""
    return []
