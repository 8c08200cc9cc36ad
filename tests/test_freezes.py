"""Freezing a scope and pausing a run: at the next claim, in every process, without undoing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, NotApplied, ResolutionError, ScopeFrozen
from sagaspan.exceptions import ApprovalPending
from sagaspan.ledger.records import FreezeRecord
from sagaspan.ledger.store import CallChange
from tests.conftest import Caller


@pytest.fixture
def other(store_url: str) -> Iterator[Guard]:
    """An operator: another guard, as in another process."""
    with Guard(store_url) as other:
        yield other


class Shop:
    """Tools that pay and refund, and what they did."""

    def __init__(self, guard: Guard, caller: Caller, **fields: Any) -> None:
        self.guard = guard
        self.caller = caller
        self.did: list[str] = []
        self.refund = caller.tool(guard, "refund")(lambda amount: self.did.append(f"refund {amount}"))
        self.pay = caller.tool(guard, "pay", effect="write", compensate="refund", **fields)(
            lambda amount: self.did.append(f"pay {amount}") or amount
        )
        self.look = caller.tool(guard, "look", effect="read")(lambda: self.did.append("look"))

    def order(self, *steps: Any, **run: Any) -> None:
        """A run that pays each amount, and calls each function."""

        async def job() -> None:
            async with self.caller.run(self.guard, "order", **run):
                for step in steps:
                    if callable(step):
                        value = step()
                        if self.caller.is_async and value is not None:
                            await value
                    else:
                        await self.caller.call(self.pay, step)

        self.caller.play(job)


@pytest.fixture
def shop(guard: Guard, caller: Caller) -> Shop:
    """The tools of this test's guard."""
    return Shop(guard, caller)


@pytest.mark.parametrize("scope", ["tool:pay", "agent:clerk", "user:42", "tenant:t", "run:o1", "all", "tool:p*"])
def test_a_frozen_scope_begins_nothing_more(shop: Shop, other: Guard, scope: str) -> None:
    """From the next claim on, in a process that knew nothing of it; the error says who, why and how it goes on."""
    run = {"id": "o1", "user": "42", "tenant": "t", "agent": "clerk"}
    with pytest.raises(ScopeFrozen, match=r'bob since .*: "incident 7"\. To let it go on: sagaspan') as refused:
        shop.order(1, lambda: other.freeze(scope, reason="incident 7", actor="bob") and None, 2, **run)
    assert shop.did == ["pay 1"]
    error = refused.value
    assert (error.scope, error.reason, error.by, error.tool_ran) == (scope, "incident 7", "bob", "no")
    other.unfreeze(scope)
    shop.order(1, 2, **run)
    assert shop.did == ["pay 1", "pay 2"]


def test_other_scopes_go_on(shop: Shop, other: Guard) -> None:
    """What is not frozen is not touched."""
    for scope in ("tool:refund", "user:7", "run:other", "model:gpt-4o", "tenant:x"):
        other.freeze(scope, reason="x")
    shop.order(1, user="42")
    assert shop.did == ["pay 1"]
    assert [one.scope for one in shop.guard.frozen()] == [
        "tool:refund", "user:7", "run:other", "model:gpt-4o", "tenant:x",
    ]  # fmt: skip


def test_no_claim_slips_through(shop: Shop, other: Guard) -> None:
    """A freeze that is committed between the making of a claim and its commit refuses that claim."""
    store, commit, frozen = shop.guard._store, shop.guard._store.commit, []

    def freezes_first(changes: Any, *, synced: bool) -> Any:
        claims = any(isinstance(change, CallChange) and change.claims for change in changes)
        if claims and not frozen:
            frozen.append(other.freeze("tool:pay", reason="now"))
        return commit(changes, synced=synced)

    store.commit = freezes_first  # type: ignore[method-assign]
    with pytest.raises(ScopeFrozen):
        shop.order(1)
    assert shop.did == []


def test_a_run_of_ones_own_is_held_and_goes_on(shop: Shop, other: Guard) -> None:
    """A freeze is an interruption: what can be entered again is not undone, what cannot is."""
    for run, state, did in (({"id": "o1"}, "held", ["pay 1"]), ({}, "compensated", ["pay 1", "refund 1"])):
        shop.did.clear()
        with pytest.raises(ScopeFrozen):
            shop.order(1, lambda: other.freeze("tool:pay", reason="x") and None, 2, **run)
        other.unfreeze("tool:pay")
        (found,) = [one for one in shop.guard.runs.list(status=state) if one.reason == "frozen"]
        assert (shop.did, found.status) == (did, state)
    shop.order(1, 2, id="o1")
    assert shop.did == ["pay 1", "refund 1", "pay 2"]


def test_undoing_goes_on(shop: Shop, other: Guard) -> None:
    """A freeze stops what goes forward: a run that fails is rolled back while everything is frozen."""

    def fails() -> None:
        other.freeze("all", reason="x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shop.order(1, fails)
    assert shop.did == ["pay 1", "refund 1"]


def test_what_is_done_is_answered(shop: Shop, other: Guard) -> None:
    """Nothing runs for a recorded result, in the same run or in a resumed one."""
    shop.order(1, id="o1")
    other.freeze("all", reason="x")
    shop.order(1, id="o1")
    with contextlib.suppress(ScopeFrozen):
        other.unfreeze("all")
        shop.order(3, lambda: other.freeze("all", reason="x") and None, 3, id="o2")
    assert shop.did == ["pay 1", "pay 3"]
    assert shop.guard.runs.get("o2").status == "completed"


def test_nobody_is_asked_about_what_is_frozen(guard: Guard, caller: Caller, other: Guard) -> None:
    """A person would decide for nothing."""
    shop = Shop(guard, caller, approve=True)
    other.freeze("tool:pay", reason="x")
    with pytest.raises(ScopeFrozen):
        shop.order(1)
    other.unfreeze("tool:pay")
    with pytest.raises(ApprovalPending):
        shop.order(1)


def test_models_are_frozen_too(guard: Guard, other: Guard) -> None:
    """``model:NAME``, and everything that holds for the run."""
    other.freeze("model:gpt-4o", reason="x")
    with pytest.raises(ScopeFrozen), guard.llm_call("gpt-4o", input_tokens=1, max_output_tokens=1):
        pytest.fail("asked")
    with guard.llm_call("gpt-4o-mini", input_tokens=1, max_output_tokens=1) as call:
        call.record_usage(input_tokens=1, output_tokens=1)


def test_what_was_deferred_is_not_sent(guard: Guard, caller: Caller, other: Guard) -> None:
    """It waits, also where nothing rests on it, and is sent when its run is entered again."""
    sent: list[int] = []
    mail = caller.tool(guard, "mail", defer=True, critical=False)(sent.append)

    async def job() -> None:
        async with caller.run(guard, "r", id="r1"):
            await caller.call(mail, 1)
            if frozen:
                other.freeze("tool:mail", reason="x")

    frozen = [True]
    with pytest.raises(ScopeFrozen):
        caller.play(job)
    assert (sent, guard.runs.get("r1").status) == ([], "held")
    other.unfreeze("tool:mail")
    frozen.clear()
    caller.play(job)
    assert (sent, guard.runs.get("r1").status) == ([1], "completed")


# -- pausing ---------------------------------------------------------------------------------------------------------


def test_a_paused_run_is_not_undone(shop: Shop, other: Guard) -> None:
    """Whoever chose its id, and also if its error is swallowed: its next call stops it, and the same id goes on."""

    def swallowing() -> Any:
        with contextlib.suppress(ScopeFrozen):
            return shop.caller.call(shop.look) if shop.caller.is_async else shop.look()

    for run in ({"id": "o1"}, {"id": "o1", "on_interrupt": "compensate"}):
        with pytest.raises(ScopeFrozen, match="the run 'o1' is paused by"):
            shop.order(1, lambda: other.runs.pause("o1", reason="wait") and None, 2, **run)
        found = shop.guard.runs.get("o1")
        assert (found.status, found.reason) == ("paused", "paused")
        other.runs.resume("o1")
    assert shop.did == ["pay 1"]
    if not shop.caller.is_async:
        with pytest.raises(ScopeFrozen):
            shop.order(1, lambda: other.runs.pause("o1", reason="wait") and None, swallowing, id="o1")
        assert shop.guard.runs.get("o1").status == "paused"
        other.runs.resume("o1")
    shop.order(1, 2, id="o1")
    assert (shop.did, shop.guard.runs.get("o1").status) == (["pay 1", "pay 2"], "completed")


def test_a_pause_holds_for_what_is_nested(guard: Guard, other: Guard) -> None:
    """The inner run pauses with the outer one, and both go on."""
    did: list[int] = []
    pay = guard.tool("pay", effect="write", compensate=lambda amount: did.append(-amount))(
        lambda amount: did.append(amount)
    )

    def work(pause: bool) -> None:
        with guard.run("outer", id="o"), guard.run("inner"):
            pay(1)
            if pause:
                other.runs.pause("o", reason="x")
            pay(2)

    with pytest.raises(ScopeFrozen):
        work(True)
    assert ({run.status for run in guard.runs.list()}, did) == ({"paused"}, [1])
    other.runs.resume("o")
    work(False)
    assert ({run.status for run in guard.runs.list()}, did) == ({"completed"}, [1, 2])


def test_an_abort_of_a_paused_run_undoes_it(shop: Shop, other: Guard) -> None:
    """Somebody decided otherwise."""

    async def job() -> None:
        async with shop.caller.run(shop.guard, "order", id="o1") as run:
            await shop.caller.call(shop.pay, 1)
            other.runs.pause("o1", reason="x")
            run.abort("enough") if not shop.caller.is_async else await run.aabort("enough")

    shop.caller.play(job)
    assert (shop.did, shop.guard.runs.get("o1").status) == (["pay 1", "refund 1"], "compensated")


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["pay", "tol:pay", "", "tool:", "run:", 5, None])
def test_what_cannot_be_frozen(guard: Guard, scope: Any) -> None:
    """A scope that is none is named with what to write."""
    with pytest.raises(ConfigurationError, match="scope"):
        guard.freeze(scope, reason="x")


def test_a_freeze_says_why_and_is_made_once(guard: Guard) -> None:
    """An empty reason, a second freeze, and lifting what is not there."""
    with pytest.raises(ConfigurationError, match="reason"):
        guard.freeze("all", reason=" ")
    guard.freeze("all", reason="first", actor="ada")
    with pytest.raises(ResolutionError, match=r"frozen already by ada since .*: first"):
        guard.freeze("all", reason="second")
    guard.unfreeze("all")
    with pytest.raises(ResolutionError, match="not frozen"):
        guard.unfreeze("all")


@pytest.mark.parametrize("id_", ["b*", "a[1]", "?", "[x]", "b]*"])
def test_one_run_is_paused_though_its_id_looks_like_a_glob(shop: Shop, other: Guard, id_: str) -> None:
    """And its resume, as the refusal says it, lets it go on; a glob of runs is a freeze."""
    with pytest.raises(ScopeFrozen, match=r"paused by .* sagaspan runs resume") as refused:
        shop.order(1, lambda: other.runs.pause(id_, reason="wait") and None, 2, id=id_)
    assert f"the run {id_!r} is paused" in str(refused.value)
    shop.order(3, id="b1")
    shop.order(3, id="a1")
    other.runs.resume(id_)
    shop.order(1, 2, id=id_)
    assert shop.did == ["pay 1", "pay 3", "pay 3", "pay 2"]
    other.freeze("run:b*", reason="all of b")
    with pytest.raises(ScopeFrozen, match=r"'run:b\*' is frozen .* sagaspan unfreeze"):
        shop.order(4, id="b2")


def test_pausing_fits_the_run(shop: Shop) -> None:
    """There is no such run, or it is over, or nobody paused it."""
    shop.order(1, id="o1")
    for attempt, words in (("nobody", "no run"), ("o1", "nothing to pause")):
        with pytest.raises(ResolutionError, match=words):
            shop.guard.runs.pause(attempt, reason="x")
    with pytest.raises(ResolutionError, match="not frozen"):
        shop.guard.runs.resume("o1")


def test_who_froze_and_lifted_is_in_the_audit_trail(guard: Guard) -> None:
    """Both, with the reason."""
    guard.freeze("tool:pay", reason="incident 7", actor="ada")
    guard.unfreeze("tool:pay", actor="bob")
    rows = guard._store.audit_of("default", "")
    assert [(row.event, row.actor, row.detail) for row in rows] == [
        ("freeze.tool:pay", "ada", "incident 7"), ("unfreeze.tool:pay", "bob", None),
    ]  # fmt: skip


def test_a_freeze_is_of_one_namespace(store_url: str, guard: Guard) -> None:
    """Another application over the same store goes on."""
    guard.freeze("all", reason="x")
    with Guard(store_url, namespace="other") as elsewhere:
        assert elsewhere.tool("pay")(lambda: 1)() == 1
        assert elsewhere.frozen() == []
        assert elsewhere._store.freezes_of(None) == [
            FreezeRecord(namespace="default", scope="all", reason="x", actor=guard.frozen()[0].by,
                         at_us=round(guard.frozen()[0].since.timestamp() * 1e6))
        ]  # fmt: skip


def test_a_failed_call_is_claimed_again_only_when_it_is_not_frozen(guard: Guard, other: Guard) -> None:
    """The claim of a record that is there already is refused like that of a new one."""
    tries: list[int] = []

    def pay() -> None:
        tries.append(1)
        raise NotApplied

    pay = guard.tool("pay", effect="write", key="'k'")(pay)
    with pytest.raises(NotApplied):
        pay()
    other.freeze("tool:pay", reason="x")
    with pytest.raises(ScopeFrozen):
        pay()
    assert len(tries) == 1
