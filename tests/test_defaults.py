"""What a guard does where its code does not say: the environment, else the policy file, else the default."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sagaspan import BudgetExceeded, ConfigurationError, Guard, LoopDetected, StoreUnavailable
from sagaspan._checks import VARIABLES
from sagaspan.ledger import fail_open
from tests.outages import Outage


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The policy file."""
    return tmp_path / "sagaspan.toml"


def _calls_that_fit(guard: Guard) -> int:
    """How many calls a run has before its budget is used up."""
    act = guard.tool("act", effect="write")(lambda n: n)
    done = []
    with contextlib.suppress(BudgetExceeded), guard.run("r"):
        for n in range(10):
            done.append(act(n))
    return len(done)


@pytest.mark.parametrize(
    ("argument", "environment", "in_file", "fit"),
    [(None, None, None, 10), (None, None, "3 calls", 3), (None, "4 calls", "3 calls", 4), (None, " ", "3 calls", 3),
     ("5 calls", "4 calls", "3 calls", 5), ([], "4 calls", None, 10), (None, "4 calls, 2 USD", None, 4)],
)  # fmt: skip
def test_the_budget_of_a_run(
    store_url: str, file: Path, monkeypatch: pytest.MonkeyPatch, argument: Any, environment: str | None,
    in_file: str | None, fit: int,
) -> None:  # fmt: skip
    """``SAGASPAN_BUDGET``: below the code, above the file."""
    if environment is not None:
        monkeypatch.setenv("SAGASPAN_BUDGET", environment)
    file.write_text(f"[guard]\nbudget = '{in_file}'" if in_file else "")
    with Guard(store_url, budget=argument, policies=file) as guard:
        assert _calls_that_fit(guard) == fit


@pytest.mark.parametrize(
    ("environment", "in_file", "allowed"),
    [(None, "", 5), (None, "loop = 2", 2), ("3", "loop = 2", 3), ("off", "loop = 2", 12), (None, "loop = false", 12)],
)
def test_the_calls_of_a_loop(
    store_url: str, file: Path, monkeypatch: pytest.MonkeyPatch, environment: str | None, in_file: str, allowed: int
) -> None:
    """``SAGASPAN_LOOP``: of tools whose policy does not say, and of ``check_loop``."""
    if environment is not None:
        monkeypatch.setenv("SAGASPAN_LOOP", environment)
    file.write_text(f"[guard]\n{in_file}")
    with Guard(store_url, policies=file) as guard:
        look = guard.tool("look", effect="read")(lambda: 1)
        mine = guard.tool("mine", effect="read", loop=4)(lambda: 1)
        for ask, fit in ((look, allowed), (lambda: guard.check_loop("other"), allowed), (mine, 4)):
            asked = 0
            with contextlib.suppress(LoopDetected), guard.run("r"):
                for _ in range(12):
                    ask()
                    asked += 1
            assert asked == fit


@pytest.fixture
def down(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a ledger that is there, and out of reach."""
    monkeypatch.setattr(fail_open, "RETRY_SECONDS", 0.0)
    Guard(outage.url).calls.list()
    with outage.down():
        yield outage.url


@pytest.mark.parametrize(
    ("argument", "environment", "in_file", "goes_on"),
    [(None, None, "", False), (None, None, "fail_open = true", True), (None, "yes", "", True),
     (None, "0", "fail_open = true", False), (False, "1", "fail_open = true", False), (True, "0", "", True)],
)  # fmt: skip
def test_an_outage(
    down: str, file: Path, monkeypatch: pytest.MonkeyPatch, argument: bool | None, environment: str | None,
    in_file: str, goes_on: bool,
) -> None:  # fmt: skip
    """``SAGASPAN_FAIL_OPEN``: reads, and calls of models, while the ledger is down."""
    if environment is not None:
        monkeypatch.setenv("SAGASPAN_FAIL_OPEN", environment)
    file.write_text(f"[guard]\n{in_file}")
    guard = Guard(down, policies=file, fail_open=argument)
    assert guard.fail_open is goes_on
    look = guard.tool("look", effect="read")(lambda: 1)
    if goes_on:
        assert look() == 1
        with guard.llm_call("gpt-4o", input_tokens=1, max_output_tokens=1) as call:
            call.record_usage(input_tokens=1, output_tokens=1)
        return
    for ask in (look, guard.llm_call("gpt-4o", input_tokens=1, max_output_tokens=1).__enter__):
        with pytest.raises(StoreUnavailable):
            ask()


@pytest.mark.parametrize("limit", [{"budget": "9 calls"}, {"budgets": {"tool:*": "9 calls", "model:*": "9 calls"}}])
def test_what_has_a_budget_fails_closed(down: str, limit: Any) -> None:
    """Nobody could count it: an outage is no way around a limit."""
    guard, ran = Guard(down, fail_open=True, **limit), []
    look = guard.tool("look", effect="read")(lambda: ran.append(1))
    for ask in (look, guard.llm_call("gpt-4o", input_tokens=1, max_output_tokens=1).__enter__):
        with pytest.raises(StoreUnavailable):
            ask()
    assert ran == []


@pytest.mark.parametrize(
    ("variable", "text"),
    [("BUDGET", "2"), ("BUDGET", "-1 USD"), ("LOOP", "five"), ("LOOP", "-1"), ("FAIL_OPEN", "maybe")],
)  # fmt: skip
def test_an_environment_that_says_nothing_is_refused(
    store_url: str, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    """By its name."""
    monkeypatch.setenv(f"SAGASPAN_{variable}", text)
    with pytest.raises(ConfigurationError, match=f"SAGASPAN_{variable}"):
        Guard(store_url)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("BUGET", "BUDGET"), ("BUDGETS", "BUDGET"), ("budget", "BUDGET"), ("LOOPS", "LOOP"), ("STOER", "STORE"),
     ("HOEM", "HOME"), ("SECRETS", "SECRET"), ("LEASE_SECOND", "LEASE_SECONDS")],
)  # fmt: skip
def test_a_variable_that_is_nearly_a_setting_is_refused(
    store_url: str, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    """A limit that is misspelt would not hold, and nobody would see it; other variables are none of ours."""
    monkeypatch.setenv("SAGASPAN_OF_SOMEBODY_ELSE", "1")
    Guard(store_url)
    monkeypatch.setenv(f"SAGASPAN_{name}", "1")
    with pytest.raises(
        ConfigurationError, match=f"SAGASPAN_{name}, which is no setting; did you mean SAGASPAN_{meant}"
    ):
        Guard(store_url)


@pytest.mark.parametrize(
    ("text", "says"),
    [("guard = 1", "[guard]"), ("[guard]\nbuget = '1 USD'", "did you mean budget"), ("[guard]\nloop = true", "loop"),
     ("[guard]\nloop = 0", "loop"), ("[guard]\nfail_open = 1", "fail_open"), ("[guard]\nbudget = 2", "budget")],
)  # fmt: skip
def test_a_file_that_says_nothing_is_refused(store_url: str, file: Path, text: str, says: str) -> None:
    """By what is written there."""
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Guard(store_url, policies=file)
    assert says in str(caught.value)
    assert "sagaspan.toml" in str(caught.value)


def test_every_variable_that_is_read_is_known_as_one() -> None:
    """What is misspelt is found among these."""
    root = Path(__file__).parents[1]
    sources = [*(root / "src").rglob("*.py"), *(root / "adapters").rglob("*.py")]
    read = {name for file in sources for name in re.findall(r'"SAGASPAN_([A-Z_]+)"', file.read_text(encoding="utf-8"))}
    assert read == set(VARIABLES)
