"""What an exception means (design, section 3): ``failed`` needs proof, everything else is ``unknown``."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import socket
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sagaspan import Guard, NotApplied, RunClosed
from tests.conftest import Caller


class Declined(Exception):
    """An error of this, the tool's own package."""


class Status(Exception):
    """As HTTP clients keep the status."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__("status")
        self.__dict__.update(attributes)


class Answer:
    """A response object."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


_numbers = itertools.count()


def state_after(guard: Guard, body: Callable[[], Any], caller: Caller | None = None, **policy: Any) -> str:
    """The state of a write whose body is ``body``; its error must reach the caller unchanged."""
    caller = caller or Caller("sync")
    tool = caller.tool(guard, f"act-{next(_numbers)}", effect="write", **policy)(body)
    raised: list[BaseException] = []

    async def job() -> str:
        async with caller.run(guard) as run:
            try:
                await caller.call(tool)
            except BaseException as error:
                raised.append(error)
            (call,) = run.calls
            run.abort()
            return str(call.state)

    state: str = caller.play(job)
    assert raised
    assert not isinstance(raised[0], RunClosed)
    return state


def _raise(error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        raise error

    return body


def _inside_except(first: BaseException, then: BaseException, cause: Any = ...) -> Callable[[], Any]:
    def body() -> None:
        try:
            raise first
        except BaseException:
            if cause is ...:
                raise then  # noqa: B904 - that is the point
            raise then from cause

    return body


def _subscript() -> None:
    {}["id"]


def _subscript_again() -> None:
    try:
        {}["id"]
    except KeyError as error:
        raise error


def _bare_raise() -> None:
    try:
        json.loads("<html>")
    except ValueError:
        raise


def _stdlib() -> None:
    json.loads("<html>")


def _kept() -> None:
    kept = None
    try:
        json.loads("<html>")
    except ValueError as error:
        kept = error
    raise kept


def _assertion() -> None:
    assert Answer(200) is None


def _holding_500() -> None:
    answer = Answer(500)
    raise Declined("it said " + str(answer.status_code))


def _holding_409_outside() -> None:
    def check(code: int) -> None:
        raise Declined(str(code))

    answer = Answer(409)
    check(answer.status_code)


def _holding_402() -> None:
    answer = Answer(402)
    raise Declined(str(answer))


class _Property:
    @property
    def status(self) -> int:
        raise RuntimeError("not loaded")


def _holding_unreadable() -> None:
    thing = _Property()
    raise Declined(repr(type(thing)))


def _group() -> None:
    raise ExceptionGroup("some", [TimeoutError()])


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (_raise(Declined()), "failed"),
        (_raise(ValueError("amount")), "failed"),
        (_raise(NotApplied()), "failed"),
        (_inside_except(KeyError("x"), NotApplied()), "failed"),
        (_raise(ConnectionRefusedError()), "failed"),
        (_raise(socket.gaierror()), "failed"),
        (_inside_except(ConnectionRefusedError(), Declined()), "failed"),
        (_subscript, "unknown"),
        (_subscript_again, "unknown"),
        (_bare_raise, "unknown"),
        (_stdlib, "unknown"),
        (_kept, "unknown"),
        (_assertion, "unknown"),
        (_raise(AssertionError()), "unknown"),
        (_raise(TimeoutError()), "unknown"),
        (_raise(ConnectionResetError()), "unknown"),
        (_raise(BrokenPipeError()), "unknown"),
        (_inside_except(KeyError("x"), Declined()), "unknown"),
        (_inside_except(KeyError("x"), Declined(), cause=None), "unknown"),
        (_inside_except(KeyError("x"), Declined(), cause=ValueError()), "unknown"),
        (_group, "unknown"),
        (_holding_500, "unknown"),
        (_holding_409_outside, "unknown"),
        (_holding_unreadable, "unknown"),
        (_holding_402, "failed"),
        (_raise(KeyboardInterrupt()), "unknown"),
        (_raise(SystemExit()), "unknown"),
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value))[-40:],
)
def test_exceptions_without_http(guard: Guard, caller: Caller, body: Callable[[], Any], state: str) -> None:
    """A ``raise`` of the tool's own with no past is proof; accidents, timeouts, lost answers and causes are not."""
    assert state_after(guard, body, caller) == state


def _post(n: Any) -> tuple[Any, str]:
    return n, "{}"


def _tuple(n: int) -> None:
    answer = _post(n)
    raise Declined(answer[1])


def _unpacked(n: int) -> None:
    status_code, body = _post(n)
    raise Declined(f"{status_code} {body}")


def _enum(n: int) -> None:
    code, _ = _post(HTTPStatus(n))
    raise Declined(str(code))


def _handed_on(n: int) -> None:
    def check(code: int) -> None:
        raise Declined(str(code))

    check(_post(n)[0])


def _mapping(n: int) -> None:
    found = {"status": n, "body": "{}"}
    raise Declined(str(len(found)))


def _deeper(n: int) -> None:
    found = ({"ResponseMetadata": "x", "HTTPStatusCode": n}, 0.2)
    raise Declined(str(len(found)))


@pytest.mark.parametrize("n", [402, 408, 409, 425, 500, 503])
@pytest.mark.parametrize("body", [_tuple, _unpacked, _enum, _handed_on, _mapping, _deeper])
def test_a_status_in_a_local_of_the_tool_counts_like_a_response(
    guard: Guard, body: Callable[[int], Any], n: int
) -> None:
    """A helper that returns ``(503, body)`` leaves it open what happened, whatever the tool raises about it."""

    def act() -> None:
        body(n)

    assert state_after(guard, act) == ("failed" if n == 402 else "unknown")


class _Hostile:
    """An object that must not be looked into."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"its {name} was read")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    def __hash__(self) -> int:
        return 1


def test_numbers_that_are_no_status_prove_nothing_else(guard: Guard) -> None:
    """Amounts, flags, and what the tool was called with are no answer; nothing inside a tuple is asked anything."""

    def pay(amount: int, code: int, size: tuple[int, int], fields: dict[str, int]) -> None:
        cents, is_status, odd = amount + 3, True, (_Hostile(), {_Hostile(): 503})
        raise Declined(f"{cents} {is_status} {len(odd)}")

    tool = guard.tool(effect="write")(pay)
    with guard.run() as run:
        with pytest.raises(Declined):
            tool(500, code=503, size=(500, 300), fields={"status": 503})
        assert run.calls[0].state == "failed"


def test_a_status_is_found_in_large_and_nested_locals_within_bounds(guard: Guard) -> None:
    """A local that is nested or repeats itself endlessly ends the look soon."""
    nested: Any = {"status": 503}
    for _ in range(5000):
        nested = (nested,)
    itself: dict[str, Any] = {}
    itself["status"] = itself

    def act() -> None:
        held = nested, itself, tuple(range(600, 100_000))
        raise Declined(str(len(held)))

    assert state_after(guard, act) == "failed"


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422, 429])
def test_a_refusal_of_the_server_is_proof(guard: Guard, status: int) -> None:
    """4xx other than 408, 409 and 425 did not happen, however the error carries it."""
    for error in (
        Status(status_code=status),
        Status(http_status=status),
        Status(status=status),
        Status(response=Answer(status)),
        Status(response={"ResponseMetadata": {"HTTPStatusCode": status}}),
    ):
        guard_state = state_after(guard, _inside_except(error, KeyError("wrapped")))
        assert guard_state == "failed", vars(error)


@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 504, 200])
def test_a_failure_of_the_server_is_no_proof(guard: Guard, status: int) -> None:
    """5xx and the unsure 4xx may have happened, also when the tool raises its own error about them."""
    assert state_after(guard, _inside_except(Status(status_code=status), Declined())) == "unknown"
    if status != 200:
        assert state_after(guard, _raise(Status(status_code=status))) == "unknown"
        assert (
            state_after(guard, _raise(Status(response={"ResponseMetadata": {"HTTPStatusCode": status}}))) == "unknown"
        )


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ConnectionRefusedError(), TimeoutError()),
        (ConnectionRefusedError(), ConnectionResetError()),
        (Status(status_code=404), Status(status_code=500)),
        (Status(status_code=404), TimeoutError()),
        (Status(status_code=429), ConnectionResetError()),
    ],
)
def test_the_proof_of_an_earlier_request_is_none(guard: Guard, first: Exception, then: Exception) -> None:
    """A tool that falls back to a second request is in doubt by that one, whatever became of the first."""
    assert state_after(guard, _inside_except(first, then)) == "unknown"


def test_the_policy_decides_first(guard: Guard) -> None:
    """``error_means`` overrides the rule; a function that breaks, or says something else, proves nothing."""

    def broken(error: BaseException) -> Any:
        raise RuntimeError("broken")

    assert state_after(guard, _raise(Declined()), error_means="unknown") == "unknown"
    assert state_after(guard, _stdlib, error_means="failed") == "failed"
    assert state_after(guard, _stdlib, error_means=lambda error: "failed") == "failed"
    for function in (broken, lambda error: None, lambda error: True):
        assert state_after(guard, _raise(Declined()), error_means=function) == "unknown"


def test_types_that_prove_it(guard: Guard) -> None:
    """``not_applied`` names exception types, whoever raises them and whatever led to them."""
    assert state_after(guard, _stdlib, not_applied=(ValueError,)) == "failed"
    assert state_after(guard, _inside_except(TimeoutError(), Declined()), not_applied=(Declined,)) == "failed"


def test_what_was_handled_before_is_not_held_against_a_tool(guard: Guard, caller: Caller) -> None:
    """A tool called from an ``except`` block has that error as its context, and may still prove its own."""

    @caller.tool(guard, effect="write")
    def act() -> None:
        raise Declined

    async def job() -> None:
        async with caller.run(guard) as run:
            try:
                raise TimeoutError("an earlier step")
            except TimeoutError:
                with pytest.raises(Declined):
                    await caller.call(act)
            assert run.calls[0].state == "failed"

    caller.play(job)


class Evil(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("not loaded")

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


def test_an_error_that_breaks_when_it_is_read(guard: Guard, caller: Caller) -> None:
    """An exception whose properties or text raise reaches the caller as itself, and proves nothing."""
    assert state_after(guard, _raise(Evil()), caller) == "unknown"
    with pytest.raises(Evil), guard.run() as run:
        raise Evil
    assert run.status == "failed"


def test_a_falsy_cause_is_a_cause(guard: Guard) -> None:
    """A cause that is false as a value still stands for what happened before."""

    def body() -> None:
        raise Declined from Falsy()

    assert state_after(guard, body) == "unknown"


def test_text_that_cannot_be_stored(guard: Guard, caller: Caller) -> None:
    """A lone surrogate in a message (a file name, say) breaks neither the settle nor the rollback."""
    undone = []

    @caller.tool(guard, compensate=lambda result: undone.append(result))
    def book() -> int:
        return 1

    @caller.tool(guard, effect="write")
    def act() -> None:
        raise Declined("no such file: \udcff")

    async def job() -> Any:
        run = caller.run(guard, id="a")
        with pytest.raises(Declined):
            async with run:
                await caller.call(book)
                await caller.call(act)

    caller.play(job)
    info = guard.runs.get("a")
    assert (undone, info.status) == ([1], "compensated")
    assert info.calls[1].error.endswith(r"no such file: \udcff")


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of another top-level package than the tools here."""
    path = tmp_path / "vendorkit.py"
    path.write_text(
        textwrap.dedent("""
        class VendorError(Exception): ...
        def send(): raise VendorError("?")
        def call(function): return function()
        """)
    )
    spec = importlib.util.spec_from_file_location("vendorkit", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    monkeypatch.setitem(sys.modules, "vendorkit", module)
    return module


def test_only_statements_of_the_own_package_count(guard: Guard, foreign: ModuleType) -> None:
    """A ``raise`` in a library proves nothing; one of the tool's own, called back by it, does."""
    assert state_after(guard, lambda: foreign.send()) == "unknown"
    assert state_after(guard, lambda: foreign.call(_raise(Declined()))) == "failed"


@pytest.mark.parametrize("package", ["langchain_mcp_adapters", "langgraph", "mcp", "crewai_tools"])
def test_a_raise_of_a_framework_is_never_the_tools_own(guard: Guard, package: str) -> None:
    """Also where the body is a function of that package: what it raises may repeat the answer of a server."""
    module = ModuleType(f"{package}.tools")
    exec("def act(): raise ValueError('the server said no')", vars(module))
    assert state_after(guard, module.act) == "unknown"
    assert state_after(guard, module.act, error_means="failed") == "failed"


class Server:
    """A payment service that applies every POST it is sent, and then answers as it is told."""

    def __init__(self) -> None:
        self.applied = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status = int(self.path.strip("/"))
                if status >= 500 or status < 300:
                    outer.applied += 1
                if status == 599:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("content-length", "6")
                self.end_headers()
                self.wfile.write(b"<html>")

            def log_message(self, *args: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    """A service on the loopback interface."""
    server = Server()
    yield server
    server.close()


def _httpx(url: str) -> Any:
    httpx = pytest.importorskip("httpx")
    with httpx.Client(trust_env=False) as client:
        response = client.post(url)
    response.raise_for_status()
    return response.json()


def _urllib(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, method="POST"), timeout=5) as response:
        return json.load(response)


@pytest.mark.parametrize("client", [_httpx, _urllib])
@pytest.mark.parametrize(
    ("status", "state"),
    [
        (402, "failed"),
        (404, "failed"),
        (409, "unknown"),
        (500, "unknown"),
        (503, "unknown"),
        (200, "unknown"),
        (599, "unknown"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_clients(guard: Guard, server: Server, client: Callable[[str], Any], status: int, state: str) -> None:
    """Real clients against a real server: what landed is never called failed, refusals are."""
    assert state_after(guard, lambda: client(f"{server.url}/{status}")) == state
    gc.collect()  # urllib's error keeps its socket, which must not be found by another test
    assert not (server.applied and state == "failed")


@pytest.mark.parametrize("client", [_httpx, _urllib])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_is_not_there(guard: Guard, client: Callable[[str], Any]) -> None:
    """A refused connection was never sent, however deep the client wraps it."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert state_after(guard, lambda: client(f"http://127.0.0.1:{port}/200")) == "failed"
    gc.collect()
