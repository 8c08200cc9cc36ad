"""Agents whose process is killed in the middle: they go on from a checkpoint or from the start, and repeat nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Worker
from tests.nursery import Nursery

IMPORTS = """
import langchain.agents, langgraph.checkpoint.sqlite, sagaspan_langchain._graphs, tests.adapters.langchain.scripts
"""
# The agent means to pay twice. Its model makes up new call ids whenever it is asked.
AGENT = """
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from tests.adapters.langchain.scripts import ScriptedModel, ask, on
guard = Guard(os.environ["TEST_STORE"], prices={"scripted": {"input": 0, "output": 0}})
crash, times = os.environ.get("CRASH", ""), 0
class Model(ScriptedModel):
    def _generate(self, messages, *args, **options):
        if crash == "after" and times:
            die()
        return super()._generate(messages, *args, **options)
@tool
def pay(to: str) -> str:
    "Pay."
    global times
    times += 1
    if crash == "before":
        die()
    effect(f"pay-{to}")
    if crash == "in":
        die()
    return f"paid {to}"
def was_paid(to, call):
    paid = effects.read_text().count(f"pay-{to}") if effects.exists() else 0
    return Applied(f"paid {to}") if paid > len(done(call)) else NotApplied()
def done(call):
    return [one for one in guard.runs.get("t/1").calls if one.tool == "pay" and one.state == "done"]
PAY = ("pay", {"to": "A"})
policies = {"pay": {"effect": "write", "repeat": "new", "probe": was_paid}, **POLICIES}
options = {"durability": os.environ["DURABILITY"]}
with SqliteSaver.from_conn_string(str(effects.parent / "checkpoints.db")) as saver:
    graph = create_agent(Model(script=[[PAY], [PAY]]), [pay], checkpointer=saver)
    agent = guard.wrap(graph, policies)
    go_on = os.environ["GO"] == "on" and bool(agent.get_state(on("t")).values)
    yes = Command(resume={"decisions": [{"type": "approve"}]})
    given = yes if os.environ["GO"] == "yes" else None if go_on else ask()
    agent.invoke(given, on("t"), **options)
    print(*(f"{run.id}:{run.status}" for run in guard.runs.list()))
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Its workers have LangChain imported already."""
    nursery = Nursery(IMPORTS)
    yield nursery
    nursery.close()


def _life(worker: Worker, durability: str, go: str, crash: str = "", policies: str = "{}") -> Any:
    script = AGENT.replace("POLICIES", policies)
    done = worker.run(script, DURABILITY=durability, GO=go, CRASH=crash, PYTHONPATH=str(Path(__file__).parents[3]))
    assert done.returncode == (-signal.SIGKILL if crash else 0), done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("crash", ["before", "in", "after"])
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_killed_agent_pays_as_often_as_it_means_to(worker: Worker, durability: str, crash: str) -> None:
    """Twice: with a checkpoint it goes on there; without one it gets its input again, and its turn is the same run."""
    _life(worker, durability, "new", crash)
    assert _life(worker, durability, "on") == "t/1:completed"
    assert worker.effects == ["pay-A", "pay-A"]


def test_nor_does_one_that_is_killed_again_and_again(worker: Worker) -> None:
    """Each life does what is left."""
    for crash in ("before", "in", "after"):
        _life(worker, "exit", "new" if crash == "before" else "on", crash)
    assert _life(worker, "exit", "on") == "t/1:completed"
    assert worker.effects == ["pay-A", "pay-A"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_killed_agent_is_not_asked_about_again(worker: Worker, durability: str) -> None:
    """Killed in the call that was approved: one question, one approval, one effect."""
    policies = "{'pay': {'effect': 'write', 'approve': True, 'probe': was_paid}}"
    _life(worker, durability, "new", policies=policies)
    _life(worker, durability, "yes", "in", policies)
    assert _life(worker, durability, "yes", policies=policies) == "t/1:completed"
    assert worker.effects == ["pay-A"]


# -- the example -----------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[3] / "examples" / "refund.py"


def _refund(nursery: Nursery, *words: str, dies: bool = False) -> str:
    argv = ["refund.py", *words]
    script = f"import runpy, sys\nsys.argv = {argv!r}\nrunpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    environment = {"HOME": str(Path.cwd()), **({"REFUND_DIES": "1"} if dies else {})}
    done = nursery.run(script, environment, str(Path.cwd()))
    assert done.returncode == (-signal.SIGKILL if dies else 0), done.stderr
    return done.stdout


def test_the_example_waits_dies_and_goes_on(nursery: Nursery) -> None:
    """Killed after the bank has booked: resumed, it asks the bank, and pays nothing again."""
    assert "waits for approval: refund {'order': '7', 'amount': 50.0}" in _refund(nursery, "refund order 7")
    _refund(nursery, "approve", dies=True)
    assert "Done: refunded 50.00" in _refund(nursery, "resume")
    assert len(Path("bank.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"), [(["edit", "20"], "Done: refunded 20.00"), (["reject", "too late"], "too late")]
)
def test_the_example_takes_other_answers(nursery: Nursery, words: list[str], said: str) -> None:
    """An edit pays less, a no nothing."""
    _refund(nursery, "refund order 7")
    assert said in _refund(nursery, *words)
    assert Path("bank.jsonl").exists() is (words[0] == "edit")
