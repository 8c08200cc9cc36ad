"""A home with a day's work in it, and the program as a person calls it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from sagaspan import Guard, configure_tracing
from sagaspan.cli import main


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of the program said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Sagaspan = Callable[..., Answer]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, named by the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("SAGASPAN_STORE", "SAGASPAN_TRACE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SAGASPAN_HOME", str(tmp_path / ".sagaspan"))
    return tmp_path / ".sagaspan"


@pytest.fixture
def sagaspan(home: Path, capfd: pytest.CaptureFixture[str]) -> Sagaspan:
    """``sagaspan("runs", "list")``, in this process; ``sql`` answers in a child of it."""

    def call(*args: str) -> Answer:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main(list(args))
        captured = capfd.readouterr()
        return Answer(int(exit_info.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def guard(home: Path) -> Iterator[Guard]:
    """A guard whose spans go to the home's traces."""
    provider = TracerProvider(shutdown_on_exit=False)
    configure_tracing("test", directory=home / "traces", tracer_provider=provider)
    with Guard(tracer_provider=provider) as guard:
        yield guard
    provider.shutdown()


@pytest.fixture
def day(guard: Guard) -> None:
    """A run that completed (``paid-1``), one rolled back (``lost-1``), and one that could not be (``stuck-1``)."""

    def cancel(result: dict) -> str:
        if result["order"] == "stuck":
            raise RuntimeError("the hotel does not answer")
        return "cancelled"

    @guard.tool(compensate=cancel)
    def book(order: str) -> dict:
        return {"order": order, "note": "\x1b[31mred\u202e"}

    @guard.tool(effect="write", key="order")
    def pay(order: str) -> str:
        return "paid"

    with guard.run("trip", id="paid-1", user="42"):
        book("fine")
        pay("order-17")
    for order in ("lost", "stuck"):
        with pytest.raises(Exception, match=r"no|undone"), guard.run("trip", id=f"{order}-1"):
            book(order)
            raise ValueError("no")
