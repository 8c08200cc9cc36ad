"""What is in the wheel, and what the top level of the repository is."""

from __future__ import annotations

import subprocess
import tomllib
import zipfile
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {
    "pyproject.toml", "README.md", "LICENSE", "src", "adapters", "tests", "dashboards", "examples", "docs",
    "otel-collector.yaml",
}  # fmt: skip


def _tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return done.stdout.splitlines()


def test_the_top_level_is_the_house_and_nothing_else() -> None:
    """Nobody drops a file where a stranger looks first."""
    top = {name.partition("/")[0] for name in _tracked()}
    assert {name for name in top if not name.startswith(".")} <= TOP


def test_no_lock_file_is_committed() -> None:
    """Floors live in pyproject.toml, and CI tests the oldest and the newest."""
    assert not [name for name in _tracked() if name.endswith(("uv.lock", "package-lock.json"))]


def test_entry_points_name_every_adapter() -> None:
    """Each folder below adapters/ is found by ``guard.wrap``."""
    folders = {path.name for path in (ROOT / "adapters").iterdir() if (path / "__init__.py").is_file()}
    found = {point.value.partition(":")[0] for point in entry_points(group="sagaspan.adapters")}
    assert folders <= found


def test_the_wheel_has_everything_it_needs(tmp_path: Path) -> None:
    """SQL files, type markers, adapters and the demo's agent travel with the code."""
    built = subprocess.run(
        ["uv", "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "sagaspan/py.typed", "sagaspan/examples/trip.py", "sagaspan/stores/migrations/sqlite/0001_initial.sql",
        "sagaspan/index/schema.sql", "sagaspan/index/views.sql", "sagaspan_langchain/__init__.py",
        "sagaspan_functions/__init__.py", "sagaspan_langchain/py.typed", "sagaspan_crewai/py.typed",
    } <= names  # fmt: skip
    assert not [name for name in names if name.startswith("tests/")]


def test_dependencies_have_floors_and_no_upper_pins() -> None:
    """An upper pin would fight the framework the user already has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    versions = [requirement.partition(";")[0] for requirement in required]
    assert all(">=" in version and "<" not in version.replace("<=", "") for version in versions)
