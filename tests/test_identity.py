"""Whose tool, whose compensation: names are shared, objects are not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, RunClosed


class Client:
    """Somebody's account somewhere."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def pay(self, amount: int) -> int:
        self.log.append(f"pay {amount}")
        return amount

    def refund(self, result: int) -> None:
        self.log.append(f"refund {result}")


async def test_concurrent_requests_undo_with_their_own_compensation(guard: Guard) -> None:
    """Closures over a client of one request undo at that client, however many declare the same names meanwhile."""

    async def request(number: int, client: Client) -> None:
        async def cancel(result: int) -> None:
            client.refund(result)

        @guard.tool(compensate=cancel)
        async def book(amount: int) -> int:
            await asyncio.sleep(0.01)
            return client.pay(amount)

        with pytest.raises(RuntimeError):
            async with guard.run("request", id=f"request-{number}"):
                await book(number)
                await asyncio.sleep(0.05)
                raise RuntimeError

    clients = [Client() for _ in range(4)]
    await asyncio.gather(*(request(number, client) for number, client in enumerate(clients)))
    assert [client.log for client in clients] == [[f"pay {n}", f"refund {n}"] for n in range(4)]


def test_methods_of_two_objects_undo_each_at_its_own(guard: Guard) -> None:
    """The later declaration does not take over what the earlier one did."""
    a, b = Client(), Client()
    pay_a = guard.wrap(a.pay, {"pay": {"compensate": a.refund}})
    pay_b = guard.wrap(b.pay, {"pay": {"compensate": b.refund}})
    with pytest.raises(RuntimeError), guard.run("r"):
        pay_a(1)
        pay_b(2)
        raise RuntimeError
    assert (a.log, b.log) == (["pay 1", "refund 1"], ["pay 2", "refund 2"])


def test_an_equal_write_of_another_object_is_refused_not_skipped(guard: Guard) -> None:
    """A write is done once by its name and arguments; two things under one name would silently be one."""
    a, b = Client(), Client()
    pay_a, pay_b = (guard.wrap(client.pay, {"pay": {"effect": "write"}}) for client in (a, b))
    with guard.run("r") as run:
        pay_a(5)
        with pytest.raises(ConfigurationError, match="different names"):
            pay_b(5)
        pay_b(6)
    assert (a.log, b.log) == (["pay 5"], ["pay 6"])
    assert len(run.calls) == 2


@dataclass(frozen=True)
class Account:
    """A value: equal ones are one."""

    number: str


def made(held: Any, log: list[object]) -> Callable[..., Any]:
    """A tool that closes over ``held``."""

    def pay(amount: int) -> int:
        log.append((held, amount))
        return amount

    return pay


def made_by_default(held: Any, log: list[object]) -> Callable[..., Any]:
    """One that has it as a default, which no caller gives."""

    def pay(amount: int, *, idempotency_key: str = held) -> int:
        log.append((held, amount))
        return amount

    return pay


def within(held: Any, log: list[object]) -> Callable[..., Any]:
    """One that closes over a function that closes over it, and over itself."""

    def send(amount: int) -> int:
        log.append((held, amount, send, pay))
        return amount

    def pay(amount: int) -> int:
        return send(amount)

    return pay


SHARED = Client()


@pytest.mark.parametrize("make", [made, within])
@pytest.mark.parametrize("hold", [lambda: "a", lambda: 1.5, lambda: None, lambda: SHARED, lambda: Account("".join("a")),
                                  lambda: ("a", (SHARED,))])  # fmt: skip
def test_a_tool_that_a_factory_makes_anew_is_the_same_tool(guard: Guard, make: Any, hold: Callable[[], Any]) -> None:
    """What it is made with is identical, or equal and not to be changed: an equal write is answered."""
    log: list[object] = []
    with guard.run("r") as run:
        for _ in range(2):
            assert guard.wrap(make(hold(), log), {"pay": {"effect": "write"}})(5) == 5
    assert len(log) == len(run.calls) == 1


@pytest.mark.parametrize("make", [made, within, made_by_default])
@pytest.mark.parametrize("pair", [("a", "b"), (1, True), ([], []), ({}, {}), (Client(), Client()),
                                  (Account("a"), Account("b")), ((1,), (True,)), (("a", []), ("a", []))])  # fmt: skip
def test_one_that_is_made_with_another_thing_is_another_tool(
    guard: Guard, make: Any, pair: tuple[object, object]
) -> None:
    """Two lists that are equal now are two things: a write to the one is none to the other."""
    log: list[object] = []
    pays = [guard.wrap(make(held, log), {"pay": {"effect": "write"}}) for held in pair]
    with guard.run("r"):
        pays[0](5)
        with pytest.raises(ConfigurationError, match="different names"):
            pays[1](5)
    assert len(log) == 1


def test_what_two_things_undo_is_guessed_by_no_other_process(guard: Guard, store_url: str) -> None:
    """Where only the process that made a call knew which was meant, another one leaves it queued."""
    a, b = Client(), Client()
    with guard.run(id="r"):
        guard.wrap(a.pay, {"pay": {"compensate": a.refund}})(1)
    with Guard(store_url) as other:
        for client in (a, b):
            other.wrap(client.pay, {"pay": {"compensate": client.refund}})
        with pytest.raises(Exception, match="waits for one that has it"):
            other.compensate("r")
    assert (a.log, b.log) == (["pay 1"], [])
    guard.compensate("r")
    assert a.log == ["pay 1", "refund 1"]


def test_a_write_in_a_thread_without_the_run_is_warned_of(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """A plain thread does not inherit the run, so nothing there is done once or undone."""
    pay = guard.tool("pay", effect="write")(lambda: 1)
    with caplog.at_level(logging.WARNING, "sagaspan"), guard.run("r"):
        thread = threading.Thread(target=pay)
        thread.start()
        thread.join()
    assert "outside a run" in caplog.text


def test_an_agent_that_could_not_be_wrapped_is_in_nobody_s_way(guard: Guard) -> None:
    """What it declared before it failed is forgotten."""

    def one() -> int:
        return 1

    def two() -> int:
        return 2

    with pytest.raises(ConfigurationError, match="nothing can fill"):
        guard.wrap([one, two], {"one": {"compensate": "nobody"}, "two": {"compensate": lambda odd: odd}})
    assert guard.wrap(two)() == 2


@pytest.mark.parametrize("bad", ["", 5])
def test_an_empty_id_is_no_id(guard: Guard, bad: object) -> None:
    """A variable that is not set must not become a random id: every retry would pay again."""
    with pytest.raises(ConfigurationError, match="id="):
        guard.run("r", id=bad)


class TestWhatIsSaid:
    """Nothing ends in silence."""

    def test_a_held_run_says_so_on_the_error(self, guard: Guard) -> None:
        """As a rollback does."""

        @guard.tool(effect="write")
        def pay() -> None:
            {}["x"]

        with pytest.raises(KeyError) as failure, guard.run(id="r"):
            pay()
        assert "held" in failure.value.__notes__[0]

    def test_a_held_run_says_so_in_the_log(self, guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
        """Where the error was swallowed."""
        pay = guard.tool("pay", effect="write", error_means="unknown")(lambda: 1 / 0)
        with caplog.at_level(logging.WARNING, "sagaspan"), guard.run(id="r"), pytest.raises(ZeroDivisionError):
            pay()
        assert "held" in caplog.text

    def test_undeclared_steps_are_named(self, guard: Guard) -> None:
        """Nobody said whether they changed anything, so the note does not say that all is undone."""
        send = guard.tool("send_email")(lambda: 1)
        book = guard.tool("book", compensate=lambda: None)(lambda: 1)
        with pytest.raises(ValueError, match="no") as failure, guard.run(id="r"):
            book()
            send()
            raise ValueError("no")
        assert "undeclared, so perhaps still in force: send_email" in failure.value.__notes__[0]

    def test_a_write_still_in_force_forbids_reopening(self, guard: Guard) -> None:
        """Starting over would do it twice."""
        pay = guard.tool("pay", effect="write")(lambda: 1)
        with pytest.raises(ValueError, match="no"), guard.run(id="r"):
            pay()
            raise ValueError("no")
        with pytest.raises(RunClosed, match="needs a person"), guard.run(id="r", reopen=True):
            pass

    def test_a_read_that_timed_out_holds_nothing(self, guard: Guard) -> None:
        """It changed nothing, so what was done before is undone."""
        log: list[str] = []
        book = guard.tool("book", compensate=lambda: log.append("undo"))(lambda: 1)
        slow = guard.tool("slow", effect="read", timeout=0.02)(lambda: threading.Event().wait(0.2))
        with pytest.raises(TimeoutError), guard.run(id="r") as run:
            book()
            slow()
        assert log == ["undo"]
        assert run.status == "compensated"
