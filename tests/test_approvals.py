"""Approvals: of exactly these arguments, used once, by who may; everything else refuses (rule book (d))."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sagaspan import (
    Approval,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalPending,
    ApprovalRequest,
    ApprovalState,
    Approve,
    BudgetExceeded,
    CompensationFailed,
    ConfigurationError,
    Deny,
    Edit,
    Guard,
    Inbox,
    KeyConflict,
    Policy,
    PolicyDenied,
    ResolutionError,
    RunConflict,
)
from sagaspan import _owner as owner
from sagaspan._call import Call, Result
from sagaspan._console import Console
from sagaspan.codecs import to_json
from sagaspan.keys import fingerprint
from sagaspan.ledger.approvals import consume, subject_of
from sagaspan.testing import frozen_clock
from tests.conftest import Caller, Sql, Worker


class Shop:
    """A payment that is asked about above 100, and what it did."""

    def __init__(self, guard: Guard, caller: Caller, **policy: Any) -> None:
        self.guard = guard
        self.caller = caller
        self.paid: list[tuple[Any, Any]] = []
        self.undone: list[Any] = []

        def refund(amount: float) -> None:
            self.undone.append(amount)

        fields: dict[str, Any] = {"approve": "amount > 100", "compensate": refund, **policy}

        @caller.tool(guard, **fields)
        def pay(amount: Any, to: Any = "bob") -> str:
            self.paid.append((amount, to))
            return f"paid {amount}"

        self.pay = pay

    def order(self, *args: Any, run: str = "order", **kwargs: Any) -> Any:
        """One payment in a run of this id."""

        async def job() -> Any:
            async with self.caller.run(self.guard, "order", id=run, user="ulla"):
                return await self.caller.call(self.pay, *args, **kwargs)

        return self.caller.play(job)

    def pending(self, *args: Any, **kwargs: Any) -> str:
        """The id of the request that a payment waits for."""
        with pytest.raises(ApprovalPending) as caught:
            self.order(*args, **kwargs)
        return caught.value.approval_id


@pytest.fixture
def guard(store_url: str) -> Guard:
    """A guard whose requests wait in the ledger."""
    return Guard(store_url, approver="inbox")


@pytest.fixture
def shop(guard: Guard, caller: Caller) -> Shop:
    """The shop with its default policy."""
    return Shop(guard, caller)


# -- asked, decided, resumed ---------------------------------------------------------------------------------------


def test_what_the_policy_does_not_ask_about_runs(shop: Shop) -> None:
    """Below the threshold nobody is asked and nothing is written."""
    assert shop.order(100) == "paid 100"
    assert shop.guard.approvals.list(status=()) == []


def test_a_call_waits_paused_and_goes_on_with_the_same_run_id(shop: Shop, warnings_of_sagaspan: Any) -> None:
    """``ApprovalPending`` pauses the run and undoes nothing; approved, the same run id does it once."""
    request = shop.pending(500)
    assert (shop.paid, shop.guard.runs.get("order").status) == ([], "paused")
    assert shop.pending(500) == request  # a second asker attaches
    shop.guard.approvals.approve(request, by="alice")
    assert shop.order(500) == "paid 500"
    assert shop.order(500) == "paid 500"  # replayed: nobody is asked again
    assert shop.paid == [(500, "bob")]
    assert [one.state for one in shop.guard.approvals.list(status=())] == ["consumed"]
    assert shop.guard.runs.get("order").status == "completed"


@pytest.mark.parametrize("inner", [False, True])
def test_a_run_that_swallows_that_it_waits_is_paused_all_the_same(
    shop: Shop, inner: bool, warnings_of_sagaspan: Any
) -> None:
    """An agent loop that tells its model every error: the request is not left for a run that is over."""

    async def job() -> None:
        async with shop.caller.run(shop.guard, "order", id="order"), contextlib.AsyncExitStack() as stack:
            await shop.caller.call(shop.pay, 1)
            if inner:
                await stack.enter_async_context(shop.caller.run(shop.guard, "inner", id="inner"))
            with contextlib.suppress(ApprovalPending):
                await shop.caller.call(shop.pay, 500)

    runs = ("order", "inner") if inner else ("order",)
    shop.caller.play(job)
    assert {shop.guard.runs.get(run).status for run in runs} == {"paused"}
    assert shop.undone == []
    assert any("was swallowed" in said for said in warnings_of_sagaspan())
    shop.guard.approvals.approve(shop.guard.approvals.list()[0].id, by="alice")
    shop.caller.play(job)
    assert [amount for amount, _ in shop.paid] == [1, 500]
    assert {shop.guard.runs.get(run).status for run in runs} == {"completed"}


def test_a_swallowed_no_pauses_nothing(shop: Shop) -> None:
    """Nobody waits for a request that was decided in the same block and answered: the run completes."""

    async def job() -> None:
        async with shop.caller.run(shop.guard, "order", id="order"):
            with pytest.raises(ApprovalPending) as caught:
                await shop.caller.call(shop.pay, 500)
            shop.guard.approvals.deny(caught.value.approval_id, by="alice")

    shop.caller.play(job)
    assert shop.guard.runs.get("order").status == "completed"


def test_what_is_done_in_this_run_is_not_asked_about_again(shop: Shop) -> None:
    """An equal write in the same block is answered from its record."""
    with shop.guard.override(approver=lambda _: True):

        async def job() -> list[str]:
            async with shop.caller.run(shop.guard):
                return [await shop.caller.call(shop.pay, 500) for _ in range(2)]

        assert shop.caller.play(job) == ["paid 500"] * 2
    assert (len(shop.paid), len(shop.guard.approvals.list(status=()))) == (1, 1)


def test_a_request_survives_its_process(worker: Worker, store_url: str) -> None:
    """Asked in one process, approved in a second, done in a third."""
    script = """
    guard = Guard(os.environ["TEST_STORE"], approver="inbox")
    @guard.tool(approve=True, effect="write")
    def pay(amount):
        effect(amount)
    try:
        with guard.run(id="a"):
            pay(5)
    except ApprovalPending as error:
        print(error.approval_id)
    """
    asked = worker.run(script)
    assert worker.effects == []
    Guard(store_url).approvals.approve(asked.stdout.strip(), by="alice")
    assert worker.run(script).stdout == ""
    assert worker.effects == ["5"]


def test_a_crash_in_the_approved_call_asks_no_second_time(worker: Worker, store_url: str) -> None:
    """The approval is used in the claim: a body that died after it is in doubt, and not run again by a guess."""
    script = """
    guard = Guard(os.environ["TEST_STORE"], approver="auto-approve")
    @guard.tool(approve=True, effect="write")
    def pay(amount):
        effect(amount)
        die()
    with guard.run(id="a"):
        pay(5)
    """
    for _ in range(2):
        worker.run(script)
    assert worker.effects == ["5"]
    assert [one.state for one in Guard(store_url).approvals.list(status=())] == ["consumed"]


def test_an_approval_that_the_claim_does_not_keep_is_not_used(shop: Shop, store_url: str) -> None:
    """Claim and use are one commit: where the claim is refused, the approval stays."""
    request = shop.pending(500)
    shop.guard.approvals.approve(request, by="alice")
    shop.guard.set_budget("tool:pay", "0 calls")
    with pytest.raises(BudgetExceeded):
        shop.order(500)
    assert shop.paid == []
    assert shop.guard.approvals.get(request).state == "approved"


def test_nobody_is_asked_about_what_no_budget_pays_for(shop: Shop) -> None:
    """The budget looks first, so that no person decides in vain."""
    shop.guard.set_budget("tool:pay", "0 calls")
    with pytest.raises(BudgetExceeded):
        shop.order(500)
    assert shop.guard.approvals.list(status=()) == []


# -- denied, expired -----------------------------------------------------------------------------------------------


def test_a_no_is_final_for_these_arguments_in_this_run(guard: Guard, caller: Caller) -> None:
    """It is not asked about again, under no number; other arguments and other runs are."""
    shop = Shop(guard, caller, repeat="new")
    request = shop.pending(500)
    guard.approvals.deny(request, "too\x1b[31m much", by="alice")

    denied: list[str] = []

    async def job() -> None:
        async with caller.run(guard, "order", id="order", user="ulla"):
            for _ in range(2):
                try:
                    await caller.call(shop.pay, 500)
                except ApprovalDenied as error:
                    denied.append(str(error))
            await caller.call(shop.pay, 501)

    with pytest.raises(ApprovalPending):
        caller.play(job)
    assert len(denied) == 2
    assert r'"too\u{1b}[31m much"' in denied[0]
    assert shop.pending(500, run="other") != request
    assert len(guard.approvals.list(status=())) == 3
    assert shop.paid == []


def test_nobody_in_time_is_a_no(shop: Shop) -> None:
    """A request ends after 24 hours; nothing approves by time, and a decision after that is too late."""
    with frozen_clock() as clock:
        request = shop.pending(500)
        clock.advance(24 * 3600 - 1)
        assert shop.guard.approvals.get(request).state == "pending"
        clock.advance(1)
        with pytest.raises(ResolutionError, match="is expired"):
            shop.guard.approvals.approve(request, by="alice")
        with pytest.raises(ApprovalExpired):
            shop.order(500)
    assert shop.paid == []


def test_an_approval_ends_too(guard: Guard, caller: Caller) -> None:
    """What was approved and not used in time is not used at all."""
    shop = Shop(guard, caller, approval=Approval(expires_in=60))
    with frozen_clock() as clock:
        request = shop.pending(500)
        guard.approvals.approve(request, by="alice")
        clock.advance(61)
        with pytest.raises(ApprovalExpired):
            shop.order(500)
    assert shop.paid == []


def test_an_approval_can_be_taken_back(shop: Shop) -> None:
    """A no after the yes counts, while the call has not started."""
    request = shop.pending(500)
    shop.guard.approvals.approve(request, by="alice")
    shop.guard.approvals.deny(request, "changed my mind", by="alice")
    with pytest.raises(ApprovalDenied, match="changed my mind"):
        shop.order(500)
    assert shop.paid == []


# -- approvers -----------------------------------------------------------------------------------------------------


def _broken(_: ApprovalRequest) -> bool:
    raise OSError("no network")


async def _yes(request: ApprovalRequest) -> Approve:
    return Approve(by="alice") if request.args == {"amount": 500, "to": "bob"} else Deny()


@pytest.mark.parametrize("approver", [lambda _: True, lambda _: Approve(), _yes, "auto-approve"])
def test_who_says_yes(guard: Guard, caller: Caller, approver: Any) -> None:
    """A function, sync or async, and what is named: the call runs in one go."""
    shop = Shop(guard, caller)
    with guard.override(approver=approver):
        assert shop.order(500) == "paid 500"


@pytest.mark.parametrize(
    "approver",
    [lambda _: False, lambda _: None, lambda _: 1, lambda _: "yes", lambda _: "later", lambda _: Deny("no"), _broken,
     "auto-deny", lambda _: Edit({"amount": 1}), lambda _: Edit(5), lambda _: Edit({"amount": object(), "to": "bob"})],
)  # fmt: skip
def test_anything_else_refuses(guard: Guard, caller: Caller, approver: Any) -> None:
    """No, nothing, a truthy value, an error, an edit of other names: the body does not run."""
    shop = Shop(guard, caller)
    with guard.override(approver=approver), pytest.raises((ApprovalDenied, ApprovalPending)):
        shop.order(500)
    assert shop.paid == []


def test_without_an_approver_the_log_names_the_command(
    store_url: str, caller: Caller, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Nobody is asked, so nothing runs."""
    shop = Shop(Guard(store_url), caller)
    shop.pending(500)
    assert any("sagaspan approvals list" in text for text in warnings_of_sagaspan())


def test_an_inbox_can_wait(guard: Guard, caller: Caller) -> None:
    """The call goes on when somebody decides it elsewhere."""
    shop = Shop(guard, caller)

    def decide() -> None:
        while not (waiting := guard.approvals.list()):
            threading.Event().wait(0.01)
        guard.approvals.approve(waiting[0].id, by="alice")

    with guard.override(approver=Inbox(wait=30)):
        thread = threading.Thread(target=decide)
        thread.start()
        assert shop.order(500) == "paid 500"
        thread.join()


async def test_who_waits_in_an_event_loop_holds_no_thread(store_url: str) -> None:
    """Far more calls wait for a decision at once than the ledger has threads, and decisions still come through."""
    guard, before = Guard(store_url, approver=Inbox(wait=3600)), threading.active_count()

    @guard.tool(approve=True, effect="write")
    async def act(n: int) -> int:
        return n

    tasks = [asyncio.create_task(act(n)) for n in range(24)]
    for _ in range(3000):
        waiting = await guard.approvals.alist()
        if len(waiting) == len(tasks):
            break
        await asyncio.sleep(0.02)
    assert threading.active_count() - before < len(tasks)
    for request in waiting:
        await guard.approvals.aapprove(request.id, by="alice")
    assert await asyncio.gather(*tasks) == list(range(24))


def test_a_call_that_waits_goes_on_within_a_second(store_url: str, guard: Guard, caller: Caller) -> None:
    """However long it waits already, and whoever decides it, through another connection to the ledger."""
    shop, elsewhere = Shop(guard, caller), Guard(store_url)
    decided: list[Any] = []
    with frozen_clock() as clock, guard.override(approver=Inbox(wait=3600)):
        began, passes = clock.now, clock.pass_by

        def pass_by(seconds: float) -> None:
            if not decided and (clock.now - began).total_seconds() > 60:  # when the call has just looked
                decided.append(clock.now)
                elsewhere.approvals.approve(elsewhere.approvals.list()[0].id, by="alice")
            passes(seconds)

        clock.pass_by = pass_by  # type: ignore[method-assign]
        assert shop.order(500) == "paid 500"
        assert (clock.now - decided[0]).total_seconds() <= 1


@pytest.mark.parametrize("approver", ["yes", 5, object(), Inbox, "console?"])
def test_what_is_no_approver_is_refused_at_once(store_url: str, approver: Any) -> None:
    """A wrong name must not be found out by the first payment."""
    with pytest.raises(ConfigurationError, match="approver"):
        Guard(store_url, approver=approver)


# -- exactly these arguments ---------------------------------------------------------------------------------------

_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=3)
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def _typed(value: Any) -> Any:
    """A value as what it is: 1, 1.0 and True are three; the order of keys is none."""
    if isinstance(value, dict):
        return "dict", frozenset((key, _typed(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(_typed(item) for item in value)
    return type(value).__name__, repr(value)


def _near(value: Any) -> Iterator[Any]:
    """Everything that differs from a value in one place: another leaf, another type, another nesting or order."""
    yield [value]
    yield {"": value}
    if isinstance(value, dict):
        yield from ({**value, key: other} for key, item in value.items() for other in _near(item))
        yield from ({name: item for name, item in value.items() if name != key} for key in value)
        yield from ({**value, f"{key}x": value[key]} for key in value)
        yield [*value.items()]
    elif isinstance(value, list | tuple):
        make = type(value)
        yield from (
            make([*value[:at], other, *value[at + 1 :]]) for at, item in enumerate(value) for other in _near(item)
        )
        yield from (make([*value[:at], *value[at + 1 :]]) for at in range(len(value)))
        yield from (make([*value, item]) for item in (*value[:1], None))
        yield from (make(value[::-1]), tuple(value), list(value))
    elif isinstance(value, str):
        yield from (
            f"{value} ",
            f"{value}\u200b",
            value.encode("utf-8", "surrogatepass"),
            unicodedata.normalize("NFD", value),
        )
        yield from (value.upper(), value[1:])
    elif isinstance(value, bytes):
        yield from (value + b"x", value.decode("latin-1"), value[1:])
    elif value is not None:
        yield from (str(value), value + 1, -value, not value)
        if isinstance(value, bool | int) and abs(value) < 2**53:
            yield from (float(value), int(value), bool(value))


@given(value=_VALUES)
@example(value={"amount": 1, "to": ["é", (1.0, True)], "n": None})
def test_every_near_miss_is_another_digest(value: Any) -> None:
    """One leaf, type, key or level more, less or other than what was approved; only the order of keys is none."""

    def digest(of: Any) -> str:
        return fingerprint(subject_of(namespace="n", scope="s", tool="t", arguments={"value": to_json(of)}))

    approved = digest(value)
    for other in _near(value):
        assert (digest(other) == approved) == (_typed(other) == _typed(value)), other
    if isinstance(value, dict):
        assert digest(dict(reversed(value.items()))) == approved


@given(one=_VALUES, other=_VALUES)
def test_two_digests_are_equal_only_for_the_same_arguments(one: Any, other: Any) -> None:
    """Any change of a leaf, a type or the nesting is another digest; key order is none."""

    def digest(value: Any) -> str:
        arguments = {"value": to_json(value)}
        return fingerprint(subject_of(namespace="n", scope="s", tool="t", arguments=arguments))

    assert (digest(one) == digest(other)) == (_typed(one) == _typed(other))


@pytest.fixture(scope="module")
def approved_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any, Any], list[Any]]:
    """Ask about one value, approve it, and run with another one: what ran."""
    guard = Guard(f"sqlite:///{tmp_path_factory.mktemp('any') / 'ledger.db'}", approver="inbox")
    ran: list[Any] = []
    runs = itertools.count()

    @guard.tool(approve=True, repeat="new")
    def act(value: Any) -> None:
        ran.append(value)

    def approved_for(asked: Any, run_with: Any) -> list[Any]:
        ran.clear()
        run = f"run-{next(runs)}"
        with pytest.raises(ApprovalPending) as caught, guard.run(id=run):
            act(asked)
        guard.approvals.approve(caught.value.approval_id, by="alice")
        with contextlib.suppress(ApprovalPending, ApprovalDenied), guard.run(id=run):
            act(run_with)
        return ran

    return approved_for


@settings(max_examples=40)
@given(one=_VALUES, other=_VALUES)
@example(one={"a": 1, "b": 2}, other={"b": 2, "a": 1})
@example(one={"a": [1]}, other={"a": [True]})
@example(one=[[1], 2], other=[1, [2]])
def test_what_is_changed_between_the_approval_and_the_run_does_not_run(
    one: Any, other: Any, approved_for: Callable[[Any, Any], list[Any]]
) -> None:
    """Any leaf, type or nesting; the same in another order of keys is the same."""
    ran = approved_for(one, other)
    assert bool(ran) == (_typed(one) == _typed(other))
    assert [_typed(value) for value in ran] in ([], [_typed(one)])


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (1, "1"), (0.0, -0.0), ([1], (1,)), ("é", "e\u0301"), ({"a": 1}, {"a": 1.0})],
)
def test_types_and_spellings_are_told_apart(one: Any, other: Any) -> None:
    """Canonical JSON alone would take some of them for the same."""
    digests = [
        fingerprint(subject_of(namespace="", scope="", tool="", arguments={"v": to_json(v)})) for v in (one, other)
    ]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("when", ["asked", "approved"])
def test_arguments_that_change_while_somebody_decides_change_nothing(guard: Guard, caller: Caller, when: str) -> None:
    """The guard has a copy of its own: what the caller's object becomes is not what runs."""
    shop = Shop(guard, caller, approve=True)
    mine = {"iban": "good"}

    def approver(request: ApprovalRequest) -> bool:
        assert request.args["to"] == {"iban": "good"}
        mine["iban"] = "evil"
        request.args["to"]["iban"] = "evil"
        return True

    with guard.override(approver=approver):
        shop.order(5, mine)
    assert shop.paid == [(5, {"iban": "good"})]
    assert guard.runs.get("order").calls[0].args["to"] == {"iban": "good"}


def test_a_layer_that_changes_what_was_approved_is_refused(guard: Guard, caller: Caller) -> None:
    """What the body would get is compared with what was approved, in the claim itself."""

    class Tamper:
        async def __call__(self, call: Call, call_next: Any, /) -> Result:
            call.arguments["to"]["iban"] = "evil"
            return await call_next(call)

    shop = Shop(guard, caller, approve=True)
    tampering = guard._engine.with_innermost(Tamper())
    refused = pytest.raises(ApprovalDenied, match="not those that were approved")
    with guard.override(approver="auto-approve"), tampering, refused:
        shop.order(5, {"iban": "good"})
    assert shop.paid == []


def test_every_attempt_gets_what_was_approved(guard: Guard, caller: Caller) -> None:
    """A body that spoils its arguments and is repeated gets them whole."""
    seen: list[Any] = []

    @caller.tool(guard, approve=True, effect="idempotent", retry={"attempts": 2, "initial_delay": 0.0})
    def send(to: dict) -> None:
        seen.append(dict(to))
        to["iban"] = "evil"
        if len(seen) == 1:
            raise TimeoutError

    with guard.override(approver="auto-approve"):
        caller.play(lambda: caller.call(send, {"iban": "good"}))
    assert seen == [{"iban": "good"}] * 2


def test_a_threshold_is_not_passed_by_another_thread(guard: Guard, caller: Caller) -> None:
    """What the condition was asked about is what runs, also where nobody need be asked."""
    mine = {"amount": 5}
    paid: list[int] = []

    def big(order: dict) -> bool:
        mine["amount"] = 1000  # as another thread could, once it was judged
        return order["amount"] > 100

    @caller.tool(guard, approve=big, effect="write")
    def pay(order: dict) -> None:
        paid.append(order["amount"])

    caller.play(lambda: caller.call(pay, mine))
    assert paid == [5]


def test_an_approval_is_of_one_run(shop: Shop) -> None:
    """The same arguments in another run are another question."""
    request = shop.pending(500)
    shop.guard.approvals.approve(request, by="alice")
    assert shop.pending(500, run="other") != request
    assert shop.paid == []


def test_a_business_key_asks_about_one_set_of_arguments(guard: Guard, caller: Caller) -> None:
    """While a request is open under it, other arguments are a conflict, not a second question."""
    shop = Shop(guard, caller, key="to")
    request = shop.pending(500)
    with pytest.raises(KeyConflict):
        shop.order(501)
    guard.approvals.edit(request, {"amount": 400, "to": "bob"}, by="alice")
    with pytest.raises(KeyConflict):
        shop.order(501, run="order")


def test_a_forged_row_is_not_an_approval(shop: Shop, sql: Sql) -> None:
    """A request that says approved of other arguments is not used for these."""
    request = shop.pending(500)
    ((subject,),) = sql("select subject from approvals")
    forged = json.dumps({**json.loads(subject), "arguments": {"amount": 5, "to": "bob"}})
    sql("update approvals set subject = ?, state = 'approved' where id = ?", (forged, request))
    with pytest.raises(ApprovalDenied):
        shop.order(500)
    assert shop.paid == []


def test_the_database_itself_uses_an_approval_only_as_it_was_given(shop: Shop) -> None:
    """Whatever the version says: not for another digest or policy, not late, and not before it is approved."""
    store = shop.guard._engine.store
    request = shop.pending(500)
    shop.guard.approvals.approve(request, by="alice")
    record = store.approval(request)
    now = record.created_us + 1
    used = consume(record, now, actor="x", call_id="c")
    for wrong in (
        replace(used, record=replace(used.record, digest="0")), replace(used, record=replace(used.record, policy="{}")),
        replace(used, consumes_at=record.expires_us),
    ):  # fmt: skip
        assert not store.commit([wrong], synced=False)
    second = store.approval(shop.pending(600, run="b"))
    early = consume(replace(second, state=ApprovalState.APPROVED), now, actor="x", call_id="c")
    assert not store.commit([early], synced=False)
    assert store.commit([used], synced=False)
    assert not store.commit([used], synced=False)


def test_an_approval_under_a_business_key_is_of_one_run(guard: Guard, caller: Caller) -> None:
    """The key is the same in all runs, the question is not."""
    shop = Shop(guard, caller, key="to")
    guard.approvals.approve(shop.pending(500), by="alice")
    shop.pending(500, run="other")
    assert shop.paid == []


def test_one_approval_is_used_once(store_url: str) -> None:
    """Eight callers outside any run share one approval: one of them runs."""
    guard = Guard(store_url, approver="inbox")
    ran: list[int] = []

    @guard.tool(approve=True)
    def act(n: int) -> None:
        ran.append(n)

    with pytest.raises(ApprovalPending) as caught:
        act(1)
    guard.approvals.approve(caught.value.approval_id, by="alice")
    barrier, pending = threading.Barrier(8), []

    def spend() -> None:
        barrier.wait()
        try:
            act(1)
        except ApprovalPending as error:
            pending.append(error.approval_id)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == [1]
    assert (len(pending), len(set(pending))) == (7, 1)  # the others attach to one new question


# -- edits ---------------------------------------------------------------------------------------------------------


def test_an_edit_is_a_new_request_and_runs_with_its_arguments(shop: Shop) -> None:
    """It takes the place of the old one, is approved by its editor, and is undone with what ran."""
    first = shop.pending(500)
    edited = shop.guard.approvals.edit(first, {"amount": 200, "to": "eve"}, by="alice")
    assert (edited.state, edited.edits, edited.approved_by) == ("approved", first, ("alice",))
    assert edited.digest != shop.guard.approvals.get(first).digest
    assert shop.order(500) == "paid 200"
    assert shop.order(500) == "paid 200"  # a replay asks nobody
    assert shop.paid == [(200, "eve")]
    shop.guard.compensate("order")
    assert shop.undone == [200]
    assert [one.state for one in shop.guard.approvals.list(status=())] == ["consumed", "superseded"]


def test_an_approver_can_edit(guard: Guard, caller: Caller) -> None:
    """What it gives is used in the same call."""
    shop = Shop(guard, caller)
    with guard.override(approver=lambda request: Edit({**request.args, "amount": 150})):
        assert shop.order(500) == "paid 150"


def test_an_edit_is_judged_by_the_policy_of_the_edited_call(guard: Guard, caller: Caller) -> None:
    """Where two must agree the editor is one of them, whatever is asked about the call that it has become."""
    shop = Shop(guard, caller, approval=Approval(approvers=2))
    first = shop.pending(500)
    small = guard.approvals.edit(first, {"amount": 50, "to": "eve"}, by="alice")
    assert small.state == "pending"
    assert shop.pending(500) == small.id  # one person alone makes no call of two into one for nobody
    guard.approvals.approve(small.id, by="carol")
    assert shop.order(500) == "paid 50"
    assert guard.approvals.get(small.id).state == "consumed"
    second = guard.approvals.edit(shop.pending(600, run="b"), {"amount": 599, "to": "bob"}, by="alice")
    with pytest.raises(ResolutionError, match="already"):
        guard.approvals.approve(second.id, by="alice")
    assert shop.pending(600, run="b") == second.id
    guard.approvals.approve(second.id, by="carol")
    assert shop.order(600, run="b") == "paid 599"


def test_an_edit_in_the_call_waits_for_the_others_as_what_it_is_now(guard: Guard, caller: Caller) -> None:
    """The approver that edits is asked about the edited call again, and cannot agree to it twice."""
    shop = Shop(guard, caller, approval=Approval(approvers=2))
    asked: list[float] = []

    def lowers(request: ApprovalRequest) -> Any:
        asked.append(request.args["amount"])
        return Edit({"amount": 50, "to": "eve"}, by="alice") if request.args["amount"] > 100 else Approve(by="alice")

    with guard.override(approver=lowers):
        request = shop.pending(500)
    assert (asked, shop.paid) == ([500, 50], [])
    assert guard.approvals.get(request).args["amount"] == 50
    guard.approvals.approve(request, by="carol")
    assert shop.order(500) == "paid 50"


def test_an_edit_keeps_who_had_to_agree(store_url: str, tmp_path: Path) -> None:
    """Two of finance do not become two of support, because the smaller amount is support's."""
    rules = tmp_path / "p.toml"
    rules.write_text(
        '[[rules]]\ntools = "pay"\nwhen = "amount > 100"\naction = "approve"\n'
        'approval = {approvers = 2, roles = ["finance"]}\n'
        '[[rules]]\ntools = "pay"\nwhen = "amount > 10"\naction = "approve"\napproval = {roles = ["support"]}\n'
    )
    guard = Guard(store_url, approver="inbox", policies=rules)
    pay = guard.tool("pay")(lambda amount: f"paid {amount}")
    with pytest.raises(ApprovalPending) as asked, guard.run(id="a"):
        pay(500)
    edited = guard.approvals.edit(asked.value.approval_id, {"amount": 99}, by="ann", roles=["finance"])
    with pytest.raises(ApprovalPending) as again, guard.run(id="a"):
        pay(500)
    assert again.value.approval_id == edited.id
    with pytest.raises(ResolutionError, match="none of the roles finance"):
        guard.approvals.approve(edited.id, by="sue", roles=["support"])
    guard.approvals.approve(edited.id, by="bob", roles=["finance"])
    with guard.run(id="a"):
        assert pay(500) == "paid 99"


def test_an_edit_under_a_stricter_rule_is_asked_about_anew(caller: Caller, store_url: str, tmp_path: Path) -> None:
    """By who must agree to that; under a weaker one who had to agree before still must. Both are found again."""
    rules = tmp_path / "p.toml"
    rules.write_text(
        "".join(f"[[rules]]\nwhen = 'amount > {over}'\naction = 'approve'\napproval = {{approvers = {most}}}\n"
                for over, most in ((1000, 1), (400, 3), (100, 1)))
    )  # fmt: skip
    shop = Shop(Guard(store_url, approver="inbox", policies=rules), caller)
    desk = shop.guard.approvals
    edited = desk.edit(shop.pending(5000), {"amount": 500, "to": "bob"}, by="alice")
    assert edited.state == "approved"  # one was enough for what was asked
    anew = desk.get(shop.pending(5000))
    assert (anew.approvers, anew.args["amount"], anew.edits) == (3, 500, edited.id)
    assert shop.pending(5000) == anew.id
    weaker = desk.edit(anew.id, {"amount": 200, "to": "bob"}, by="alice")
    assert (desk.get(shop.pending(5000)).id, weaker.approvers) == (weaker.id, 3)
    for by in ("bob", "carol"):
        desk.approve(weaker.id, by=by)
    assert shop.order(5000) == "paid 200"


def test_an_edit_that_a_rule_denies_is_denied(caller: Caller, store_url: str, tmp_path: Path) -> None:
    """And does not wait for a second approver before somebody sees that."""
    (tmp_path / "p.toml").write_text("[[rules]]\nwhen = 'amount < 10'\naction = 'deny'\n")
    shop = Shop(Guard(store_url, policies=tmp_path / "p.toml"), caller, approval=Approval(approvers=2))
    lowers = shop.guard.override(approver=lambda request: Edit({"amount": 5, "to": "bob"}, by="alice"))
    with lowers, pytest.raises(PolicyDenied):
        shop.order(500)
    assert shop.paid == []


def test_an_editor_is_one_who_could_approve(guard: Guard, caller: Caller) -> None:
    """Who asked changes nothing either, also not to what nobody need be asked about."""
    shop = Shop(guard, caller, approval=Approval(four_eyes=True))
    request = shop.pending(500)
    with pytest.raises(ResolutionError, match="asked for"):
        guard.approvals.edit(request, {"amount": 5, "to": "ulla"}, by="ulla")
    assert guard.approvals.get(request).state == "pending"


@pytest.mark.parametrize("arguments", [{"amount": 5}, {"amount": 5, "to": "x", "more": 1}, {}])
def test_an_edit_gives_all_arguments(shop: Shop, arguments: dict[str, Any]) -> None:
    """One of other names changes nothing."""
    request = shop.pending(500)
    with pytest.raises(ResolutionError, match="all arguments"):
        shop.guard.approvals.edit(request, arguments, by="alice")
    assert shop.guard.approvals.get(request).state == "pending"


def test_a_call_that_failed_is_undone_with_what_was_edited_later(guard: Guard, caller: Caller) -> None:
    """A second try with other arguments is recorded as what it was."""
    failing = [True]
    undone: list[int] = []

    @caller.tool(guard, approve=True, compensate=lambda amount: undone.append(amount))
    def pay(amount: int) -> int:
        if failing.pop() if failing else False:
            raise ConnectionRefusedError
        return amount

    async def job() -> int:
        async with caller.run(guard, id="a"):
            try:
                return await caller.call(pay, 5)
            except ConnectionRefusedError:
                return await caller.call(pay, 5)

    answers: list[Any] = [True, Edit({"amount": 3})]
    with guard.override(approver=lambda _: answers.pop(0)):
        assert caller.play(job) == 3
    guard.compensate("a")
    assert undone == [3]


def test_undoing_asks_nobody_but_a_function_that_calls_a_tool_does(guard: Guard, caller: Caller) -> None:
    """Who agreed to a call agreed to what undoes it, which was shown; where that is to be asked, a function asks."""
    refunded: list[float] = []

    @guard.tool(approve=True)
    def refund(amount: float) -> None:
        refunded.append(amount)

    Shop(guard, caller, compensate="refund").order(50)
    assert guard.compensate("order").undone
    assert refunded == [50]
    other = Guard(guard._engine.store.url, approver="inbox")
    refund_ = other.tool("refund", approve=True)(lambda amount: refunded.append(amount))
    Shop(other, caller, compensate=lambda amount: refund_(amount)).order(60, run="b")
    with pytest.raises(CompensationFailed):
        other.compensate("b")
    (request,) = other.approvals.list()
    assert (request.tool, refunded) == ("refund", [50])
    other.approvals.approve(request.id, by="alice")
    assert other.compensate("b").undone
    assert refunded == [50, 60]


# -- who -----------------------------------------------------------------------------------------------------------


def test_several_different_people_none_of_whom_asked(guard: Guard, caller: Caller) -> None:
    """A quorum counts people, and leaves out who asked and for whom the run works; the first no ends it."""
    shop = Shop(guard, caller, approval=Approval(approvers=2))
    request = shop.pending(500)
    for by in (owner.os_user(), "ulla"):
        with pytest.raises(ResolutionError, match="asked for"):
            guard.approvals.approve(request, by=by)
    assert guard.approvals.approve(request, by="alice").state == "pending"
    with pytest.raises(ResolutionError, match="already"):
        guard.approvals.approve(request, by="alice")
    assert shop.pending(500) == request
    assert guard.approvals.approve(request, by="carol").state == "approved"
    assert shop.order(500) == "paid 500"
    second = shop.pending(600, run="b")
    guard.approvals.approve(second, by="alice")
    guard.approvals.deny(second, by="carol")
    with pytest.raises(ApprovalDenied):
        shop.order(600, run="b")


def test_two_who_agree_at_once_are_two(guard: Guard, caller: Caller) -> None:
    """No vote is lost: one of two that were read at the same time is told to look again."""
    shop = Shop(guard, caller, approval=Approval(approvers=9))
    request = shop.pending(500)
    barrier, told = threading.Barrier(8), []

    def agree(name: str) -> None:
        barrier.wait()
        try:
            guard.approvals.approve(request, by=name)
        except ResolutionError:
            told.append(name)

    threads = [threading.Thread(target=agree, args=(f"p{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(guard.approvals.get(request).approved_by) + len(told) == 8


def test_four_eyes(guard: Guard, caller: Caller) -> None:
    """With one approver too, where the policy says so; who runs the call has not approved it either."""
    shop = Shop(guard, caller, approval=Approval(four_eyes=True))
    with pytest.raises(ResolutionError, match="asked for"):
        guard.approvals.approve(shop.pending(500), by="ulla")


@pytest.mark.parametrize("spelt", ["ULLA", " ulla ", "Ulla", "\uff35lla"])
def test_a_name_is_the_same_however_it_is_spelt(guard: Guard, caller: Caller, spelt: str) -> None:
    """To who is excluded, and to who has agreed already: services write one name in several ways."""
    shop = Shop(guard, caller, approval=Approval(approvers=2))
    request = shop.pending(500)
    with pytest.raises(ResolutionError, match="asked for"):
        guard.approvals.approve(request, by=spelt)
    guard.approvals.approve(request, by="Ada@X.com")
    with pytest.raises(ResolutionError, match="already"):
        guard.approvals.approve(request, by=" ada@x.COM")


@pytest.mark.parametrize("unseen", ["\u200b", "\u00ad", "\ufe0f", "\u3164", "\u2060", "\u00a0", "\u034f"])
def test_a_name_is_the_same_with_what_nobody_sees(guard: Guard, caller: Caller, unseen: str) -> None:
    """Else one person would be two, and could approve what he asked for."""
    shop = Shop(guard, caller, approval=Approval(approvers=2))
    request = shop.pending(500)
    guard.approvals.approve(request, by="ada")
    for spelt in (f"ada{unseen}", f"{unseen}ada", f"a{unseen}da"):
        with pytest.raises(ResolutionError, match="already"):
            guard.approvals.approve(request, by=spelt)


def test_who_runs_the_call_has_not_approved_it(guard: Guard, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked by one user, approved by a second, it is not run by the second."""
    shop = Shop(guard, caller, approval=Approval(four_eyes=True))
    request = shop.pending(500)
    guard.approvals.approve(request, by="alice")
    monkeypatch.setattr(owner, "os_user", lambda: "alice")
    with pytest.raises(ApprovalDenied, match="four eyes"):
        shop.order(500)
    assert shop.paid == []


def test_who_approved_does_not_resume_the_run_of_who_asked(guard: Guard, caller: Caller) -> None:
    """Neither under their own name, nor by naming nobody: the call runs for the user of the run, as the run began."""
    shop = Shop(guard, caller, approval=Approval(four_eyes=True))
    guard.approvals.approve(shop.pending(500), by="bob")

    async def resume(user: str | None) -> Any:
        async with caller.run(guard, "order", id="order", user=user):
            return await caller.call(shop.pay, 500)

    with pytest.raises(RunConflict, match="for the user 'ulla', not for 'bob'"):
        caller.play(resume, "bob")
    assert shop.paid == []
    assert guard.runs.get("order").user == "ulla"
    assert caller.play(resume, "ulla") == "paid 500"


@pytest.mark.parametrize("identity", ["user", "agent"])
def test_a_call_does_not_run_for_who_approved_it(guard: Guard, caller: Caller, sql: Sql, identity: str) -> None:
    """A service runs the calls of many people: the user of a run runs its calls, whatever the request says."""
    shop = Shop(guard, caller, approval=Approval(four_eyes=True))

    async def order() -> Any:
        async with caller.run(guard, "order", id="order", **{identity: "Bob"}):
            return await caller.call(shop.pay, 500)

    with pytest.raises(ApprovalPending) as caught:
        caller.play(order)
    sql("update approvals set requested_by = ?", ['["the service"]'])
    guard.approvals.approve(caught.value.approval_id, by="bob")
    with pytest.raises(ApprovalDenied, match=r"'Bob' approved it .* and cannot run it too \(four eyes\)"):
        caller.play(order)
    assert shop.paid == []


def test_roles(guard: Guard, caller: Caller) -> None:
    """Only who has one of the roles can agree, or edit."""
    shop = Shop(guard, caller, approval={"roles": ["finance", "board"]})
    request = shop.pending(500)
    for roles in ((), ("sales",)):
        with pytest.raises(ResolutionError, match="none of the roles"):
            guard.approvals.approve(request, by="alice", roles=roles)
        with pytest.raises(ResolutionError, match="none of the roles"):
            guard.approvals.edit(request, {"amount": 1, "to": "x"}, by="alice", roles=roles)
    guard.approvals.approve(request, by="alice", roles=["finance"])
    assert shop.order(500) == "paid 500"


def test_another_policy_asks_anew(guard: Guard, caller: Caller) -> None:
    """What was approved under a weaker policy is not used under a stricter one."""
    first = Shop(guard, caller)
    request = first.pending(500)
    guard.approvals.approve(request, by="alice")
    stricter = Shop(Guard(guard._engine.store.url, approver="inbox"), caller, approval=Approval(approvers=2))
    assert stricter.pending(500) != request
    assert guard.approvals.get(request).state == "superseded"


def test_a_digest_binds_a_decision_to_what_was_seen(shop: Shop) -> None:
    """With another one nothing is decided."""
    request = shop.pending(500)
    with pytest.raises(ResolutionError, match="other arguments"):
        shop.guard.approvals.approve(request, by="alice", digest="0" * 64)
    digest = shop.guard.approvals.get(request).digest
    assert shop.guard.approvals.approve(request, by="alice", digest=digest).state == "approved"


def test_every_step_is_in_the_audit_trail(shop: Shop) -> None:
    """Who decided what, by which channel, for which digest."""
    request = shop.pending(500)
    shop.guard.approvals.approve(request, by="alice")
    shop.order(500)
    rows = [row for row in shop.guard._engine.store.audit_of("default", "order") if row.event.startswith("approval.")]
    assert [(row.event, row.actor) for row in rows][1] == ("approval.approve", "alice")
    assert [row.to_state for row in rows] == ["pending", "approved", "consumed"]
    assert {(row.approval_id, row.digest) for row in rows} == {(request, shop.guard.approvals.get(request).digest)}


# -- policies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", ["500", None, float("nan"), 2**70, {}])
def test_what_cannot_be_judged_is_asked_about(shop: Shop, amount: Any) -> None:
    """A condition that fails, or would be false of everything, asks."""
    shop.pending(amount)
    assert shop.paid == []


@pytest.mark.parametrize("gate", [lambda amount: None, lambda amount: 1 / 0, lambda amount: 0, lambda: True])
def test_only_a_plain_false_asks_nobody(guard: Guard, caller: Caller, gate: Any) -> None:
    """Whatever else a function of the policy says, or raises, asks."""
    Shop(guard, caller, approve=gate).pending(1)
    quiet = Shop(Guard(guard._engine.store.url), caller, approve=lambda amount: False)
    assert quiet.order(1, run="quiet") == "paid 1"


def test_no_source_takes_back_what_another_one_asks() -> None:
    """Gates add up, and of two ``approval`` the stricter holds in each field."""
    declared = Policy(approve="amount > 100", approval=Approval(approvers=2, roles=("a", "b")))
    assert Policy(approve=False).over(declared).approve == ("amount > 100",)
    assert declared.over(Policy(approve=False)).approve == ("amount > 100",)
    both = Policy(approve=True, approval=Approval(roles=("b", "c"), four_eyes=True, expires_in=60)).over(declared)
    assert both.approve == ("amount > 100", True)
    assert both.approval == Approval(approvers=2, roles=("b",), four_eyes=True, expires_in=60)
    with pytest.raises(ConfigurationError, match="nobody's role is in both"):
        Policy(approval=Approval(roles=("x",))).over(declared)


def test_a_file_can_ask_about_a_tool(store_url: str, caller: Caller, tmp_path: Path) -> None:
    """In the words of the policy, and only more than the tool says itself."""
    file = tmp_path / "sagaspan.toml"
    file.write_text('[tools.pay]\napprove = "amount > 10"\napproval = {approvers = 2, expires_in = 60.0}\n')
    shop = Shop(Guard(store_url, policies=file, approver="inbox"), caller)
    request = shop.guard.approvals.get(shop.pending(50))
    assert (request.approvers, (request.expires - request.created).total_seconds()) == (2, 60)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [({"approve": "amout > 5"}, "did you mean amount"), ({"approve": "amount >"}, "not valid CEL"),
     ({"approve": lambda reason: True}, "nothing can fill the parameter 'reason'"),
     ({"approval": Approval()}, "no approve= that would ask"),
     ({"approve": True, "approval": {"approvers": 0}}, "approvers"),
     ({"approve": 5}, "'approve' takes True, False")],
)  # fmt: skip
def test_a_policy_that_could_not_ask_is_refused_at_definition(
    guard: Guard, fields: dict[str, Any], sentence: str
) -> None:
    """Not by the first payment."""
    with pytest.raises(ConfigurationError, match=sentence):
        guard.tool("pay", **fields)(lambda amount: None)


def test_what_cannot_be_shown_is_never_approved_automatically(guard: Guard, caller: Caller) -> None:
    """Bytes that are no text say nothing to anybody."""
    shop = Shop(guard, caller, approve=True)
    with guard.override(approver="auto-approve"), pytest.raises(ApprovalDenied, match="cannot be shown"):
        shop.order(5, b"\xff\xfe")


# -- the console ---------------------------------------------------------------------------------------------------


def _typing(*lines: str) -> Callable[[str], str]:
    left = list(lines)

    def read(_: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


@pytest.mark.parametrize(
    ("lines", "paid", "error"),
    [(["a"], 500, None), (["yes", "", "y", "approve"], 500, None), (["d", "no"], None, ApprovalDenied),
     (["l"], None, ApprovalPending), ([], None, ApprovalPending), (["yes", "y", "ok"], None, ApprovalPending),
     (["e", "{", "e", '{"amount": 5, "to": "x"}'], 5, None)],
)  # fmt: skip
def test_the_console(
    guard: Guard, lines: list[str], paid: int | None, error: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It shows the call; only a word that says so approves, and the end of input decides nothing."""
    shop = Shop(guard, Caller("sync"))
    asked = contextlib.nullcontext() if error is None else pytest.raises(error)
    with guard.override(approver=Console(read=_typing(*lines))), asked:
        shop.order(500, "bob" if paid != 5 else "\u202eeve")
    assert [amount for amount, _ in shop.paid] == ([] if paid is None else [paid])
    err = capsys.readouterr().err
    assert ("\\u{202e}eve" if paid == 5 else "bob") in err
    assert "\u202e" not in err


# -- what is not shown ---------------------------------------------------------------------------------------------


def test_what_is_redacted_is_bound_but_not_shown(guard: Guard, caller: Caller, tmp_path: Path) -> None:
    """A keyed hash stands for it: another value is another question, and nobody reads it in the request."""
    shop = Shop(guard, caller, redact=["to"])
    request = shop.pending(500, "canary-4711")
    shown = guard.approvals.get(request)
    assert "canary" not in shown.text + repr(shown.args)
    assert "<redacted" in shown.text
    guard.approvals.approve(request, by="alice")
    assert shop.pending(500, "canary-4712") != request
    assert shop.order(500, "canary-4711", run="order") == "paid 500"
    assert shop.paid == [(500, "canary-4711")]
    assert b"canary" not in b"".join(file.read_bytes() for file in tmp_path.glob("ledger.db*"))


class Backwards:
    """A codec that anybody can break."""

    def encode(self, data: bytes) -> bytes:
        return bytes(255 - one for one in data)

    decode = encode


def test_what_is_encrypted_is_decided_only_where_it_can_be_read(store_url: str, caller: Caller, tmp_path: Path) -> None:
    """In the ledger nobody reads it, and who cannot read it cannot agree to it."""
    guard = Guard(store_url, approver="inbox", codec=Backwards())
    shop = Shop(guard, caller)
    request = shop.pending(500, "canary-4711")
    assert b"canary" not in b"".join(file.read_bytes() for file in tmp_path.glob("ledger.db*"))
    without = Guard(store_url)
    assert without.approvals.get(request).uninspectable
    with pytest.raises(ResolutionError, match="encrypted"):
        without.approvals.approve(request, by="alice")
    with pytest.raises(ConfigurationError, match="codec"):
        without.approvals.deny(request, "canary", by="alice")
    guard.approvals.edit(request, {"amount": 400, "to": "canary-4712"}, by="alice")
    assert shop.order(500, "canary-4711") == "paid 400"
    assert b"canary" not in b"".join(file.read_bytes() for file in tmp_path.glob("ledger.db*"))


def test_a_request_of_a_run_that_is_over_is_superseded(guard: Guard) -> None:
    """The agent went on without the call: nothing could use an approval any more, so nobody is asked to give one."""
    pay = guard.tool("pay", effect="write", approve=True)(lambda amount: amount)
    with guard.override(approver="inbox"):
        with pytest.raises(ApprovalPending) as pending, guard.run("trip", id="a"):
            pay(5)
        assert [request.id for request in guard.approvals.list()] == [pending.value.approval_id]
        with guard.run("trip", id="a"):
            pass
    with pytest.raises(ResolutionError, match="is superseded; nothing was decided"):
        guard.approvals.approve(pending.value.approval_id, by="ada")
    assert guard.approvals.list() == []
    (request,) = guard.approvals.list(status="superseded")
    assert request.id == pending.value.approval_id
