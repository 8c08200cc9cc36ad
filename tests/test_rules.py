"""Rules of a policy file: which calls are asked about, refused or limited, and what cannot be judged."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import (
    Approval,
    Approve,
    ConfigurationError,
    Edit,
    Guard,
    LoopDetected,
    PolicyDenied,
    RateLimited,
    StoreUnavailable,
    ToolTimeout,
)
from sagaspan.exceptions import ApprovalDenied, ApprovalPending, BudgetExceeded
from sagaspan.expressions import Expression
from sagaspan.testing import frozen_clock
from tests.conftest import Caller

EXAMPLE = Path(__file__).parents[1] / "examples" / "sagaspan.toml"


class Shop:
    """A guard over a policy file with these rules, a tool that pays, and what was paid."""

    def __init__(self, caller: Caller, rules: str, store_url: str, folder: Path, **options: Any) -> None:
        self.file = folder / "sagaspan.toml"
        self.file.write_text(rules)
        self.guard = Guard(store_url, policies=self.file, **options)
        self.caller = caller
        self.paid: list[Any] = []

        def pay(amount: Any, user: str = "nobody") -> Any:
            self.paid.append(amount)
            return amount

        self.pay = caller.tool(self.guard, effect="write")(pay)

    def order(self, amount: Any = 1, *amounts: Any, user: str = "nobody", **run: Any) -> None:
        """A run that pays these amounts."""

        async def job() -> None:
            async with self.caller.run(self.guard, "order", **run):
                for each in (amount, *amounts):
                    await self.caller.call(self.pay, each, user)

        self.caller.play(job)


@pytest.fixture
def shop(caller: Caller, store_url: str, tmp_path: Path) -> Callable[..., Shop]:
    """A shop under the rules it is called with."""
    return lambda rules, **options: Shop(caller, rules, store_url, tmp_path, **options)


def rule(action: str = "deny", when: str | None = None, **more: str) -> str:
    """One rule about ``pay``."""
    lines = [f'action = "{action}"', *([f'when = "{when}"'] if when else []), *(f"{k} = {v}" for k, v in more.items())]
    return "\n".join(["[[rules]]", *(["tools = 'pay'"] if "tools" not in more else []), *lines, ""])


def test_a_denied_call_does_not_run(shop: Callable[..., Shop]) -> None:
    """The error names the rule and its reason."""
    denied = shop(rule(when="amount > 100", name="'caps'", reason="'too much'"))
    denied.order(100)
    with pytest.raises(PolicyDenied, match=r"rule 1 \('caps'\) denies it: too much") as refused:
        denied.order(101)
    assert (denied.paid, refused.value.tool_ran) == ([100], "no")


def test_the_first_rule_whose_condition_holds_decides(shop: Callable[..., Shop]) -> None:
    """Rules behind it are not looked at, whatever they say."""
    first = shop(rule("allow", "amount < 5") + rule("deny", "amount < 50") + rule("approve"), approver="auto-approve")
    first.order(1)
    with pytest.raises(PolicyDenied, match="rule 2"):
        first.order(10)
    first.order(100)
    assert first.paid == [1, 100]
    assert len(first.guard.approvals.list(status=())) == 1


def test_an_approving_rule_asks_as_it_says(shop: Callable[..., Shop]) -> None:
    """Who, how many and how long are those of the rule, and its name is shown to who decides."""
    asking = shop(rule("approve", "amount > 100", approval="{approvers = 2, roles = ['finance'], expires_in = 60}"))
    with pytest.raises(ApprovalPending):
        asking.order(150)
    (request,) = asking.guard.approvals.list()
    assert (request.approvers, request.roles) == (2, ("finance",))
    assert (request.expires - request.created).total_seconds() == 60
    assert "rule 1" in request.text
    assert asking.paid == []


def test_no_rule_takes_back_what_the_code_asks(caller: Caller, store_url: str, tmp_path: Path) -> None:
    """``allow`` only ends the search: the gates of the code stay, and of two approvals the stricter holds."""
    (tmp_path / "p.toml").write_text(rule("allow", "amount < 5", limits="{timeout = 9}") + rule("approve"))
    with Guard(store_url, policies="p.toml") as guard:
        pay = caller.tool(guard, "pay", effect="write", approve=True, approval={"approvers": 2})(lambda amount: amount)
        for amount in (1, 10):
            with pytest.raises(ApprovalPending):
                caller.play(lambda amount=amount: caller.call(pay, amount))
        assert {request.approvers for request in guard.approvals.list()} == {2}


@pytest.mark.parametrize(
    ("limits", "error", "amounts"),
    [("{max_calls = 2}", BudgetExceeded, (1, 2, 3)), ("{rate = '2/hour'}", RateLimited, (1, 2, 3)),
     ("{cost = '3 USD'}", BudgetExceeded, (1, 2)), ("{loop = 1}", LoopDetected, (1, 1, 1))],
)  # fmt: skip
def test_limits_hold_for_the_calls_of_a_rule(
    shop: Callable[..., Shop], limits: str, error: type[Exception], amounts: tuple[int, ...]
) -> None:
    """``max_calls``, ``rate``, ``cost`` and ``loop`` of a rule are those of the call, and of no other."""
    limited = shop(rule("allow", "amount < 50", limits=limits), budget="5 USD")
    limited.order(100, 101, 102)
    with pytest.raises(error):
        limited.order(*amounts)


def test_a_timeout_of_a_rule(caller: Caller, store_url: str, tmp_path: Path) -> None:
    """A body that takes longer than the rule allows is given up."""
    (tmp_path / "p.toml").write_text(rule("allow", limits="{timeout = 0.01}", tools="'slow'"))
    with Guard(store_url, policies="p.toml") as guard:
        gate = threading.Event()
        slow = guard.tool("slow", effect="read")(lambda: gate.wait(60))
        with pytest.raises(ToolTimeout):
            slow()
        gate.set()


@pytest.mark.parametrize(
    ("action", "error"), [("deny", PolicyDenied), ("approve", ApprovalPending), ("allow", ApprovalPending)]
)
@pytest.mark.parametrize("when", ["amount > 5", "tags.env == 'prod'", "amount"])
def test_what_cannot_be_judged_lets_nothing_by(
    shop: Callable[..., Shop], action: str, when: str, error: type[Exception]
) -> None:
    """Another type, a tag that is not there, no truth value: a denying rule denies, any other has somebody asked."""
    unsure = shop(rule(action, when))
    with pytest.raises(error, match="cannot be judged" if action == "deny" else None):
        unsure.order("much")
    assert unsure.paid == []


def test_an_allowing_rule_that_cannot_be_judged_does_not_stand_before_a_denying_one(
    shop: Callable[..., Shop],
) -> None:
    """It allows nothing, so the next rules are looked at."""
    unsure = shop(rule("allow", "amount > 5") + rule("deny"))
    with pytest.raises(PolicyDenied, match="rule 2"):
        unsure.order("much")


@pytest.mark.parametrize(
    ("when", "holds"),
    [("user == 'ada'", True), ("tenant == 't1' && agent == 'a1'", True), ("tags.env == 'prod'", True),
     ("run.name == 'order' && tool == 'pay'", True), ("args.user == 'mallory'", True), ("user == 'mallory'", False),
     ("has(args.user)", True), ("calls == 0 && spent == 0.0", True)],
)  # fmt: skip
def test_what_a_condition_can_read(shop: Callable[..., Shop], when: str, holds: bool) -> None:
    """``user`` is the run's, never what the caller says under that name, which is ``args.user``."""
    facts = shop(rule("deny", when))
    run = {"tenant": "t1", "agent": "a1", "tags": {"env": "prod"}, "id": "o1"}
    if holds:
        with pytest.raises(PolicyDenied):
            _as(facts, "ada", run)
    else:
        _as(facts, "ada", run)
    assert facts.paid == ([] if holds else [1])


def _as(shop: Shop, user: str, run: dict[str, Any]) -> None:
    async def job() -> None:
        async with shop.caller.run(shop.guard, "order", user=user, **run):
            await shop.caller.call(shop.pay, 1, "mallory")

    shop.caller.play(job)


def test_what_is_said_of_a_run_holds_in_those_nested_in_it(shop: Callable[..., Shop]) -> None:
    """Its tags, its user: a rule about them is not lost in a run within; what that says itself comes first."""
    facts = shop(rule("deny", "has(tags.env) && tags.env == 'prod' && tags.team == 'blue' && user == 'ada'"))

    async def job(**inner: Any) -> None:
        async with (
            facts.caller.run(facts.guard, tags={"env": "prod", "team": "red"}, user="ada"),
            facts.caller.run(facts.guard, **inner),
        ):
            await facts.caller.call(facts.pay, 1)

    facts.caller.play(lambda: job(tags={"team": "green"}))
    with pytest.raises(PolicyDenied):
        facts.caller.play(lambda: job(tags={"team": "blue"}))


def test_what_a_run_has_spent_so_far(caller: Caller, store_url: str, tmp_path: Path) -> None:
    """``spent`` are the US dollars, ``calls`` the calls of the run: the third call is asked about."""
    (tmp_path / "p.toml").write_text(rule("approve", "spent >= 1.0 && calls >= 2"))
    with Guard(store_url, policies="p.toml") as guard:
        pay = guard.tool("pay", effect="write", cost="0.5 USD")(lambda amount: amount)
        with pytest.raises(ApprovalPending), guard.run("r"):
            assert [pay(1), pay(2)] == [1, 2]
            pay(3)


@pytest.mark.parametrize(("at", "denied"), [("23:30", True), ("12:00", False), ("04:30", False)])
def test_rules_know_the_time_of_their_place(shop: Callable[..., Shop], at: str, denied: bool) -> None:
    """``hour`` and ``weekday`` are those of the rule's time zone: 23:30 UTC of a Friday is Saturday in Berlin."""
    night = shop(rule("deny", "hour < 6 && weekday == 6 || now < timestamp('2026-01-01T00:00:00Z')",
                      timezone="'Europe/Berlin'"))  # fmt: skip
    with frozen_clock(dt.datetime.fromisoformat(f"2026-11-20T{at}:00+00:00")):
        if denied:
            with pytest.raises(PolicyDenied):
                night.order(1)
        else:
            night.order(1)


def test_what_was_judged_is_what_runs(store_url: str, tmp_path: Path) -> None:
    """The body gets the copy that the rule looked at: the caller's object may change meanwhile."""
    (tmp_path / "p.toml").write_text(rule("allow", "order.amount <= 5"))
    order: dict[str, int] = {"amount": 1}
    got: list[dict[str, int]] = []

    def cost(order: dict[str, int]) -> str:  # asked behind the rules, when somebody else changes the caller's object
        theirs.update(amount=500)
        return "0 USD"

    theirs = order
    with Guard(store_url, policies="p.toml") as guard:
        guard.tool("pay", effect="write", cost=cost)(lambda order: got.append(order))(order)
    assert (order, got) == ({"amount": 500}, [{"amount": 1}])


def test_an_edit_is_judged_as_what_it_is(shop: Callable[..., Shop]) -> None:
    """The edited call goes by the rules for its own arguments: one that denies, denies at once. Where none asks, those
    who had to agree to what it was before still must.
    """
    two = "{approvers = 2}"
    rules = rule("approve", "amount > 100 && amount < 1000", approval=two) + rule("deny", "amount >= 1000")
    asked: list[Any] = []

    def edits_to(amount: int) -> Callable[[Any], Any]:
        def decide(request: Any) -> Any:
            asked.append(request.args["amount"])
            edit = Edit({**request.args, "amount": amount}, by="alice")
            return Approve(by="alice") if request.edits else edit  # which is no second vote

        return decide

    edited = shop(rules)
    with edited.guard.override(approver=edits_to(50)):
        with pytest.raises(ApprovalPending) as waits:
            edited.order(500, id="o1")  # the edit is one agreement of two
        edited.guard.approvals.approve(waits.value.approval_id, by="carol")
        edited.order(500, id="o1")
    with edited.guard.override(approver=edits_to(5000)), pytest.raises(PolicyDenied):
        edited.order(500, id="o2")
    assert (edited.paid, asked) == ([50], [500, 50, 500])


def test_an_edited_call_is_within_the_limits_for_what_it_is(shop: Callable[..., Shop]) -> None:
    """What the rule for the other arguments says of its cost is not said of this one."""
    rules = rule("approve", "amount > 100", limits="{cost = '5 USD'}")
    edited = shop(rules, approver=lambda request: Approve() if request.edits else Edit({**request.args, "amount": 50}))
    edited.order(500, id="o1")
    assert (edited.paid, edited.guard.usage(run="o1").spent) == ([50], 0)


def test_what_is_on_record_is_answered_whatever_the_rules_say_now(shop: Callable[..., Shop]) -> None:
    """Nothing runs, so nothing is refused: a resumed run gets what it did before."""
    before = shop("")
    with pytest.raises(ZeroDivisionError):
        _crashes(before)
    after = shop(rule("deny"))
    after.order(7, id="o1", on_interrupt="hold")
    assert after.paid == []


def _crashes(shop: Shop) -> None:
    async def job() -> None:
        async with shop.caller.run(shop.guard, "order", id="o1"):
            await shop.caller.call(shop.pay, 7, "nobody")
            shop.guard.current_run().commit() if not shop.caller.is_async else await shop.guard.current_run().acommit()
            raise ZeroDivisionError

    shop.caller.play(job)


def test_the_span_says_which_rule(
    store_url: str, tmp_path: Path, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    """Its name, or its number, and what it came to."""
    (tmp_path / "p.toml").write_text(rule("deny", "amount > 5", name="'small'") + rule("allow"))
    with Guard(store_url, policies="p.toml", tracer_provider=provider) as guard:
        pay = guard.tool("pay")(lambda amount: amount)
        pay(1)
        with pytest.raises(PolicyDenied):
            pay(6)
    said = [
        (span.attributes["sagaspan.policy.rule"], span.attributes["sagaspan.policy.action"])
        for span in spans.get_finished_spans()
    ]
    assert said == [("2", "allow"), ("small", "deny")]


# -- what is written wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ("rules = 3", r"rules are tables \[\[rules\]\]"),
        ("[rules]\naction = 'deny'", r"rules are tables \[\[rules\]\]"),
        ("[[rules]]\nwhen = 'true'", "rule 1: Rule field 'action'"),
        (rule("forbid"), "rule 1: Rule field 'action' takes 'allow', 'deny' or 'approve', got 'forbid'"),
        (rule() + rule(wen="'amount > 1'"), "rule 2: Rule has no field 'wen'; did you mean when"),
        (rule(when="amount >"), "rule 1, when: 'amount >' is not valid CEL"),
        (rule("deny", limits="{rate = '1/minute'}"), "limits= and action='deny'"),
        (rule("deny", approval="{approvers = 2}"), "approval= and action='deny'"),
        (rule("allow", limits="{effect = 'read'}"), r"no 'effect'; it stands in \[tools.NAME\]"),
        (rule("allow", limits="{ratee = '1/s'}"), "no 'ratee'; did you mean rate"),
        (rule("allow", limits="{timeout = -1}"), "rule 1: Policy field 'timeout'"),
        (rule(timezone="'Mars'"), "'Mars' is none of this machine"),
        (rule(tools="[]"), "Rule field 'tools'"),
        (rule(when="run.nmae == 'x'"), "names 'run.nmae'; a run has run.id, run.name, run.conversation"),
    ],
)
def test_a_rule_that_is_written_wrong_is_refused_at_the_start(tmp_path: Path, rules: str, sentence: str) -> None:
    """By its number and its field, with what to write instead."""
    (tmp_path / "p.toml").write_text(rules)
    with pytest.raises(ConfigurationError, match=sentence):
        Guard("sqlite:///x.db", policies="p.toml")


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (rule(when="amont > 1"), "names 'amont', which the tool 'pay' does not take; did you mean amount"),
        (rule(when="args.amont > 1"), "names 'amont'"),
        (rule(when="price > 1", tools="'p*'"), r"has\(args.price\) && args.price"),
        (rule(when="has(args.amont) && args.amont > 1"), "names 'amont', .*; did you mean amount"),
        (rule(when="'amont' in args"), "names 'amont'"),
        (
            rule("approve", approval="{roles = ['cfo']}"),
            "rule 1, for the tool 'pay': .* the roles cfo, .* finance, and n",
        ),
    ],
)
def test_a_condition_is_checked_against_the_tools_it_is_about(tmp_path: Path, rules: str, sentence: str) -> None:
    """What a tool does not take is refused when the tool is declared, and nothing is half declared."""
    (tmp_path / "p.toml").write_text(rules)
    guard = Guard("sqlite:///x.db", policies="p.toml")
    guard.tool("other")(lambda: None)
    with pytest.raises(ConfigurationError, match=sentence):
        guard.tool("pay", approve=True, approval=Approval(roles=["finance"]))(lambda amount: None)


def test_an_argument_that_no_tool_of_a_rule_has_is_named(tmp_path: Path) -> None:
    """A rule of several tools may look for what one of them has, and for nothing that none has: it would never hold."""
    wide = "has(args.amont) && args.amont > 1 || has(args.card) && 'args.none' in ['x']"
    (tmp_path / "p.toml").write_text(rule(when=wide, tools="'*'") + rule(when="has(args.k.amount)", tools="'any'"))
    guard = Guard("sqlite:///x.db", policies="p.toml")
    tools = [guard.tool("pay")(lambda amount: None), guard.tool("card")(lambda card: None)]
    any_ = guard.tool("any")(lambda **k: None)
    (sentence,) = guard.unused_policies()
    assert "rule 1 looks for the argument 'amont'" in sentence
    assert "did you mean amount?" in sentence
    del tools, any_


@pytest.mark.parametrize(
    ("when", "held"),
    [
        ("xs.all(amount, amount > 0) && amount > 100", True),
        ("xs.exists(user, user == 1) && args.user == 'nobody'", True),
        ("xs.map(x, x + amount).exists(x, x == 151)", True),
        ("xs.all(amount, amount > 500)", False),
        ("xs.filter(amount, xs.exists(amount, amount == 1)).size() == 2 && amount == 150", True),
        (r"'x.all(amount, )' != user && xs.all(amount, '\'(' != string(amount)) && amount > 1", True),
    ],
)
def test_a_variable_of_a_macro_may_have_the_name_of_an_argument(when: str, held: bool) -> None:
    """Within the macro it is the variable, beside it the argument."""
    found = Expression(when, where="here")
    assert found.evaluate({"xs": [1, 2], "amount": 150, "user": "ada", "args": {"user": "nobody"}}) is held


def test_a_rule_for_no_tool_is_named(tmp_path: Path) -> None:
    """With the nearest names."""
    (tmp_path / "p.toml").write_text(rule(tools="['pays', '*']"))
    guard = Guard("sqlite:///x.db", policies="p.toml")
    guard.tool("pay")(lambda: None)
    (sentence,) = guard.unused_policies()
    assert "names 'pays'" in sentence
    assert "did you mean pay?" in sentence


def test_the_example_file_loads_and_holds(store_url: str) -> None:
    """``examples/sagaspan.toml``: what it says of one payment by day, of a large one, and of one in a test run."""
    with (
        frozen_clock(dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)),
        Guard(store_url, policies=EXAMPLE, approver=lambda _: Approve(by="ada")) as guard,
    ):
        pay = guard.tool("pay")(lambda amount, card: amount)
        refund = guard.tool("refund")(lambda amount: amount)
        guard.tool("lookup_order")(lambda order: order)
        with guard.run("order", user="bob"):
            assert pay(20, "c1") == 20
        with pytest.raises((ApprovalPending, ApprovalDenied)), guard.run("order", user="bob"):
            refund(150)
        with pytest.raises(PolicyDenied, match="test runs do not pay"), guard.run("order", tags={"env": "test"}):
            pay(1, "c1")


# -- the version ---------------------------------------------------------------------------------------------------


def test_every_decision_says_under_which_version_it_was_made(shop: Callable[..., Shop]) -> None:
    """The call that ran, the request that waits, and the denial in the audit trail; none without a file."""
    shop_ = shop(rule("deny", "amount > 100") + rule("approve", "amount > 10"))
    version = shop_.guard._engine.policy.version
    shop_.order(1)
    with pytest.raises(ApprovalPending):
        shop_.order(50)
    with pytest.raises(PolicyDenied):
        shop_.order(500, id="o3")
    (call,) = shop_.guard.calls.list(open=False)
    (request,) = shop_.guard.approvals.list()
    (denial,) = [row for row in shop_.guard._store.audit_of("default", "o3") if row.event == "policy.deny"]
    assert (call.policy, request.facts["policy"]) == (version, version)
    assert f"policy {version}" in denial.detail
    assert version in request.text
    assert Guard(f"sqlite:///{shop_.file.parent / 'other.db'}").tool("f")(lambda: 1)() == 1


def test_a_denial_stands_when_it_cannot_be_recorded(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """The note is for who asks later; the refusal does not wait for it."""
    denied = shop(rule("deny", "amount > 100"))
    denied.order(1)

    def down(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the disk is full")

    with pytest.raises(PolicyDenied):

        async def job() -> None:
            async with denied.caller.run(denied.guard, "order"):
                with monkeypatch.context() as patched:
                    patched.setattr(denied.guard._store, "commit", down)
                    await denied.caller.call(denied.pay, 500, "x")

        denied.caller.play(job)
    assert denied.paid == [1]


def test_a_rule_is_about_the_tool_that_it_names() -> None:
    """Also if its name looks like a glob, which would not fit it."""
    from sagaspan.rules import Rules

    rules = Rules([{"tools": "pay[eu]", "action": "deny"}], source="x")
    assert [len(rules.of(tool)) for tool in ("pay[eu]", "paye", "pay")] == [1, 1, 0]
    assert not list(rules.unfit(["pay[eu]"]))
