"""What a stranger types wrong is refused where it is typed, by our own error: what it is, and what to write instead."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, Policy, Retry, SagaspanError, configure_tracing
from tests.conftest import Caller

Wrong = Callable[[], Any]


def pay(amount: int, card: str = "c1") -> int:
    return amount


def refused(wrong: Wrong, sentence: str) -> ConfigurationError:
    """The ``ConfigurationError`` of ``wrong``, which says ``sentence`` in one line; nothing ran."""
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        wrong()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"store": 5}, "store takes a URL .* not an int; leave it out for the default"),
        ({"store": Path("a.db")}, "is a path; write its URL: 'sqlite:///a.db'"),
        ({"store": "a.db"}, "is not a URL; write for example sqlite:///a.db"),
        ({"store": ""}, "is empty; write its URL, or leave it out"),
        ({"store": sqlite3}, "store takes a URL .* not a module"),
        ({"policies": [Policy()]}, "policies takes a dict such as .* or the path of a TOML file, not a list"),
        ({"policies": Policy()}, "policies takes a dict .* not a Policy"),
        ({"policies": {5: Policy()}}, "names a tool 5"),
        ({"policies": {" ": Policy()}}, "names a tool ' '"),
        ({"policies": {"pay": None}}, "the policy of 'pay' is None, not a Policy"),
        ({"namespace": ""}, "namespace='' is empty"),
        ({"namespace": None}, "namespace=None is None, not a text"),
        ({"namespace": 5}, "write namespace='5'"),
        ({"on_interrupt": []}, r"on_interrupt=\[\] is not one of None, 'hold', 'compensate'"),
        ({"durability": True}, "durability=True is not one of 'normal', 'full'"),
        ({"require_run": "no"}, "require_run='no' is a str; write require_run=True or require_run=False"),
        ({"fail_open": 1}, "fail_open=1 is an int"),
        ({"tracer_provider": "otlp"}, "tracer_provider takes a TracerProvider, not a str"),
        ({"middleware": None}, "middleware takes a list of layers, not None"),
        ({"middleware": "log"}, "middleware takes a list of layers, not a str"),
        ({"middleware": pay}, r"not one layer; write middleware=\[layer\]"),
        ({"middleware": [5]}, "middleware holds an int, which is no layer; write `async def layer"),
        ({"middleware": [Retry]}, r"the layer Retry is a class; put an instance of it into middleware: Retry\(\)"),
        ({"middleware": [lambda call: None]}, r"cannot be called with \(call, call_next\)"),
    ],
)
def test_a_guard(fields: dict[str, Any], sentence: str) -> None:
    """Nothing wrong is kept until the first call, and nothing is counted as True because it is not empty."""
    refused(lambda: Guard(**fields), sentence)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"compensate": dict}, "the compensation 'dict' is the class dict; give a function"),
        ({"compensate": 5}, "'compensate' takes a function, or the name of a tool, got 5"),
        ({"compensate": ""}, "'compensate' takes a function, or the name of a tool, got ''"),
        ({"compensate": [pay]}, "'compensate' takes a function, or the name of a tool"),
        ({"compensate": pay}, "tool 'pay' is to compensate itself"),
        ({"compensate": "pay"}, "tool 'pay' is to compensate itself"),
        ({"compensate": lambda reslt: None}, "nothing can fill the parameter 'reslt'"),
        ({"compensate": iter}, "tool 'pay': the compensation 'iter' has no readable signature"),
        ({"probe": dict}, "the probe 'dict' is the class dict"),
        ({"key": dict}, "its key is the class dict"),
        ({"key": True}, "'key' takes a CEL expression over the arguments, or a function of them, got True"),
        ({"key": ""}, "'key' takes a CEL expression"),
        ({"retry": 3.0}, r"'retry' takes a Retry, or a number of attempts from 1 on, got 3\.0"),
        ({"retry": (3, 1)}, "'retry' takes a Retry"),
        ({"timeout": "30s"}, "'timeout' takes a number of seconds above 0, got '30s'"),
        ({"not_applied": "ValueError"}, "'not_applied' takes an exception type, or several"),
        ({"marks_sending": 1}, "'marks_sending' takes True or False, got 1"),
        ({"approve": 5}, "'approve' takes True, False, a CEL expression"),
        ({"approve": "amout > 5"}, "did you mean amount"),
    ],
)
def test_a_policy(guard: Guard, fields: dict[str, Any], sentence: str) -> None:
    """It says of which tool, which field, and what that takes."""
    error = refused(lambda: guard.tool(**fields)(pay), sentence)
    assert "'pay'" in str(error)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Retry(3), r"Retry takes its fields by name, such as Retry\(attempts=3\)"),
        (lambda: Policy("write"), r"Policy takes its fields by name, such as Policy\(effect='write'\)"),
        (lambda: Retry(on="ValueError"), "'on' takes an exception type, or several"),
        (lambda: setattr(Policy(), "effect", "read"), r"make another one with replace\(effect=\.\.\.\)"),
        (lambda: configure_tracing(5), "service_name=5 is an int, not a text"),  # type: ignore[arg-type]
    ],
)
def test_what_stands_alone(wrong: Wrong, sentence: str) -> None:
    """Before there is any tool."""
    refused(wrong, sentence)


def test_one_type_or_a_list_will_do_where_several_can_be_named() -> None:
    """Nobody has to know that it is a tuple inside."""
    assert Retry(on=ValueError).on == Retry(on=[ValueError]).on == (ValueError,)  # type: ignore[arg-type]
    assert Policy(not_applied=KeyError).not_applied == (KeyError,)  # type: ignore[arg-type]


class Tools:
    """Methods decorated in the wrong order."""

    method = classmethod(lambda cls: 1)
    attribute = property(lambda self: 1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda guard: guard.tool(guard.tool(pay)),
            "the function 'pay' is guarded already, and would be recorded twice",
        ),
        (lambda guard: Guard("sqlite:///other.db").tool(guard.tool(pay)), "is guarded already"),
        (lambda guard: guard.tool(Tools), "takes a function, not the class Tools"),
        (lambda guard: guard.tool("pay")(5), "takes a function, not an int"),
        (lambda guard: guard.tool(Policy()), "takes a function or a name, not a Policy"),
        (lambda guard: guard.tool(vars(Tools)["method"]), "put @classmethod above @guard.tool"),
        (lambda guard: guard.tool(vars(Tools)["attribute"]), "put @property above @guard.tool"),
        (lambda guard: guard.tool(lambda: 1), r"a lambda has no name .* guard\.tool\('NAME'\)\(lambda"),
        (lambda guard: guard.tool("")(pay), "name='' is empty"),
        (lambda guard: guard.wrap(pay, Policy()), r"wrap\(policies\) takes a dict such as .*, not a Policy"),
        (lambda guard: guard.wrap(pay, [Policy()]), r"wrap\(policies\) takes a dict such as .*, not a list"),
        (lambda guard: guard.wrap(pay, "policies.toml"), r"wrap\(policies\) takes a dict such as .*, not a str"),
        (lambda guard: guard.wrap(pay, {"pya": Policy()}), "did you mean pay?"),
        (lambda guard: guard.wrap(pay, name=5), "name=5 is an int"),
        (lambda guard: guard.wrap(None), "does not know what None is"),
        (lambda guard: guard.wrap(Tools), "does not know what the class Tools is"),
        (lambda guard: guard.wrap([]), "does not know what a list of nothing is"),
        (lambda guard: guard.wrap([pay, 5]), "does not know what a list of a function, an int is"),
        (lambda guard: guard.compensate(5), "run=5 is an int, not a text"),
        (lambda guard: guard.compensate(None), "run=None is None"),
        (lambda guard: guard.compensate("a", call=5), "call=5 is an int"),
        (lambda guard: guard.compensate("a", dry_run="no"), "dry_run='no' is a str"),
        (lambda guard: guard.recover(older_than="5m"), "older_than='5m' is no time; write seconds"),
        (lambda guard: guard.recover(limit="5"), "limit='5' is no whole number from 1 on"),
        (lambda guard: guard.runs.get(5), "id=5 is an int"),
        (lambda guard: guard.runs.list(limit=0), "limit=0 is no whole number from 1 on"),
        (lambda guard: guard.runs.list(status="complete"), "status='complete' is not one of 'running'"),
        (lambda guard: guard.calls.list(status=["finished"]), "status='finished' is not one of 'awaiting_approval'"),
        (lambda guard: guard.calls.list(offset=-1), "offset=-1 is no whole number from 0 on"),
        (lambda guard: guard.calls.resolve("a", "happened", note=" "), "note=' ' is empty"),
    ],
)
def test_what_a_guard_is_asked(guard: Guard, wrong: Callable[[Guard], Any], sentence: str) -> None:
    """Of tools, agents, runs and the ledger."""
    refused(lambda: wrong(guard), sentence)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": ""}, "name='' is empty"),
        ({"name": None}, "name=None is None"),
        ({"name": pay}, "is a function, not a text"),
        ({"id": 5}, "id=5 is an int, not a text; write id='5', or leave it out"),
        ({"id": uuid.uuid4()}, "is a UUID, not a text"),
        ({"id": "  "}, "id='  ' is empty; give it a name, or leave it out"),
        ({"id": "a" * 481}, "id has 481 characters; 480 are the most"),
        ({"id": "a\0b"}, r"id='a\\x00b' has a NUL at 1, which no server holds; leave it out"),
        ({"user": 42}, "write user='42', or leave it out"),
        ({"tags": ["vip"]}, r"tags takes a dict such as \{'team': 'blue'\}, not a list"),
        ({"wait": "x"}, "wait='x' is no time; write seconds from 0 on"),
        ({"wait": -1}, "wait=-1 is no time"),
        ({"wait": None}, "wait=None is no time"),
        ({"wait": float("nan")}, "wait=nan is no time"),
        ({"reopen": "yes"}, "reopen='yes' is a str"),
        ({"nested": 0}, "nested=0 is an int"),
        ({"input": object()}, "input is of the type object, which cannot be recorded"),
    ],
)
def test_a_run(guard: Guard, fields: dict[str, Any], sentence: str) -> None:
    """Before it is entered, and before anything of it is on record."""
    refused(lambda: guard.run(**fields), sentence)
    assert guard.runs.list() == []


def test_a_run_that_is_left_but_was_not_entered(guard: Guard) -> None:
    """By its methods instead of ``with``."""
    refused(lambda: guard.run("x").__exit__(None, None, None), "is left but was not entered")


@pytest.mark.parametrize(
    ("why", "recorded"),
    [(None, "aborted"), ("", "aborted"), (ValueError("no money"), "no money"), (KeyError, "KeyError")],
)
def test_an_emergency_brake_takes_anything(guard: Guard, why: object, recorded: str) -> None:
    """A run is aborted whatever is given as the reason."""
    with guard.run("x", id="a") as run:
        run.abort(why)
    info = guard.runs.get("a")
    assert info is not None
    assert (info.status, info.reason) == ("failed", "aborted")
    assert recorded in str(info.error)


def test_a_key_function_that_raises_says_which_and_what(guard: Guard, caller: Caller) -> None:
    """The tool did not run; the error itself is the cause."""

    def order(amount: int) -> str:
        raise LookupError("no order")

    tool = caller.tool(guard, "pay", key=order)(pay)
    with pytest.raises(
        ConfigurationError, match="tool 'pay' did not run: its key function 'order' raised LookupError: no order"
    ) as caught:
        caller.play(caller.call, tool, 5)
    assert isinstance(caught.value.__cause__, LookupError)
    assert guard.calls.list(open=False) == []


@pytest.mark.parametrize("means", [lambda error: "maybe", lambda error: 1 / 0])
def test_an_error_means_that_fails_is_logged(
    guard: Guard, means: Any, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """The call is in doubt, the error is the tool's own, and the log has what was wrong."""

    @guard.tool("pay", effect="write", error_means=means)
    def tool() -> None:
        raise ValueError("declined")

    with pytest.raises(ValueError, match="declined"), guard.run(id="a"):
        tool()
    assert guard.runs.get("a").calls[0].state == "unknown"  # type: ignore[union-attr]
    assert any("error_means failed for a ValueError" in warning for warning in warnings_of_sagaspan())


# -- layers --------------------------------------------------------------------------------------------------------


async def returns_nothing(call: Any, call_next: Any) -> None:
    await call_next(call)


async def returns_the_value(call: Any, call_next: Any) -> Any:
    return (await call_next(call)).value


async def forgets_to_await(call: Any, call_next: Any) -> Any:
    forgotten = call_next(call)
    forgotten.close()
    return forgotten


def is_not_async(call: Any, call_next: Any) -> None:
    return None


async def passes_nothing(call: Any, call_next: Any) -> Any:
    return await call_next()


async def passes_the_arguments(call: Any, call_next: Any) -> Any:
    return await call_next(call.arguments)


async def swallows(call: Any, call_next: Any) -> None:
    with contextlib.suppress(SagaspanError):
        await call_next(call)


@pytest.mark.parametrize(
    ("layer", "sentence", "ran"),
    [
        (returns_nothing, "tool 'pay' ran: the layer returns_nothing gave back None instead of the Result", "yes"),
        (returns_the_value, "the layer returns_the_value gave back an int", "yes"),
        (forgets_to_await, "tool 'pay' did not run: the layer forgets_to_await gave back a coroutine", "no"),
        (is_not_async, "tool 'pay' did not run: the layer is_not_async gave back None", "no"),
        (passes_nothing, r"the layer passes_nothing passed None on .* write call_next\(call\)", "no"),
        (passes_the_arguments, "the layer passes_the_arguments passed a dict on", "no"),
    ],
)
def test_a_layer(store_url: str, caller: Caller, layer: Any, sentence: str, ran: str) -> None:
    """Which layer, what it did, and whether the tool ran: not an ``AttributeError`` of ours, somewhere else."""
    bodies: list[int] = []
    with Guard(store_url, middleware=[layer]) as guard:
        tool = caller.tool(guard, "pay", effect="write")(lambda amount: bodies.append(amount) or amount)
        with pytest.raises(ConfigurationError, match=sentence) as caught:
            caller.play(caller.call, tool, 5)
        assert caught.value.tool_ran == ran
        assert bodies == ([5] if ran == "yes" else [])
        if ran == "yes":
            assert caught.value.call is not None
            assert caught.value.call.state == "done"


def test_a_layer_that_waits_with_asyncio_in_a_synchronous_call(store_url: str) -> None:
    """It is told what to wait with."""

    async def slow(call: Any, call_next: Any) -> Any:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return await call_next(call)

    async def sleeps(call: Any, call_next: Any) -> Any:
        await asyncio.sleep(0.001)
        return await call_next(call)

    with Guard(store_url, middleware=[sleeps]) as guard:
        error = refused(lambda: guard.tool("pay")(pay)(5), r"waits with asyncio; wait with call\.sleep")
        assert error.tool_ran == "no"
    with (
        Guard(store_url, middleware=[slow]) as guard,
        pytest.raises(RuntimeError, match="awaited something other than"),
    ):
        guard.tool("pay")(pay)(5)


def test_a_layer_that_swallows_a_refusal(store_url: str) -> None:
    """The tool did not run, and the error does not say otherwise."""
    with Guard(store_url, middleware=[swallows]) as guard:
        tool = guard.tool("pay", key="card")(pay)
        refused(lambda: tool(5), "tool 'pay' ran: the layer swallows gave back None")
        error = refused(lambda: tool(6), "tool 'pay' did not run: the layer swallows gave back None")
        assert error.tool_ran == "no"


def test_a_layer_that_is_a_plain_function_may_pass_on_what_it_awaits(store_url: str, caller: Caller) -> None:
    """``return call_next(call)`` without async works: nothing is lost in it."""
    with Guard(store_url, middleware=[lambda call, call_next: call_next(call)]) as guard:
        tool = caller.tool(guard, "pay")(pay)
        assert caller.play(caller.call, tool, 5) == 5


# -- what is said in the log -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "dict"])
def test_policies_for_nothing_are_named_once(
    store_url: str, tmp_path: Path, kind: str, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """At the end of the first run, by when the tools are there: names and globs, of a file and of a dict."""
    policies: Any = {"pya": {"effect": "write"}, "book_*": {"timeout": 3}, "p*": {"timeout": 3}, "pay": {"timeout": 3}}
    if kind == "file":
        tables = [
            f"[tools.'{name}']\n{field} = {value!r}"
            for name, fields in policies.items()
            for field, value in fields.items()
        ]
        policies = tmp_path / "policies.toml"
        policies.write_text("\n".join(tables))
    with Guard(store_url, policies=policies) as guard:
        with guard.run("outer"):
            with guard.run("inner"):
                guard.tool("pay")(pay)(5)
            assert warnings_of_sagaspan() == []
        first, second = warnings_of_sagaspan()
        source = str(policies) if kind == "file" else "policies"
        assert first == f"{source} has a policy for 'pya', but this guard has no such tool; did you mean pay?"
        assert second == f"{source} has a policy for 'book_*', but this guard has no such tool; it has pay"
        with guard.run("again"):
            pass
    assert len(warnings_of_sagaspan()) == 2


def test_a_guard_without_runs_names_them_at_its_end(
    store_url: str, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Where every call is outside a run."""
    with Guard(store_url, policies={"pya": Policy(timeout=3)}) as guard:
        guard.tool("pay")(pay)(5)
        assert warnings_of_sagaspan() == []
    assert "did you mean pay?" in warnings_of_sagaspan()[0]


def test_a_run_that_was_made_but_not_entered(guard: Guard, warnings_of_sagaspan: Callable[[], list[str]]) -> None:
    """A forgotten ``with``: the call is not rolled back with it, and the log says so once."""
    tool = guard.tool("pay", effect="write", repeat="new")(pay)
    run = guard.run("trip", id="a")
    tool(5)
    tool(6)
    (warning,) = warnings_of_sagaspan()
    assert "while the run 'a' was made but not entered" in warning
    assert guard.runs.get("a") is None
    with run:
        tool(7)
    assert len(warnings_of_sagaspan()) == 1


def test_a_completed_run_that_is_started_over(guard: Guard, warnings_of_sagaspan: Callable[[], list[str]]) -> None:
    """``reopen=True`` does again what it did: the log says so."""
    done: list[int] = []
    tool = guard.tool("pay", effect="write")(done.append)
    for again in (False, True):
        with guard.run("trip", id="a", reopen=again):
            tool(5)
    assert done == [5, 5]
    (warning,) = warnings_of_sagaspan()
    assert warning == "run 'a' was completed; with reopen=True it starts over, and does again what it did"


@pytest.mark.parametrize("since", [5, "1h"])
def test_a_time_that_is_none(store_url: str, since: Any) -> None:
    """Of what usage is asked for."""
    with Guard(store_url) as guard:
        refused(lambda: guard.usage(since=since), "since=.*; write a timedelta, or a datetime with its time zone")
