"""A tool goes by the name that its author wrote and by the one that models see, wherever a person names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sagaspan import ApprovalPending, BudgetExceeded, ConfigurationError, Guard, Policy, PolicyDenied, ScopeFrozen
from tests.cli.conftest import Sagaspan, home, sagaspan  # noqa: F401 - fixtures

BOTH = pytest.mark.parametrize("name", ["billing.pay", "billing_pay"])
GLOBS = pytest.mark.parametrize("name", ["billing.pay", "billing_pay", "billing.*", "billing_p*"])


@pytest.fixture
def guards(store_url: str) -> Iterator[Callable[..., Guard]]:
    """Guards over one ledger."""
    made: list[Guard] = []

    def make(**options: Any) -> Guard:
        made.append(Guard(store_url, **options))
        return made[-1]

    yield make
    for guard in made:
        guard.close()


def paying(guard: Guard, **fields: Any) -> Callable[[int], str]:
    """The tool, which models see as ``billing_pay``: no API takes a name with a dot."""
    return guard.tool("billing.pay", **fields)(lambda amount: f"paid {amount}")


@GLOBS
def test_a_policy_names_a_tool_either_way(guards: Callable[..., Guard], tmp_path: Path, name: str) -> None:
    """In a dict, in a file, and in a rule of that."""
    file = tmp_path / "p.toml"
    with pytest.raises(ApprovalPending):
        paying(guards(policies={name: Policy(approve=True)}, approver="inbox"))(1)
    file.write_text(f'[tools."{name}"]\napprove = true\n')
    with pytest.raises(ApprovalPending):
        paying(guards(policies=file, approver="inbox"))(1)
    file.write_text(f'[[rules]]\ntools = "{name}"\naction = "deny"\n')
    with pytest.raises(PolicyDenied):
        paying(guards(policies=file))(1)
    assert guards(policies=file).unused_policies() != []
    unfit = guards(policies=file)
    paying(unfit)
    assert unfit.unused_policies() == []


@GLOBS
def test_a_budget_names_a_tool_either_way(guards: Callable[..., Guard], name: str) -> None:
    """One that a program declares, and one that a person sets, for what was used before as well."""
    declared = paying(guards(budgets={f"tool:{name}": "2 calls"}))
    declared(1)
    guard = guards()
    pay = paying(guard)
    guard.set_budget(f"tool:{name}", "2 calls")
    pay(1)
    for each in (pay, declared):
        with pytest.raises(BudgetExceeded, match=r"budget of 'tool:billing\.pay'"):
            each(1)


def test_the_budgets_of_both_names_are_one(guards: Callable[..., Guard]) -> None:
    """A limit that is set again under the other name takes the place of the first, and is taken back under either."""
    guard = guards()
    pay = paying(guard)
    pay(1)
    guard.set_budget("tool:billing_pay", "1 calls")
    guard.set_budget("tool:billing.pay", "3 calls")
    pay(2)
    for name in ("tool:billing.pay", "tool:billing_pay"):
        (account,) = guard.budgets.list(name)
        assert (account.spent, account.limit, account.set_by is not None) == (2, 3, True)
    guard.budgets.unset("tool:billing_pay")
    for amount in range(3):
        pay(amount)


@BOTH
def test_max_calls_of_one_run_are_raised_under_either_name(guards: Callable[..., Guard], name: str) -> None:
    guard = guards()
    pay = paying(guard, max_calls=1)
    with guard.run("order", id="o1"):
        pay(1)
        guard.set_budget(f"run:o1/{name}", "2 calls")
        pay(2)


@GLOBS
def test_a_freeze_names_a_tool_either_way(guards: Callable[..., Guard], name: str) -> None:
    """Also before its first call, by a process that has no such tool."""
    guards().freeze(f"tool:{name}", reason="incident 7")
    with pytest.raises(ScopeFrozen):
        paying(guards())(1)


def test_a_freeze_under_one_name_is_lifted_under_the_other(guards: Callable[..., Guard]) -> None:
    guard, other = guards(), guards()
    pay = paying(guard)
    pay(1)
    other.freeze("tool:billing_pay", reason="incident 7")
    with pytest.raises(ScopeFrozen):
        pay(2)
    assert other.unfreeze("tool:billing.pay").scope == "tool:billing_pay"
    assert pay(3) == "paid 3"


@BOTH
def test_usage_is_asked_for_under_either_name(guards: Callable[..., Guard], name: str) -> None:
    guard = guards()
    paying(guard, cost="0.5 USD")(1)
    assert guard.usage(tool=name).calls == 1
    assert [one.key for one in guard.usage_by("tool")] == ["billing.pay"]


@BOTH
def test_a_person_agrees_for_another_to_calls_of_a_tool_under_either_name(
    guards: Callable[..., Guard], name: str
) -> None:
    guard = guards(approver="inbox")
    with pytest.raises(ApprovalPending) as pending:
        paying(guard, approve=True)(1)
    grant = guard.approvals.delegate(to="bob", tools=name, by="ada")
    request = guard.approvals.approve(pending.value.approval_id, by="bob", grant=grant)
    assert request.approved_by == ("bob",)


def test_the_lists_of_the_command_line_take_either_name(
    guards: Callable[..., Guard],
    store_url: str,
    sagaspan: Sagaspan,  # noqa: F811
) -> None:
    """Names and globs of them."""
    guard = guards(approver="inbox")
    paying(guard)(1)
    guard.tool("other")(lambda: 1)()
    with pytest.raises(ApprovalPending):
        guard.tool("billing.refund", approve=True)(lambda amount: None)(1)
    for name in ("billing.pay", "billing_pay", "billing_p*"):
        (call,) = sagaspan("calls", "list", "--all", "--tool", name, "--store", store_url, "--json").json
        assert call["tool"] == "billing.pay"
    for name in ("billing.refund", "billing_r*"):
        (request,) = sagaspan("approvals", "list", "--tool", name, "--store", store_url, "--json").json
        assert request["tool"] == "billing.refund"


# -- names that fit nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["biling.pay", "biling*"])
def test_a_policy_that_fits_no_tool_is_refused_in_code(guards: Callable[..., Guard], name: str) -> None:
    """At the wrap, or of a guard's own before the first call, when all is declared; nothing runs before."""

    def pay(amount: int) -> None:
        pytest.fail("ran")

    with pytest.raises(ConfigurationError, match=r"wrap\(policies\) names .*'biling.*did you mean billing.pay"):
        guards().wrap(pay, {name: Policy(approve=True)}, name="billing.pay")
    guard = guards(policies={name: Policy(approve=True)})
    wrapped = guard.wrap(pay, name="billing.pay")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"'biling.*did you mean billing.pay.*before the first call"):
            wrapped(1)


def test_a_policy_of_a_guard_may_be_for_a_tool_that_is_declared_later(guards: Callable[..., Guard]) -> None:
    """What resembles no tool is no slip, nor what resembles one that has an entry of its own."""
    guard = guards(
        policies={"hotel_1": Policy(), "hotel_2": Policy(effect="write"), "refund": Policy()}, approver="inbox"
    )
    with guard.run("order"):
        guard.tool("hotel_1")(lambda: None)()
        guard.tool("hotel_2")(lambda: None)()
    assert {call.tool: call.effect for call in guard.calls.list(open=False)}["hotel_2"] == "write"


def test_a_file_that_fits_no_tool_is_warned_of(
    guards: Callable[..., Guard], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[tools."biling*"]\napprove = true\n')
    guard = guards(policies=file)
    with guard.run("order"):
        assert paying(guard)(1) == "paid 1"
    assert "'biling*'" in caplog.text
