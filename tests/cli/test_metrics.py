"""``sagaspan metrics``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import pytest

from sagaspan import Guard
from tests.cli.conftest import Sagaspan

SERIES = re.compile(r'sagaspan_status_items\{.*kind="(\w+)",.*state="(\w+)"\} (\d+)\.0')


def _counts(text: str) -> dict[tuple[str, str], int]:
    """What is not 0, by kind and state."""
    return {(kind, state): int(count) for kind, state, count in SERIES.findall(text) if count != "0"}


@pytest.mark.usefixtures("day")
def test_what_needs_a_person_is_printed_once(sagaspan: Sagaspan, home: Path) -> None:
    """For a textfile collector: every kind and state, most of them 0, and the ledger they are of."""
    answer = sagaspan("metrics", "--once")
    assert answer.code == 0
    assert _counts(answer.out) == {("run", "partially_compensated"): 1, ("call", "compensation_failed"): 1}
    assert len(SERIES.findall(answer.out)) > 10
    assert f'sagaspan_ledger="sqlite:///{home}/ledger.db"' in answer.out
    listed = sagaspan("metrics", "--json").json
    assert {"items": 0, "sagaspan.ledger": f"sqlite:///{home}/ledger.db", "sagaspan.status.kind": "freeze",
            "sagaspan.status.state": "frozen"} in listed  # fmt: skip
    assert len(listed) == len(SERIES.findall(answer.out))


@pytest.fixture
def served(guard: Guard, home: Path) -> Iterator[str]:
    """Where a real exporter listens that reads this home's ledger."""
    guard.freeze("tool:pay", reason="a trial")
    command = [sys.executable, "-m", "sagaspan", "metrics", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        yield re.findall(r"http://\S+/metrics", said)[0]
        process.terminate()
        assert process.wait(60) == 0


def test_each_scrape_counts_the_ledger(served: str, guard: Guard, home: Path) -> None:
    """What changed since the last one is seen. While the ledger cannot be read the scrape fails: no green stays."""
    opener = build_opener(ProxyHandler({}))
    assert _counts(opener.open(served).read().decode()) == {("freeze", "frozen"): 1}
    guard.unfreeze("tool:pay")
    assert _counts(opener.open(served).read().decode()) == {}
    guard.close()
    for file in home.glob("ledger.db*"):
        file.unlink()
    with pytest.raises(HTTPError) as refused:
        opener.open(served)
    with refused.value as answer:
        assert answer.code == 503


def test_a_port_that_is_taken_is_said(sagaspan: Sagaspan, guard: Guard, served: str) -> None:
    """With what to do."""
    port = served.rpartition(":")[2].partition("/")[0]
    answer = sagaspan("metrics", "--port", port)
    assert answer.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in answer.err
    assert "--port" in answer.err
