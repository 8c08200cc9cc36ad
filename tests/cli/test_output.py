"""Files that the command line writes: only their owner can read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Sagaspan

EXPORTS = [
    ["traces", "export", "-f", "json"],
    ["traces", "export", "-f", "parquet"],
    ["runs", "export", "paid-1"],
    ["audit", "export"],
    ["sql", "from spans", "-f", "csv"],
    ["sql", "from spans", "-f", "parquet"],
]


@pytest.fixture
def open_umask() -> Iterator[None]:
    """As of a user whose files others may read."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("day", "open_umask")
@pytest.mark.parametrize("command", EXPORTS, ids=" ".join)
def test_an_export_is_readable_by_its_owner_alone(command: list[str], sagaspan: Sagaspan, tmp_path: Path) -> None:
    """Its mode is 0600 from the moment it is created."""
    target = tmp_path / "out"
    assert sagaspan(*command, "-o", str(target)).code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.usefixtures("day")
def test_a_file_that_is_there_keeps_its_mode(sagaspan: Sagaspan, tmp_path: Path) -> None:
    """Who made it readable for a group knows why."""
    target = tmp_path / "out.json"
    target.touch()
    target.chmod(0o640)
    assert sagaspan("traces", "export", "-o", str(target)).code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
