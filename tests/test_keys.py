"""What makes two calls the same, and the key that downstream is told (rule book (a) 1 and 3)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from sagaspan import ConfigurationError, Guard, KeyConflict, keys


@pytest.fixture
def pay(guard: Guard) -> Callable[..., Any]:
    """A write that counts its runs in its result."""
    runs: list[Any] = []

    @guard.tool(effect="write")
    def pay(amount: Any, card: Any = "c1") -> int:
        runs.append((amount, card))
        return len(runs)

    return pay


def test_arguments_are_bound_first(guard: Guard, pay: Callable[..., int]) -> None:
    """By position, by name and by default: one call."""
    with guard.run():
        assert [pay(5), pay(amount=5), pay(5, "c1"), pay(card="c1", amount=5)] == [1, 1, 1, 1]


def test_dict_order_does_not_matter(guard: Guard, pay: Callable[..., int]) -> None:
    """The same mapping in another order is the same call."""
    with guard.run():
        assert pay({"a": 1, "b": [1, 2]}) == pay({"b": [1, 2], "a": 1}) == 1
        assert pay({"a": 1, "b": [2, 1]}) == 2


def test_numbers_by_the_rule_of_canonical_json(guard: Guard, pay: Callable[..., int]) -> None:
    """1 and 1.0 are one number (RFC 8785); "1", True, None and a tuple of it are not."""
    with guard.run():
        assert pay(1) == pay(1.0) == 1
        assert [pay("1"), pay(True), pay(None), pay([1]), pay((1,))] == [2, 3, 4, 5, 6]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.floats(0, 1e17) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def _written(how: Callable[[Any], bytes], data: Any) -> bytes | None:
    try:
        return how(data)
    except ValueError:
        return None


@example([1e-5, 0.0001, 9999999999999998.0, 1e16, 1e21, -0.0, -1.5, 2**53, {"\ue000": 1, "\U0001f600": 2, "é": 3}])
@given(_JSON)
def test_what_is_hashed_is_canonical_json(data: Any) -> None:
    """As the library of RFC 8785 writes it, or refused as it refuses it."""
    assert _written(keys.canonical, data) == _written(rfc8785.dumps, data)


@given(st.text(), st.text(), st.text(), st.integers(0))
def test_the_key_that_downstream_is_told_never_changes(scope: str, tool: str, key: str, generation: int) -> None:
    """A service remembers it for longer than a version of this library lasts."""
    told = hashlib.sha256(json.dumps(["default", scope, tool, key, generation]).encode()).hexdigest()[:40]
    assert keys.idempotency_key("default", scope, tool, key, generation) == told


def test_big_integers_differ_from_their_neighbours(guard: Guard, pay: Callable[..., int]) -> None:
    """Integers beyond 2^53 are told apart exactly, also from floats of the same size."""
    with guard.run():
        assert [pay(2**53), pay(2**53 + 1), pay(2.0**53), pay(2**70)] == [1, 2, 3, 4]


FINGERPRINT = """
from collections import deque
from fractions import Fraction
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from sagaspan import codecs, keys
rare = {Path("a"), Path("b"), Fraction(1, 3), ip_address("::1")}
value = {"r": rare, "q": deque([rare, bytearray(b"x")]), "n": SimpleNamespace(b=1, a=2)}
value = {"rare": value, "s": {"b", "a", "c", 1, 2.5, None, (1, "x")}, "f": frozenset("xyz"), "d": {"k": 1, 2: 3}}
print(keys.fingerprint(codecs.to_json(value)))
"""


def test_fingerprints_are_stable_over_processes() -> None:
    """Hash seeds, and so the order of sets, do not change a fingerprint."""
    seen = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert len(seen) == 1


class Shop:
    """Has a name, by which nobody but itself tells it from another."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sell(self, item: str) -> str:
        return f"{self.name} sold {item}"


def test_self_is_no_part_of_a_call(guard: Guard) -> None:
    """A method's ``self`` reaches the body and is left out of the key and of the record."""
    sell, shop = guard.tool(effect="write")(Shop.sell), Shop("a")
    with guard.run() as run:
        assert sell(shop, "x") == sell(shop, "x") == "a sold x"
        (call,) = run.calls
    assert call.args == {"item": "x"}
    with guard.run():
        assert sell(Shop("b"), "x") == "b sold x"


def test_an_equal_call_on_another_object_is_refused(guard: Guard) -> None:
    """It is no repeat, and answered from the record of the first it would silently not happen."""
    sell = guard.tool(effect="write")(Shop.sell)
    with guard.run() as run:
        assert sell(Shop("a"), "x") == "a sold x"
        with pytest.raises(ConfigurationError, match=r"equal arguments on another Shop.*key=lambda self, item: "):
            sell(Shop("b"), "x")
        assert sell(Shop("b"), "y") == "b sold y"
        assert len(run.calls) == 2


def test_objects_that_are_equal_are_the_same(guard: Guard) -> None:
    """A class that says when two of it are equal says so for its methods too; one that cannot say it does not."""

    @dataclass(frozen=True)
    class Desk:
        name: str

        @guard.tool(effect="write")
        def sell(self, item: str) -> str:
            return f"{self.name} sold {item}"

    class Odd(Shop):
        def __eq__(self, other: object) -> bool:
            raise TypeError("no truth value")

        __hash__ = None  # type: ignore[assignment]

    with guard.run() as run:
        assert Desk("a").sell("x") == Desk("a").sell("x")
        with pytest.raises(ConfigurationError):
            Desk("b").sell("x")
        assert len(run.calls) == 1
    sell = guard.tool("odd", effect="write")(Odd.sell)
    with guard.run():
        sell(Odd("a"), "x")
        with pytest.raises(ConfigurationError):
            sell(Odd("a"), "x")


def test_a_key_tells_two_objects_apart(guard: Guard) -> None:
    """The function gets the object of a method, so both calls happen, each once, also on a resume."""

    def which(self: Shop, item: str) -> str:
        return f"{self.name}/{item}"

    sold = []

    @guard.tool("sell", effect="write", key=which)
    def sell(self: Shop, item: str) -> str:
        sold.append(self.name)
        return f"{self.name} sold {item}"

    for _ in range(2):
        with guard.run(id="r"):
            assert [sell(Shop(name), "x") for name in "aba"] == ["a sold x", "b sold x", "a sold x"]
    assert sold == ["a", "b"]


def test_scopes_of_runs_and_reopenings_never_meet() -> None:
    """A run with a number sign in its id shares no keys with a reopened run."""
    assert keys.run_scope("a", 1) != keys.run_scope("a#1", 0)


def test_the_key_is_injected_and_in_force(guard: Guard, caller: Any) -> None:
    """A declared ``idempotency_key`` is filled, equals the current call's, and is no argument."""
    seen = []

    @caller.tool(guard)
    def pay(amount: int, idempotency_key: str | None = None) -> None:
        call = guard.current_call()
        assert call is not None
        seen.append((idempotency_key, call.idempotency_key, call.idempotency_headers))

    async def job() -> None:
        async with caller.run(guard) as run:
            await caller.call(pay, 5)
            await caller.call(pay, 5, idempotency_key="mine")
            assert [call.args for call in run.calls] == [{"amount": 5}] * 2
            assert run.calls[0].idempotency_key == seen[0][0]

    caller.play(job)
    assert guard.current_call() is None
    injected, current, headers = seen[0]
    assert injected == current
    assert 20 <= len(injected) <= 45
    assert headers == {"Idempotency-Key": injected, "PayPal-Request-Id": injected}
    assert seen[1][0] == "mine"


@pytest.mark.parametrize("args", [(), (1, 2, 3, 4)])
def test_wrong_arguments_are_a_type_error_before_any_claim(guard: Guard, args: tuple[int, ...]) -> None:
    """Arguments that do not fit raise ``TypeError`` and leave no record, also where a key is injected."""

    @guard.tool
    def pay(amount: int, idempotency_key: str) -> None:
        pytest.fail("ran")

    with guard.run() as run:
        with pytest.raises(TypeError):
            pay(*args)
        assert run.calls == ()


def test_a_required_injected_parameter_may_stand_anywhere(guard: Guard) -> None:
    """The injected parameter needs no default, and can be keyword-only or come first."""
    first = guard.tool("first")(lambda idempotency_key, amount=1: idempotency_key)
    last = guard.tool("last")(lambda amount, *, idempotency_key: idempotency_key)
    assert first()
    assert last(1)


def test_the_key_is_stable_over_attempts_and_resumes(guard: Guard) -> None:
    """Attempts, and a claim after a proven failure, tell downstream the same key; a reopened run another."""
    seen: list[str] = []
    fail = True

    @guard.tool(effect="write", compensate=lambda: None, retry={"attempts": 2, "initial_delay": 0})
    def pay(idempotency_key: str) -> None:
        seen.append(idempotency_key)
        if fail:
            raise RuntimeError("declined")

    with pytest.raises(RuntimeError), guard.run("order", id="a"):
        pay()
    fail = False
    with pytest.raises(ValueError), guard.run("order", id="a"):
        pay()
        raise ValueError
    assert len(seen) == 3
    assert len(set(seen)) == 1
    with guard.run("order", id="a", reopen=True):
        pay()
    assert seen[3] != seen[0]


def test_the_key_outlives_its_record(tmp_path: Path) -> None:
    """A ledger that was lost: the same call of the same run tells downstream the same key."""
    keys = set()
    for name in ("first", "second"):
        with Guard(f"sqlite:///{tmp_path}/{name}.db") as guard:
            tool = guard.tool("pay", effect="write")(lambda order, idempotency_key: keys.add(idempotency_key))
            with guard.run(id="a"):
                tool("o-1")
    assert len(keys) == 1


def test_the_key_of_a_business_key_changes_once_it_was_undone(guard: Guard) -> None:
    """After an undone call downstream must not answer for that one: the key changes, and stays so over failures."""
    seen: list[str] = []
    failures = [None, RuntimeError("declined"), None]

    @guard.tool(key="order", compensate=lambda: None)
    def pay(order: str, idempotency_key: str) -> None:
        seen.append(idempotency_key)
        if error := failures[len(seen) - 1]:
            raise error

    with pytest.raises(ValueError), guard.run():
        pay("o")
        raise ValueError
    with guard.run():
        with pytest.raises(RuntimeError):
            pay("o")
        pay("o")
    assert seen[0] != seen[1] == seen[2]
    recorded = [call.idempotency_key for run in guard.runs.list() for call in guard.runs.get(run.id).calls]
    assert set(seen) < set(recorded)


def test_business_keys_over_all_runs(guard: Guard, caller: Any) -> None:
    """``key=`` is one call in every run and outside; the same key with other arguments is a conflict."""
    ran = []

    @caller.tool(guard, key=lambda order: f"order-{order}")
    def pay(order: int, amount: int = 1) -> int:
        ran.append(order)
        return len(ran)

    async def job() -> None:
        async with caller.run(guard):
            assert await caller.call(pay, 7) == 1
        async with caller.run(guard):
            assert await caller.call(pay, 7) == 1
            with pytest.raises(KeyConflict, match="other arguments") as caught:
                await caller.call(pay, 7, amount=2)
            assert (caught.value.tool_ran, caught.value.call.args) == ("no", {"order": 7, "amount": 1})
        assert await caller.call(pay, 7) == 1

    caller.play(job)
    assert ran == [7]


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("\u4e00" * 667, "its key has 2001 bytes, and 2000 are the most; .* by their hash"),
        ("a\0b", r"its key 'a\\x00b' has a NUL at 1, which no server holds; leave it out"),
        ({"note": "x" * 2000}, "its key has 2011 bytes"),
    ],
)
def test_a_key_that_not_every_store_holds_is_refused(guard: Guard, key: Any, sentence: str) -> None:
    """Before anything of the call is on record, and on each store alike; the longest that fits is a key to its end."""
    ran: list[Any] = []
    act = guard.tool("act", effect="write", key=lambda what: what)(lambda what: ran.append(what))
    longest = "".join(map(chr, range(0x4E00, 0x4E00 + 665)))
    with guard.run(id="r"):
        with pytest.raises(ConfigurationError, match=f"tool 'act' did not run: {sentence}") as caught:
            act(key)
        assert caught.value.tool_ran == "no"
        for end in ("1", "2", "1"):
            act(longest + end)
    assert ran == [f"{longest}1", f"{longest}2"]
    assert len(guard.runs.get("r").calls) == 2


def test_key_expressions_and_unencodable_arguments(guard: Guard) -> None:
    """An argument without encoding needs ``key=``; with it the record says what it was."""

    @guard.tool
    def send(client: object, order: int) -> None: ...

    @guard.tool("keyed", key="order")
    def keyed(client: object, order: int) -> int:
        return order

    with guard.run() as run:
        with pytest.raises(ConfigurationError, match=r"argument client is of the type object.*declare key="):
            send(object(), 1)
        assert keyed(object(), 1) == 1
        assert run.calls[0].args == {"client": "<object, not recorded>", "order": 1}


@pytest.mark.parametrize("key", ["order", lambda order: order])
@pytest.mark.parametrize("value", ["", None])
def test_an_empty_key_is_refused(guard: Guard, key: Any, value: Any) -> None:
    """A key that comes out empty would make all calls one: nothing runs."""
    pay = guard.tool("pay", key=key)(lambda order: pytest.fail("ran"))
    with pytest.raises(ConfigurationError, match="empty"):
        pay(value)


def test_a_key_that_cannot_be_recorded_is_refused(guard: Guard) -> None:
    """A key function that gives no plain data is a ``ConfigurationError``, before anything runs."""
    pay = guard.tool("pay", key=lambda order: object())(lambda order: pytest.fail("ran"))
    with pytest.raises(ConfigurationError, match="its key is of the type object"):
        pay(1)


def test_a_key_expression_that_fails_runs_nothing(guard: Guard) -> None:
    """An expression that cannot be evaluated over these arguments refuses the call by name."""
    pay = guard.tool("pay", key="order.id")(lambda order: pytest.fail("ran"))
    with pytest.raises(ConfigurationError, match=r"pay.*order\.id"):
        pay("no mapping")
