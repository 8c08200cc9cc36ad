"""The kill storm in small, and that its judgement is a judgement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.proofs.storm import Figures, Pass, check_books
from tests.proofs.wal_record import ROOT


def test_a_small_storm(tmp_path: Path) -> None:
    """Nothing is done twice and nothing is lost where nobody helps; without the library somebody is charged twice.

    It forks, and must not fork a test's threads: so it is run as the command that it is.
    """
    file = tmp_path / "figures.json"
    sizes = ["--workers", "3", "--orders", "10", "--seed", "6", "--arms", "neither,control"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.storm", "--json", str(file), *sizes],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--seed 6" in done.stdout
    guarded, control = json.loads(file.read_text())["passes"]
    assert (guarded["doubled"], guarded["lost"], guarded["wrong"]) == (0, 0, [])
    assert guarded["doubts"] == sum(guarded["explained"].values()) > 0
    assert control["doubled"] > 0


def _books(*entries: str) -> list[dict[str, str]]:
    return [{"order": "1", "what": what, "key": str(number)} for number, what in enumerate(entries)]


def _judged(arm: str, books: list[dict[str, str]]) -> list[str]:
    done = Pass(figures=Figures(arm=arm, orders=1))
    check_books(done, books, arm)
    return done.wrong


def test_what_the_books_say() -> None:
    """In force twice is what is done again before it was undone; undone too early is what was not done."""
    assert _judged("status", _books("charge", "undo-charge", "charge")) == []
    assert _judged("status", _books("charge", "charge", "undo-charge")) == ["order 1: charge was in force twice"]
    assert _judged("status", _books("undo-charge", "charge")) == ["order 1: charge was undone before it was done"]
    one_key = [{**entry, "key": "k"} for entry in _books("charge", "undo-charge", "charge")]
    assert _judged("status", one_key) == ["charge had 2 effects under one key"]


def test_a_storm_that_charges_nobody_twice_proves_nothing() -> None:
    """The control arm must show what the library prevents."""
    assert _judged("control", _books("charge", "charge")) == []
    assert "proves nothing" in _judged("control", _books("charge", "undo-charge", "charge"))[0]
