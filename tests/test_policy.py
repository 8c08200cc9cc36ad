"""What tools may declare, and how several sources combine."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan import Approval, ConfigurationError, Guard, Policy, Retry
from sagaspan.adapters import PolicyBook
from sagaspan.policy import gates_of


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"compensat": print}, "has no field 'compensat'; did you mean compensate"),
        ({"zzz": 1}, "has no field 'zzz'; it has effect"),
        ({"effect": "delete"}, "field 'effect'.*got 'delete'"),
        ({"timeout": 0}, "field 'timeout' takes a number of seconds above 0, got 0"),
        ({"timeout": "30"}, "field 'timeout'"),
        ({"timeout": True}, "field 'timeout'"),
        ({"timeout": float("inf")}, "field 'timeout'"),
        ({"critical": 1}, "field 'critical'"),
        ({"retry": 0}, "field 'attempts'"),
        ({"retry": True}, "field 'retry'"),
        ({"retry": {"atempts": 3}}, "no field 'atempts'; did you mean attempts"),
        ({"retry": "3"}, "field 'retry'"),
        ({"repeat": "never"}, "field 'repeat'"),
        ({"not_applied": (int,)}, "field 'not_applied'"),
        ({"error_means": "maybe"}, "field 'error_means'"),
        ({"approve": 1.5}, "field 'approve'"),
        ({"approve": 0}, "field 'approve'"),
        ({"approve": "amount >"}, "field 'approve': 'amount >' is not valid CEL"),
        ({"key": "order &&"}, "field 'key': 'order &&' is not valid CEL"),
        ({"lock": "'account:' +"}, r"field 'lock': .* is not valid CEL"),
        ({"loop": 0}, "field 'loop' takes a whole number from 1 on, or False for any number of calls, got 0"),
        ({"loop": True}, "field 'loop' takes"),
    ],
)
def test_wrong_fields_are_refused_in_plain_words(guard: Guard, fields: dict[str, Any], sentence: str) -> None:
    """A field that does not exist or has the wrong type is a ``ConfigurationError`` at the definition, by name."""
    with pytest.raises(ConfigurationError, match=sentence):
        Policy(**fields)
    with pytest.raises(ConfigurationError, match=r"tool 'f': .*" + sentence):
        guard.tool("f", **fields)(lambda: None)
    with pytest.raises(ConfigurationError, match=r"policies, tool 'f': .*" + sentence):
        Guard(policies={"f": fields})


def test_replace_validates() -> None:
    """``replace`` gives a validated copy; the original is frozen."""
    policy = Policy(timeout=3)
    assert policy.replace(effect="read") == Policy(timeout=3, effect="read")
    with pytest.raises(ConfigurationError, match="effect"):
        policy.replace(effect="reed")
    with pytest.raises(ConfigurationError, match=r"make another one with replace\(timeout=\.\.\.\)"):
        policy.timeout = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "write", "rerunnable", "repeat"),
    [
        ({}, False, False, "new"),
        ({"effect": "read"}, False, True, "new"),
        ({"effect": "idempotent", "compensate": print}, False, True, "new"),
        ({"effect": "write"}, True, False, "dedupe"),
        ({"effect": "irreversible", "approve": False}, True, False, "ask"),
        ({"compensate": print}, True, False, "dedupe"),
        ({"key": "x"}, True, False, "dedupe"),
        ({"effect": "write", "repeat": "new"}, True, False, "new"),
    ],
)
def test_what_a_declaration_makes_of_a_tool(fields: dict[str, Any], write: bool, rerunnable: bool, repeat: str) -> None:
    """``compensate`` or ``key`` makes an undeclared tool a write; ``repeat`` follows the effect."""
    policy = Policy(**fields)
    assert (policy.declared_write, policy.rerunnable, policy.repeat_rule) == (write, rerunnable, repeat)


def test_sources_combine_field_by_field(tmp_path: Path, store_url: str) -> None:
    """File over wrap over guard over decorator; fields that a source leaves out stay as they were."""
    file = tmp_path / "sagaspan.toml"
    file.write_text('[tools.pay]\ntimeout = 1\nretry = {attempts = 2}\n\n[tools."get_*"]\neffect = "read"\n')
    declared = Policy(timeout=4, effect="write", critical=True, repeat="new")
    wrapped = PolicyBook({"pay": Policy(timeout=2, effect="idempotent")}, source="wrap")
    by_file = Guard(store_url, policies=str(file)).policy_for("pay", declared, wrapped)
    assert (by_file.timeout, by_file.retry, by_file.effect, by_file.critical) == (
        1,
        Retry(attempts=2),
        "idempotent",
        True,
    )
    with_dict = Guard(store_url, policies={"pay": {"timeout": 3, "repeat": "dedupe"}})
    by_wrap = with_dict.policy_for("pay", declared, wrapped)
    assert (by_wrap.timeout, by_wrap.repeat, by_wrap.effect) == (2, "dedupe", "idempotent")
    by_guard = with_dict.policy_for("pay", declared)
    assert (by_guard.timeout, by_guard.effect) == (3, "write")
    assert Guard(store_url, policies=file).policy_for("get_x", Policy()).effect == "read"


def test_globs_and_exact_names() -> None:
    """An exact name wins over globs, of globs the first that matches, in all but what adds up."""
    book = PolicyBook({"get_*": {"timeout": 1}, "*": {"timeout": 2}, "get_a": {"timeout": 3}}, source="x")
    assert [book.for_tool(name).timeout for name in ("get_a", "get_b", "put")] == [3, 1, 2]
    with pytest.raises(ConfigurationError, match=r"x names the tool 'get_a'.*did you mean get_b"):
        book.check_names(["get_b"], where="this agent")


def test_no_entry_of_a_source_takes_back_what_another_asks_or_redacts() -> None:
    """A gate of a glob holds for a tool that has an entry of its own, or fits an earlier glob."""
    gate, limit = {"approve": "a > 1", "approval": {"approvers": 2}, "redact": ["a"], "timeout": 9}, {"timeout": 3}
    for policies in (
        {"*": gate, "pay": limit},
        {"pa*": limit, "*": gate},
        {"*": gate, "pay": {**limit, "approve": False}},
    ):
        found = PolicyBook(policies, source="x").for_tool("pay")
        assert gates_of(found.approve) == ("a > 1",)
        assert (found.approval, found.redact, found.timeout) == (Approval(approvers=2), ("a",), 3)
    both = PolicyBook({"*": gate, "pay": {"approve": "a > 2", "redact": ["b"]}}, source="x").for_tool("pay")
    assert (both.approve, both.redact, both.timeout) == (("a > 1", "a > 2"), ("a", "b"), None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tools.pay\n", "not valid TOML"),
        ("[tool.pay]\n", r"unknown table \[tool\]"),
        ("tools = 3\n", r"is a table \[tools.NAME\]"),
        ("[tools]\npay = 3\n", r"is a table \[tools.NAME\]"),
        ("[tools.pay]\ntimout = 3\n", "tool 'pay': .*did you mean timeout"),
        ('[tools.pay]\ntimeout = "3"\n', "tool 'pay': .*'timeout'"),
    ],
)
def test_a_broken_policy_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """A policy file that is missing, broken or misspelt stops the program at the start, naming the place."""
    file = tmp_path / "sagaspan.toml"
    with pytest.raises(ConfigurationError, match=r"sagaspan\.toml cannot be read"):
        Guard(policies=str(file))
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=sentence):
        Guard(policies=file)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are said to be no TOML."""
    (tmp_path / "p.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        Guard(policies="p.toml")


def _large_files() -> dict[str, tuple[str, str]]:
    """Contents that would take minutes, gigabytes or the whole stack, and what is said of them."""
    when = "[[rules]]\ntools = 'pay'\naction = 'deny'\nwhen = '{}'\n"
    return {
        "dotted key": (".".join(["a"] * 60_000) + " = 1\n", "nested too deep: a key in line 1"),
        "dotted table": ("# one\n[" + " . ".join(['"a b"'] * 30_000) + "]\n", "nested too deep: a key in line 2"),
        "many bytes": ("#" * 2_000_000, "more than 1,048,576 bytes"),
        "many operators": (when.format("+".join(["amount"] * 20_000)), "is too large"),
        "many fields": (when.format("amount" + '["b"]' * 3_000), "is too large"),
        "long text": (when.format('"' + "x" * 30_000 + '" == amount'), "is too large"),
    }


@pytest.mark.parametrize("what", _large_files())
def test_a_policy_file_that_is_too_large_is_refused(tmp_path: Path, what: str) -> None:
    """With one error, before any of it is parsed or compiled."""
    text, sentence = _large_files()[what]
    file = tmp_path / "sagaspan.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=sentence):
        Guard(policies=file)


def test_a_policy_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe is not waited for, and a link to itself is named."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    for name, sentence in (("pipe", "name a regular file"), ("loop", "cannot be read"), ("", "cannot be read")):
        with pytest.raises(ConfigurationError, match=sentence):
            Guard(policies=tmp_path / f"{name}.toml" if name else tmp_path)


def test_dots_in_texts_and_comments_are_no_keys(tmp_path: Path) -> None:
    """A sentence, a host name and a row of dots do not count as a nested key."""
    file = tmp_path / "sagaspan.toml"
    file.write_text("# 1. 2. 3. ... " + "." * 200 + "\n[tools.'a.b.c']\nlock = '\"" + "a.b.c.d.example " * 20 + "\"'\n")
    Guard(policies=file)


def test_a_long_list_of_values_is_a_condition(tmp_path: Path) -> None:
    """Only operators are counted, and not the values or the texts of a list."""
    file = tmp_path / "sagaspan.toml"
    values = ", ".join(f'"customer-{number}+a-b"' for number in range(600))
    file.write_text(f"[tools.pay]\napprove = 'to in [{values}]'\n")
    Guard(policies=file)


def test_irreversible_tools_say_that_nobody_is_asked(guard: Guard) -> None:
    """An irreversible tool needs ``approve=False`` of its own; with a compensation it contradicts itself."""
    with pytest.raises(ConfigurationError, match=r"irreversible.*approve=False"):
        guard.tool("wipe", effect="irreversible")(lambda: None)
    guard.tool("wipe", effect="irreversible", approve=False)(lambda: None)
    with pytest.raises(ConfigurationError, match="one of them is wrong"):
        guard.tool("look", effect="read", compensate=print)(lambda: None)


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("order &&", "not valid CEL"),
        ("ordr + 1", "names 'ordr'.*did you mean order"),
        ("items.all(x, y > 0)", "names 'y'"),
        (lambda nothing: nothing, "cannot|nothing can fill the parameter 'nothing'"),
    ],
)
def test_keys_are_checked_at_the_definition(guard: Guard, key: Any, sentence: str) -> None:
    """An expression that does not compile or names no argument, and a function nothing can fill, are refused."""
    with pytest.raises(ConfigurationError, match=sentence):
        guard.tool("pay", key=key)(lambda order, items=(): None)


def test_a_macro_binds_its_own_variable(guard: Guard) -> None:
    """The variable of a CEL macro is no argument of the tool."""
    pay = guard.tool("pay", key='order + "-" + string(items.filter(i, i > 1).size())')(lambda order, items: None)
    pay("a", [1, 2, 3])
    (run,) = guard.runs.list()
    assert guard.runs.get(run.id).calls[0].key == "a-2"


def _generator(result: Any) -> Any:
    yield result


async def _async_generator(result: Any) -> Any:
    yield result


@pytest.mark.parametrize(
    ("compensate", "sentence"),
    [
        (lambda ticket: None, "nothing can fill the parameter 'ticket' of the compensation"),
        (lambda result: None, "declares 'result', which is reserved but also an argument"),
        (_generator, "is a generator"),
        (_async_generator, "is a generator"),
    ],
)
def test_compensations_are_checked_at_the_definition(guard: Guard, compensate: Any, sentence: str) -> None:
    """What a compensation cannot be given, or would never run, is refused when the tool is declared."""
    with pytest.raises(ConfigurationError, match=sentence):
        guard.tool("book", compensate=compensate)(lambda result, city: None)


def test_a_reserved_name_is_an_argument_like_any_other_if_nobody_asks_for_it(guard: Guard) -> None:
    """A forward parameter may be called ``result`` as long as the compensation does not declare that name."""
    guard.tool("book", compensate=lambda city: None)(lambda result, city: None)


def test_an_unknown_compensation_stops_its_own_tool(guard: Guard) -> None:
    """It is refused before the body of its tool runs, with the nearest name; other tools go on."""
    guard.tool("refund")(lambda order: None)
    other = guard.tool("other")(lambda: "done")
    pay = guard.tool("pay", compensate="refnd")(lambda order: pytest.fail("ran"))
    assert other() == "done"
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no tool 'refnd' to compensate it; did you mean refund"):
            pay(1)


def test_a_misspelt_compensation_is_refused_at_the_wrap(guard: Guard) -> None:
    """With the nearest name, of the wrap or of what was declared before; nothing of the wrap is kept."""

    def book(city: str) -> str:
        return city

    def cancel_booking(city: str) -> None: ...

    with pytest.raises(ConfigurationError, match="no tool 'cancel_bookin' to compensate it; did you mean cancel_book"):
        guard.wrap([book, cancel_booking], {"book": Policy(compensate="cancel_bookin")})
    guard.tool(cancel_booking)
    with pytest.raises(ConfigurationError, match="did you mean cancel_booking"):
        guard.wrap(book, {"book": Policy(compensate="cancel_bookin")})
    assert guard.wrap(book, {"book": Policy(compensate="cancel_booking")})("Rome") == "Rome"


def test_a_compensation_may_be_declared_after_the_wrap(guard: Guard) -> None:
    """Until the first call of anything that was wrapped with its tool; other tools are not asked about it."""

    def book(city: str) -> str:
        return city

    def look(city: str) -> str:
        return city

    wrapped = guard.wrap([book, look], {"book": Policy(compensate="unbook")})
    assert guard.tool("other")(lambda: "done")() == "done"
    for tool in wrapped:
        with pytest.raises(ConfigurationError, match="there is no tool 'unbook' to compensate it"):
            tool("Rome")
    guard.tool("unbook")(lambda city: None)
    assert [tool("Rome") for tool in wrapped] == ["Rome", "Rome"]


@pytest.mark.parametrize("function", [_generator, _async_generator, 5, [print]])
def test_what_cannot_be_a_tool(guard: Guard, function: Any) -> None:
    """Generators would have their effect after their claim; other objects are no tools."""
    with pytest.raises(ConfigurationError):
        guard.tool(function)


def test_one_name_one_function(guard: Guard) -> None:
    """A name that another function has is refused, naming both."""

    def pay() -> None: ...

    guard.tool("pay")(pay)
    guard.tool("pay")(pay)
    with pytest.raises(ConfigurationError, match=r"'pay' is taken by .*pay; give .*print"):
        guard.tool("pay")(print)


@given(
    st.integers(1, 5000), st.floats(0, 1e6), st.floats(1, 1e3), st.floats(0, 1e6), st.booleans(), st.randoms()
)  # fmt: skip
def test_delays_stay_in_their_bounds(
    attempt: int, initial: float, factor: float, longest: float, jitter: bool, seeded: random.Random
) -> None:
    """A delay is never negative, never beyond ``max_delay``, and never overflows, whatever the attempt."""
    retry = Retry(attempts=5000, initial_delay=initial, backoff_factor=factor, max_delay=longest, jitter=jitter)
    assert 0 <= retry.delay(attempt, seeded.random) <= longest


def test_delays_double() -> None:
    """Without jitter the delays are the documented ones; with it they are a share of them."""
    retry = Retry(attempts=9, jitter=False)
    assert [retry.delay(n, random.random) for n in (1, 2, 3, 7, 8)] == [1, 2, 4, 60, 60]
    assert Retry(jitter=True).delay(3, lambda: 0.25) == 1
