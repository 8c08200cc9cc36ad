"""``sagaspan approvals watch``: what waits is shown as it comes, and answered in place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from sagaspan import ApprovalPending, Guard, Inbox
from sagaspan import _owner as owner
from sagaspan._approvals import Approvals
from sagaspan._characters import cells
from sagaspan.cli._watch import Watch, listed
from sagaspan.stores import connect
from tests.terminal import Terminal


@pytest.fixture
def terminal(guard: Guard) -> Iterator[Terminal]:
    """A watcher on a terminal."""
    assert guard.approvals.list() == []  # there is a ledger to watch
    terminal = Terminal(sys.executable, "-m", "sagaspan", "approvals", "watch")
    yield terminal
    terminal.close()


Pay = Callable[[Any], None]


@pytest.fixture
def paid() -> list[Any]:
    """What was paid."""
    return []


@pytest.fixture
def pay(guard: Guard, paid: list[Any]) -> Pay:
    """A payment that is asked about."""

    @guard.tool(approve=True, effect="write")
    def pay(amount: Any) -> None:
        paid.append(amount)

    return pay


def test_a_request_is_answered_where_it_is_shown(guard: Guard, pay: Pay, paid: list[Any], terminal: Terminal) -> None:
    """It comes up while it is watched, is shown whole, and who waits for it in another process goes on.

    What was typed before it was shown is no answer to it.
    """
    terminal.until("Nothing waits for approval")
    with guard.override(approver=Inbox(wait=60)):
        agent = threading.Thread(target=pay, args=("x\x1b[2J\u202e",))
        agent.start()
        terminal.until("1 opens one")
        terminal.press("1a\n")
        terminal.until("[a]pprove, [d]eny, [e]dit or [l]ater?")
        assert '"x\\u{1b}[2J\\u{202e}"' in terminal.shown
        assert "Approve exactly this?" in terminal.shown
        terminal.press("l\n")
        terminal.until("1 opens one")
        assert [request.state for request in guard.approvals.list()] == ["pending"]
        terminal.press("1")
        terminal.until("[a]pprove, [d]eny, [e]dit or [l]ater?", at_the_end=True)
        terminal.press("a\n")
        terminal.until("is approved.")
        agent.join(60)
    assert paid == ["x\x1b[2J\u202e"]
    assert guard.approvals.list(status="consumed")[0].approved_by == (owner.os_user(),)
    terminal.until("Nothing waits for approval")
    terminal.press("q")
    assert terminal.process.wait(60) == 0


def _ask(pay: Pay, amount: Any) -> str:
    with pytest.raises(ApprovalPending) as caught:
        pay(amount)
    return caught.value.approval_id


@pytest.fixture
def view(guard: Guard) -> Approvals:
    """What a watcher looks at."""
    return Approvals(guard._engine.store, channel="cli")


def test_what_is_typed_is_carried_out(view: Approvals, guard: Guard, pay: Pay, capsys: Any) -> None:
    """Denied with a reason, edited, left for later; and what was decided meanwhile is only told."""
    with guard.override(approver="inbox"):
        requests = [view.get(_ask(pay, amount)) for amount in (1, 2, 3, 4)]
    view.deny(requests[3].id)
    watch = Watch(view, guard._engine.store, roles=(), interval=0.01)
    typed = ["d", "too much", "e", '{"amount": 20}', "l"]
    watch._read = lambda _: typed.pop(0)
    for request in requests:
        watch._decide(request)
    states = [str(view.get(request.id).state) for request in requests]
    assert states == ["denied", "superseded", "pending", "denied"]
    assert view.get(requests[0].id).reason == "too much"
    assert view.list(status="approved")[0].args == {"amount": 20}
    assert typed == []
    assert f"{requests[3].id} is denied already" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ['{"amount": "\\ud800"}', '{"amount": 1e999}', "[1]", "\udcff"])
def test_what_nobody_can_record_is_asked_again(view: Approvals, guard: Guard, pay: Pay, arguments: str) -> None:
    """The watcher goes on; what is no text is none."""
    with guard.override(approver="inbox"):
        request = view.get(_ask(pay, 1))
    watch = Watch(view, guard._engine.store, roles=(), interval=0.01)
    typed = iter(["\udcff", "e", arguments, "d", "\udcff"])
    watch._read = lambda _: next(typed)
    watch._decide(request)
    assert (str(view.get(request.id).state), view.get(request.id).reason) == ("denied", None)


def test_what_cannot_be_decided_here_is_said(store_url: str, capsys: Any) -> None:
    """What is encrypted is for who has the codec; the watcher goes on."""
    guard = Guard(store_url, codec=_Codec(), approver="inbox")
    request_id = _ask(guard.tool("pay", approve=True)(lambda amount: amount), 1)
    guard.close()
    with closing(connect(store_url)) as store:
        watch = Watch(Approvals(store, channel="cli"), store, roles=(), interval=0.01)
        typed = ["d", "too much"]
        watch._read = lambda _: typed.pop(0)
        request = watch._view.get(request_id)
        watch._decide(request)
        assert watch._view.get(request_id).state == "pending"
    assert "there is no codec here" in " ".join(capsys.readouterr().out.split())


class _Codec:
    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


def test_every_change_is_told_once(view: Approvals, guard: Guard, pay: Pay) -> None:
    """What waits, what comes, and how each ends; for programs."""
    told: list[tuple[str, str]] = []
    watch, known = Watch(view, guard._engine.store, roles=(), interval=0.01), {}

    def look() -> None:
        nonlocal known
        known = watch._told(known, lambda request: told.append((request.id, str(request.state))))

    with guard.override(approver="inbox"):
        first = _ask(pay, 1)
        look()
        look()
        second = _ask(pay, 2)
        look()
        view.approve(first, by="alice")
        view.deny(second, by="alice")
        look()
        look()
    assert told[:2] == [(first, "pending"), (second, "pending")]
    assert sorted(told[2:]) == sorted([(first, "approved"), (second, "denied")])


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_each_request_has_two_rows_in_which_it_is_told_apart(
    view: Approvals, guard: Guard, pay: Pay, columns: int
) -> None:
    """Its number, tool and run, then its arguments; and how many more wait than a terminal shows."""
    with guard.override(approver="inbox"):
        requests = [view.get(_ask(pay, text)) for text in ("x" * 300, "支付" * 100, "\x1b[2J\u202e")]
    rows = listed(requests, 12, columns).plain.split("\n")
    assert [row[:6] for row in rows[0:6:2]] == ["1  pay", "2  pay", "3  pay"]
    assert all(row.startswith("   amount ") for row in rows[1:6:2])
    assert rows[6].startswith("1-3 opens one, q ends; 9 more wait"[: columns - 3])
    assert max(map(cells, rows)) < columns
    assert listed([], 0, columns).plain == "Nothing waits for approval. q ends"
