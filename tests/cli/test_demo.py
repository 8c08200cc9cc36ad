"""``sagaspan demo``: what it tells people to type next works."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.conftest import Sagaspan

pytest.importorskip("langchain")


def test_what_it_says_next_works(sagaspan: Sagaspan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that it prints; the paid trip is undone by the demo's own tools, but for the card."""
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    monkeypatch.setenv("TRIP_WORLD", "put back afterwards")
    told = sagaspan("demo")
    assert told.code == 0, told.err
    assert "exactly as before: nothing was done twice" in told.out
    commands = [shlex.split(line)[1:] for line in told.out.splitlines() if line.strip().startswith("sagaspan ")]
    assert len(commands) == 7
    codes = {}
    for command in commands:
        undoing = command[0] == "compensate"
        codes[command[0]] = sagaspan(*command, *(["--yes"] if undoing else [])).code
    assert codes == {"sql": 0, "traces": 0, "show": 0, "runs": 0, "compensate": 4, "status": 4}
    (item,) = sagaspan("status", "--json").json
    assert item["state"] == "partially_compensated"
    shown = sagaspan(*item["next"].split()[1:]).out
    resolve = next(line for line in shown.splitlines() if "calls resolve" in line).split("sagaspan ")[1]
    assert sagaspan(*shlex.split(resolve.replace("WHY", "refunded"))).code == 0
    assert sagaspan("status").code == 0
