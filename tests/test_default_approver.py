"""Who is asked where a guard names no approver: who sits at the terminal, if no event loop waits; else the inbox."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

from sagaspan import Guard
from tests.terminal import Terminal

SHOWN = "Approve exactly this?"
QUESTION = "[a]pprove, [d]eny, [e]dit or [l]ater? "
# A line is one text: what two threads print piece by piece is mixed.
PROGRAM = """
import asyncio, logging, os, sys, threading
from sagaspan import ApprovalPending, Guard

class Told(logging.Handler):
    def emit(self, record):
        print(f"the log says {'sagaspan approvals list' in record.getMessage()}", flush=True)

logging.getLogger("sagaspan").addHandler(Told())
guard = Guard(os.environ["TEST_STORE"])

@guard.tool(approve=True, effect="write")
def pay(amount):
    print(f"paid {amount}", flush=True)

@guard.tool(approve=True, effect="write")
async def apay(amount):
    print(f"paid {amount}", flush=True)

def order(amount):
    try:
        pay(amount)
    except ApprovalPending:
        print(f"{amount} waits", flush=True)

async def in_a_loop():
    order(3)
    try:
        await apay(4)
    except ApprovalPending:
        print("4 waits", flush=True)

askers = [threading.Thread(target=order, args=(amount,)) for amount in (1, 2)]
for asker in askers:
    asker.start()
for asker in askers:
    asker.join()
asyncio.run(in_a_loop())
sys.stdin.readline()
"""


@pytest.fixture
def terminal(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A program on a terminal whose guard names nobody."""
    monkeypatch.setenv("TEST_STORE", store_url)
    terminal = Terminal(sys.executable, "-c", textwrap.dedent(PROGRAM))
    yield terminal
    terminal.close()


def _until(terminal: Terminal, done: Callable[[str], bool]) -> str:
    for _ in range(300):
        if done(terminal.written):
            return terminal.written
        terminal.read(0.1)
    raise AssertionError(terminal.written)


def test_on_a_terminal_its_user_is_asked_one_question_at_a_time(terminal: Terminal, store_url: str) -> None:
    """The second thread asks when the first is answered; in an event loop nobody is asked, as all of it would wait."""
    _until(terminal, lambda said: QUESTION in said)
    with Guard(store_url) as other:
        _until(terminal, lambda _: len(other.approvals.list()) == 2)  # both have something to ask
        terminal.read(0.3)
        assert terminal.written.count(SHOWN) == 1
        terminal.press("a\n")
        _until(terminal, lambda said: said.count(QUESTION) == 2)
        terminal.press("l\n")
        said = _until(terminal, lambda said: "4 waits" in said or said.count(SHOWN) > 2)
        assert said.count(SHOWN) == 2
        assert [words for words in ("paid ", "3 waits", "the log says True") if words not in said] == []
        assert sorted(one.args["amount"] for one in other.approvals.list())[-2:] == [3, 4]
