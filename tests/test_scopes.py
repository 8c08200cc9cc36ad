"""Scopes, and the budgets declared for them by name or glob."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan import BudgetExceeded, ConfigurationError, Guard, RunConflict, ScopeFrozen
from sagaspan._owner import run_token
from sagaspan.scopes import (
    BudgetBook,
    check_scope,
    run_and_tool,
    scope,
    scope_of_run,
    scope_of_tool_in_run,
    spellings,
)
from tests.conftest import Sql


@pytest.mark.parametrize(
    "text",
    [
        "run:r-1",
        "agent:a b",
        "user:42",
        "tenant:acme:eu",
        "tool:billing.pay",
        "model:gpt-4o",
        "user:東京　駅",
        "user:*",
    ],
)
def test_scopes(text: str) -> None:
    """A kind, a colon and any name a person can read."""
    assert check_scope(text) == text
    assert scope(*text.split(":", 1)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("users:42", "did you mean 'user:42'"),
        ("user", "did you mean 'user:NAME'"),
        ("*", "write KIND:NAME"),
        ("*:42", "write KIND:NAME"),
        ("", "write KIND:NAME"),
        ("user:", "1 to 255 characters"),
        ("user:a\nb", "control characters"),
        ("user:42 ", "begins or ends with a space; write 'user:42'"),
        ("user:\x1b[31m", "control characters"),
        ("user:\ud800", "control characters"),
        ("user:" + "x" * 300, "1 to 255 characters"),
        (42, "not a int"),
    ],
)
def test_what_is_no_scope_is_refused(text: Any, message: str) -> None:
    """A typo is answered with the nearest kind; a name cannot break a table or a key."""
    with pytest.raises(ConfigurationError, match=message) as refused:
        check_scope(text)
    assert "\n" not in str(refused.value)


def _shown(book: BudgetBook, name: str) -> list[str]:
    return [str(placed.budget) for placed in book.of(name)]


def test_of_budgets_of_one_kind_the_most_specific_holds() -> None:
    """Whatever their order: the scope itself, then the glob that names the most of it, then the tighter one."""
    book = BudgetBook({
        "user:*": "20 USD/day", "user:42": ["50 USD/day", "1k calls"], "user:v*": "99 USD/day", "user:*p": "98 USD/day",
        "user:?": "30 USD/day", "user:[xy]": "40 USD/day", "run:*": "2 USD, 10 min",
    })  # fmt: skip
    assert _shown(book, "user:77") == ["20 USD/day"]
    assert _shown(book, "user:42") == ["50 USD/day", "1k calls"]
    assert _shown(book, "user:vip") == ["98 USD/day"]
    assert _shown(book, "user:7") == ["30 USD/day"]
    assert _shown(book, "user:x") == ["30 USD/day"]
    assert _shown(book, "run:any") == ["2 USD", "10 min"]
    assert _shown(book, "tenant:acme") == []
    assert _shown(book, "user:a/b:c") == ["20 USD/day"]
    assert list(book) == ["user:*", "user:42", "user:v*", "user:*p", "user:?", "user:[xy]", "run:*"]
    assert len(book) == 7


def test_budgets_of_several_kinds_all_hold() -> None:
    """What is said of one unit or window takes nothing back of another, however specific it is."""
    book = BudgetBook({"user:*": "5 USD/day, 10 USD", "user:4*": "100 calls", "user:42": "9 USD/hour, 1 calls"})
    assert sorted(_shown(book, "user:42")) == ["1 calls", "10 USD", "5 USD/day", "9 USD/hour"]
    assert sorted(_shown(book, "user:4")) == ["10 USD", "100 calls", "5 USD/day"]


def test_a_name_with_the_characters_of_a_glob_names_itself() -> None:
    """A model or tool may be called so."""
    assert _shown(BudgetBook({"model:ft[x]": "5 USD"}), "model:ft[x]") == ["5 USD"]


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"usr:*": "2 USD"}, "budgets: 'usr:"),
        ({"user:*": "2"}, "budgets, 'user:\\*': '2' has no unit"),
        ({"user:*": "10 min"}, "only a run has a wall clock"),
        ({3: "2 USD"}, "a scope is text"),
        (["2 USD"], "a mapping of scopes"),
        ({"user:*": "2 USD", "user:root": []}, "'user:root': no budget, which exempts nobody"),
    ],
)
def test_a_wrong_table_is_refused_when_it_is_written_down(budgets: Any, message: str) -> None:
    """The error names the table, the scope and what is wrong with it."""
    with pytest.raises(ConfigurationError, match=message):
        BudgetBook(budgets)


def test_nothing_declared_is_nothing_limited() -> None:
    """No table, no budgets."""
    assert BudgetBook(None).of("user:42") == ()


# -- parts that hold separators --------------------------------------------------------------------------------------

_IDS = st.text(alphabet="a1/#@%:|~.2F ", min_size=1, max_size=6)
_COUNTED = st.one_of(st.tuples(_IDS, st.none()), st.tuples(_IDS, _IDS))


def _counted_in(run: str, tool: str | None) -> str:
    return scope_of_run(run) if tool is None else scope_of_tool_in_run(run, tool)


@given(_COUNTED, _COUNTED)
def test_no_two_scopes_are_one(one: tuple[str, str | None], other: tuple[str, str | None]) -> None:
    """Of runs and of tools in runs, whatever is in the ids; each says what it counts, also as people write it."""
    assert (_counted_in(*one) == _counted_in(*other)) == (one == other)
    assert run_and_tool(_counted_in(*one)) == one
    run, tool = one
    assert f"run:{run}" + (f"/{tool}" if tool else "") in spellings(_counted_in(*one))
    assert _counted_in(run, None) != _counted_in("a", "b")


@pytest.mark.parametrize("run", ["r", "trip/book#1", "a/b/trip#2~1", "thread/3", "crew/12", "a/trip@00ff"])
def test_the_scope_of_an_id_that_runs_are_given_is_that_id(run: str) -> None:
    """Nested runs, conversations and items of a batch are read as they are."""
    assert scope_of_run(run) == f"run:{run}"
    assert scope_of_tool_in_run(run, "pay") == f"run:{run}/pay"


@given(*[st.tuples(_IDS, _IDS, _IDS)] * 2)
def test_no_two_runs_have_one_token(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """Of ledgers, namespaces and ids: ``a/b`` and ``c`` are not ``a`` and ``b/c``."""
    assert (run_token(*one) == run_token(*other)) == (one == other)


def test_runs_of_two_namespaces_do_not_hold_each_other(store_url: str) -> None:
    """``a/b`` with the run ``c`` goes on inside ``a`` with the run ``b/c``."""
    one, other = Guard(store_url, namespace="a"), Guard(store_url, namespace="a/b")
    with one, other, one.run(id="b/c") as outer, other.run(id="c") as inner:
        assert (outer.status, inner.status) == ("running", "running")


@pytest.mark.parametrize("mark", ["/", "#", "@", ":", "%2F", "|", "~"])
def test_separators_in_every_id(store_url: str, mark: str) -> None:
    """Namespace, run, tool, user, tenant and agent: what one tool uses in one run is in no other account."""
    namespace, run, tool = f"n{mark}s", f"r{mark}1", f"pay{mark}2"
    guard = Guard(store_url, namespace=namespace, budgets={"run:*": "100 calls", "user:*": "50 calls"})
    other = Guard(store_url, namespace="n", budgets={"run:*": "100 calls"})
    whose = {"user": f"u{mark}1", "tenant": f"t{mark}1", "agent": f"g{mark}1"}

    @guard.tool(
        tool, effect="write", max_calls=1, repeat="new", key=lambda n: f"key{mark}{n}", lock=lambda n: f"lock{mark}{n}"
    )
    def pay(n: int) -> int:
        return n

    other_pay = other.tool(tool, effect="write", max_calls=1)(lambda n: n)
    with guard.run(id=run, **whose):
        pay(1)
        with pytest.raises(BudgetExceeded) as caught, guard.run(id=f"{run}x"):
            pay(2)
            pay(3)
    assert run_and_tool(caught.value.scope) == (f"{run}x", tool)
    for id_ in (f"{run}/{tool}", f"{run}#1", f"{run}/{tool}#1", f"{run}x/{tool}"):
        with guard.run(id=id_, **whose):
            pay(len(id_) * 10 + 7)
        with other.run(id=id_):
            other_pay(1)
    used = {account.scope: account.spent for account in guard.budgets.list()}
    for id_ in (f"{run}/{tool}", f"{run}#1", f"{run}/{tool}#1", f"{run}x/{tool}"):
        assert used[scope_of_run(id_)] == used[scope_of_tool_in_run(id_, tool)] == 1, id_
    assert used[scope_of_run(run)] == 2  # with what is nested in it
    assert used[scope_of_tool_in_run(run, tool)] == 1
    assert used[f"user:u{mark}1"] == 6
    assert not guard.budgets.fsck()
    guard.close()
    other.close()


def test_a_tool_does_not_use_up_the_run_of_its_name(store_url: str) -> None:
    """Two calls of ``pay`` in the run ``R`` are none of the run ``R/pay``, and the other way round."""
    with Guard(store_url) as guard:
        pay = guard.tool("pay", effect="write", max_calls=2)(lambda n: n)
        with guard.run(id="R"):
            pay(1)
            pay(2)
        with guard.run(id="R/pay", budget="2 calls"):
            pay(3)
            pay(4)


@pytest.mark.parametrize("written", ["run:R/pay", "run:R%2Fpay", "run:R/*"])
def test_a_limit_of_a_run_holds_however_its_id_is_written(store_url: str, sql: Sql, written: str) -> None:
    """As the id is, or as it is counted; what the run has used before counts, and the account is found by both."""
    with Guard(store_url) as guard:
        look = guard.tool("look", effect="read")(lambda n: n)
        with guard.run(id="R/pay") as run:
            look(1)
            run.pause()
        guard.budgets.set(written, "2 calls")
        with pytest.raises(BudgetExceeded, match=r"budgets set run:R%2Fpay AMOUNT") as caught, guard.run(id="R/pay"):
            look(2)
            look(3)
        assert caught.value.scope == "run:R%2Fpay"
        for asked in ("run:R/pay", "run:R%2Fpay"):
            assert [(one.scope, one.spent, one.limit) for one in guard.budgets.list(asked)] == [("run:R%2Fpay", 2, 2)]
        assert guard.usage(run="R/pay").calls == 2


def test_a_pause_of_a_run_with_a_slash_holds_what_is_nested_in_it(store_url: str) -> None:
    """And no tool of the run that its id begins with."""
    with Guard(store_url) as guard:
        pay = guard.tool("pay", effect="write")(lambda n: n)
        with pytest.raises(ScopeFrozen), guard.run(id="R/pay"), guard.run("inner"):
            guard.runs.pause("R/pay", reason="look")
            pay(1)
        with guard.run(id="R"):
            pay(2)


def test_nested_runs_whose_names_hold_separators_are_two(store_url: str) -> None:
    """``b/c`` in the run ``a`` is not ``c`` in the run ``a/b``; an id that is taken by another run is refused."""
    with Guard(store_url) as guard:
        pay = guard.tool("pay", effect="write")(lambda n: n)
        with guard.run("outer", id="a"), guard.run("b/c") as one:
            pay(1)
        with guard.run("outer", id="a/b"), guard.run("c") as other:
            pay(1)
        assert (one.id, other.id) == ("a/b%2Fc#1", "a/b/c#1")
        assert len(one.calls) == len(other.calls) == 1
        with guard.run("in", id="x/in#1"):
            pay(2)
        conflict = pytest.raises(RunConflict, match="nested in 'x' would have, belongs to another run")
        with conflict, guard.run("outer", id="x"), guard.run("in"):
            pay(3)
