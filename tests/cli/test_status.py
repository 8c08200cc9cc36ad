"""``sagaspan status``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sagaspan import Guard
from tests.cli.conftest import Sagaspan

DIES_IN_A_WRITE = """
import os
from sagaspan import Guard
guard = Guard()
@guard.tool(effect="write")
def pay(): os._exit(9)
with guard.run("trip", id="dead-1"): pay()
"""


def test_nothing_to_do_is_exit_code_0(sagaspan: Sagaspan, guard: Guard) -> None:
    """A cron job stays silent."""
    with guard.run("trip", id="fine"):
        pass
    answer = sagaspan("status")
    assert (answer.code, answer.out.strip()) == (0, "Nothing needs you.")
    assert sagaspan("status", "--json").json == []


@pytest.mark.usefixtures("day")
def test_what_could_not_be_undone_needs_a_person(sagaspan: Sagaspan) -> None:
    """The run and the step, each with its next command; exit code 4."""
    answer = sagaspan("status", "--json")
    assert answer.code == 4
    assert {(item["kind"], item["state"]) for item in answer.json} == {
        ("run", "partially_compensated"),
        ("call", "compensation_failed"),
    }
    assert all(sagaspan(*item["next"].split()[1:]).code == 0 for item in answer.json)


def test_a_dead_process_is_seen_at_once(sagaspan: Sagaspan, home: Path) -> None:
    """A run and a write that its process never finished are listed without waiting for a lease."""
    done = subprocess.run([sys.executable, "-c", DIES_IN_A_WRITE], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    answer = sagaspan("status", "--json")
    assert answer.code == 4
    assert {(item["kind"], item["id"] if item["kind"] == "run" else item["what"]) for item in answer.json} == {
        ("run", "dead-1"),
        ("call", "pay"),
    }
