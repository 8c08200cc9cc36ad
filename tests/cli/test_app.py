"""``--app MODULE:GUARD``: a module is imported for its tools, and for nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Sagaspan

TOOLS = """
import sys
from pathlib import Path
from sagaspan import Guard
guard = Guard()
@guard.tool(effect="write")
def pay(): Path("paid").touch()
"""


@pytest.fixture(autouse=True)
def _folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "shop", raising=False)


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        ('with guard.run("trip", id="order-17"): pay()', "the run 'order-17' was started by importing 'shop'"),
        ("pay()", "a call of a tool was started by importing 'shop'"),
        (
            "import asyncio\nasync def main():\n    async with guard.run(id='a'): pay()\nasyncio.run(main())",
            "the run 'a'",
        ),
    ],
)
def test_what_its_module_starts_is_refused(sagaspan: Sagaspan, does: str, sentence: str) -> None:
    """Looking at a run must not run the agent again: the answer says where to put it."""
    Path("shop.py").write_text(TOOLS + does)
    answer = sagaspan("recover", "--app", "shop:guard")
    assert answer.code == 2
    said = " ".join(answer.err.split())
    assert sentence in said
    assert 'under `if __name__ == "__main__":`' in said
    assert not Path("paid").exists()
    assert not Path(".sagaspan/ledger.db").exists()


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        ('raise ValueError("no API key")', "importing 'shop' failed: ValueError: no API key"),
        ("sys.exit(3)", "importing 'shop' failed: SystemExit: 3"),
        ("guard.tool(5)", "importing 'shop' failed: guard.tool takes a function or a name, not an int"),
    ],
)
def test_a_module_that_fails_is_a_sentence(sagaspan: Sagaspan, does: str, sentence: str) -> None:
    """What was wrong with it, and exit code 2."""
    Path("shop.py").write_text(TOOLS + does)
    answer = sagaspan("recover", "--app", "shop:guard", "--json")
    assert (answer.code, answer.json["kind"]) == (2, "UsageError")
    assert sentence in answer.json["error"]


def test_afterwards_its_tools_run(sagaspan: Sagaspan) -> None:
    """Only importing is without effect."""
    Path("shop.py").write_text(TOOLS)
    assert sagaspan("recover", "--app", "shop").code == 0
    import shop

    with shop.guard.run(id="a"):
        shop.pay()
    assert Path("paid").exists()


def test_it_names_the_ledger_too(sagaspan: Sagaspan) -> None:
    """A guard with a store of its own: what is asked of ``--app`` is asked of that."""
    Path("shop.py").write_text(TOOLS.replace("Guard()", 'Guard("sqlite:///elsewhere.db")'))
    assert sagaspan("runs", "list").code == 1
    import shop

    with shop.guard.run(id="a"):
        pass
    assert [run["id"] for run in sagaspan("runs", "list", "--app", "shop", "--json").json] == ["a"]
    assert sagaspan("doctor", "--app", "shop").code == 0


def test_the_doctor_names_policies_for_nothing(sagaspan: Sagaspan) -> None:
    """With the nearest names."""
    Path("shop.py").write_text(TOOLS.replace("Guard()", 'Guard(policies={"pya": {"timeout": 3}})'))
    found = {finding["what"]: finding for finding in sagaspan("doctor", "--app", "shop", "--json").json}
    assert found["app"]["found"] == "shop, 1 tools"
    assert "'pya'" in found["policy"]["found"]
    assert "did you mean pay?" in found["policy"]["found"]
