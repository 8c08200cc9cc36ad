"""The webhook approver: a signed question, a signed answer to exactly it; everything else decides nothing."""

from __future__ import annotations

import base64
import contextlib
import gzip
import importlib.util
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sagaspan import (
    Approval,
    ApprovalDenied,
    ApprovalPending,
    ConfigurationError,
    Guard,
    Notify,
    ResolutionError,
    Webhook,
)
from sagaspan import _owner as owner
from sagaspan._characters import WIDTH
from sagaspan._post import Unsent, post
from sagaspan.signing import Refused, key_of, signed, verified
from tests.cli.test_terminal import _check, _one_cell
from tests.conftest import Caller
from tests.test_rendering import HOSTILE

SECRET = "a secret that nobody guesses: 0123456789"
KEY = key_of(SECRET)
EXAMPLE = Path(__file__).parents[1] / "examples" / "receiver.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The receiver of the examples."""
    spec = importlib.util.spec_from_file_location("receiver", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Serve = Callable[[ThreadingHTTPServer], str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Run a server on the loopback for as long as the test."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running: list[ThreadingHTTPServer] = []

    def serve(server: ThreadingHTTPServer) -> str:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/approvals"

    yield serve
    for server in running:
        server.shutdown()
        server.server_close()


class Shop:
    """A payment that the service at ``url`` is asked about."""

    def __init__(self, store_url: str, caller: Caller, url: str, *, wait: float = 0.0, **policy: Any) -> None:
        self.guard = Guard(store_url, approver=Webhook(url, secret=SECRET, wait=wait))
        self.caller = caller
        self.paid: list[Any] = []

        @caller.tool(self.guard, approve=True, effect="write", **policy)
        def pay(amount: Any, to: str = "bob") -> str:
            self.paid.append((amount, to))
            return f"paid {amount}"

        self._pay = pay

    def order(self, amount: Any = 500, to: str = "bob", run: str = "order") -> Any:
        """One payment in a run of this id."""

        async def job() -> Any:
            async with self.caller.run(self.guard, "order", id=run, user="ulla"):
                return await self.caller.call(self._pay, amount, to)

        return self.caller.play(job)

    def pending(self, *args: Any, **kwargs: Any) -> Any:
        """The request that a payment waits for."""
        with pytest.raises(ApprovalPending) as caught:
            self.order(*args, **kwargs)
        return self.guard.approvals.get(caught.value.approval_id)


# -- what is in the environment ------------------------------------------------------------------------------------


class Recorder:
    """A server on the loopback that keeps what reaches it, and answers 202 to a message."""

    def __init__(self, serve: Serve) -> None:
        self.seen: list[tuple[str, str, str | None]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.answer(202)

            def do_CONNECT(self) -> None:
                self.answer(502)

            def answer(self, status: int) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                recorder.seen.append((self.command, self.path, self.headers.get("authorization")))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.url = serve(ThreadingHTTPServer(("127.0.0.1", 0), Handler))


@pytest.fixture
def proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    """A proxy that the environment names for everything, and a ``.netrc`` with a password for everybody."""
    proxy = Recorder(serve)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv(name.lower(), proxy.url)
    netrc = tmp_path / "netrc"
    netrc.write_text("default login ann password canary\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    return proxy


@pytest.mark.parametrize("trust_env", [False, True])
def test_on_this_machine_no_proxy_and_no_password_of_the_environment_is_used(
    trust_env: bool, proxy: Recorder, serve: Serve, store_url: str
) -> None:
    """Neither by the approver nor by a notification, whatever they were told."""
    receiver = Recorder(serve)
    hook = Notify(url=receiver.url, secret=SECRET, events=["approval.waiting"], trust_env=trust_env)
    approver = Webhook(receiver.url, secret=SECRET, trust_env=trust_env)
    guard = Guard(store_url, approver=approver, notify=hook)

    @guard.tool(approve=True, effect="write")
    def pay() -> None:
        """Wait for an approval."""

    with pytest.raises(ApprovalPending), guard.run("order", id="order"):
        pay()
    guard.close()
    assert receiver.seen == [("POST", "/approvals", None)] * 2
    assert proxy.seen == []


def test_a_proxy_is_used_only_where_that_was_asked_for(proxy: Recorder) -> None:
    """Of another machine, too."""
    with pytest.raises(Unsent):
        post("https://receiver.invalid/hook", b"{}", {}, seconds=10)
    assert proxy.seen == []
    with pytest.raises(Unsent):
        post("https://receiver.invalid/hook", b"{}", {}, seconds=10, trust_env=True)
    assert [(command, path) for command, path, _ in proxy.seen] == [("CONNECT", "receiver.invalid:443")]


# -- the receiver of the examples ----------------------------------------------------------------------------------


def test_the_example_approves_denies_and_edits(example: Any, serve: Serve, store_url: str, caller: Caller) -> None:
    """It verifies the question, shows the text that the library made, and signs what somebody said."""
    questions: list[Any] = []
    said: list[Any] = [
        {"decision": "approve", "by": "alice"},
        {"decision": "deny", "by": "alice", "reason": "too\x1b[31m much"},
        {"decision": "edit", "by": "alice", "arguments": {"amount": 5, "to": "eve"}},
        None,
    ]

    def decide(question: Any) -> Any:
        questions.append(question)
        return said.pop(0)

    shop = Shop(store_url, caller, serve(example.Receiver(SECRET, decide).serve(port=0)))
    assert shop.order(500, "x\x1b[2J\u202e", run="a") == "paid 500"
    with pytest.raises(ApprovalDenied, match=r"too\\u\{1b\}\[31m much"):
        shop.order(500, run="b")
    assert shop.order(500, run="c") == "paid 5"
    assert shop.pending(500, run="d").state == "pending"
    assert shop.paid == [(500, "x\x1b[2J\u202e"), (5, "eve")]
    first = questions[0]
    assert '"x\\u{1b}[2J\\u{202e}"' in first["text"]
    assert json.loads(first["subject"])["arguments"] == {"amount": 500, "to": "x\x1b[2J\u202e"}
    (used,) = shop.guard.approvals.list(status="consumed", run="a")
    assert (used.approved_by, used.id) == (("alice",), first["request"])
    rows = shop.guard._engine.store.audit_of("default", "a")
    (approved,) = [row.detail for row in rows if row.event == "approval.approve"]
    assert f"by webhook assurance webhook shown {first['shown']}" in approved


def test_the_example_refuses_what_is_not_ours(example: Any) -> None:
    """Forged, late, sent twice, and a text that is not of its digest."""
    receiver = example.Receiver(SECRET, lambda _: None)
    body = json.dumps({"subject": "{}", "digest": "0" * 64}).encode()
    assert receiver.verified(signed("m1", body, KEY, time.time()), body) is None
    good = json.dumps({
        "subject": "{}", "digest": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    }).encode()  # fmt: skip
    headers = signed("m2", good, KEY, time.time())
    assert receiver.verified({**headers, "webhook-id": "m3"}, good) is None
    assert receiver.verified(signed("m4", good, KEY, time.time() - 301), good) is None
    assert receiver.verified(headers, good + b" ") is None
    assert receiver.verified(headers, good) is not None
    assert receiver.verified(headers, good) is None


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Somebody sits at the receiver's terminal, of so many columns, and types this."""

    def typed(*answers: str, columns: int = 80) -> None:
        left = [*answers]
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("builtins.input", lambda _: left.pop(0))

    return typed


def test_the_example_asks_on_its_terminal(
    example: Any, serve: Serve, store_url: str, typed: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the text that the library made, and speaks for the user of the system, whatever he calls himself."""
    monkeypatch.setenv("LOGNAME", "mallory")
    monkeypatch.setenv("USER", "mallory")
    shop = Shop(store_url, Caller("sync"), serve(example.Receiver(SECRET, example.ask).serve(port=0)))
    for name, text in HOSTILE.items():
        typed("l")
        request = shop.pending(500, text, run=name)
        _check(_one_cell(capsys.readouterr().out.rstrip("\n")))
        assert request.state == "pending"
    typed("a")
    assert shop.order(500, run="a") == "paid 500"
    typed("d", "too much")
    with pytest.raises(ApprovalDenied, match="too much"):
        shop.order(500, run="b")
    typed("e", '{"amount": 5, "to": "bob"}')
    assert shop.order(500, "\x1b[2J", run="c") == "paid 5"
    _check(_one_cell(capsys.readouterr().out.rstrip("\n")), 200)
    assert {by for one in shop.guard.approvals.list(status="consumed") for by in one.approved_by} == {owner.os_user()}


def test_the_example_asks_nothing_where_a_value_could_forge_a_line(
    example: Any, serve: Serve, store_url: str, typed: Any, capsys: Any
) -> None:
    """On a terminal that is narrower than the rows of the text it would fold them itself."""
    shop = Shop(store_url, Caller("sync"), serve(example.Receiver(SECRET, example.ask).serve(port=0)))
    typed("a", columns=WIDTH)
    assert shop.pending(500).state == "pending"
    assert "columns wide" in capsys.readouterr().out


# -- answers that decide nothing -----------------------------------------------------------------------------------


class Odd:
    """A service that answers whatever ``answer`` makes of a question: (status, headers, body)."""

    def __init__(self, answer: Callable[[dict[str, Any], str], tuple[int, dict[str, str], bytes]]) -> None:
        self._answer = answer
        self.asked = 0

    def server(self) -> ThreadingHTTPServer:
        """It, listening."""
        odd = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                odd.asked += 1
                body = self.rfile.read(int(self.headers["content-length"]))
                status, headers, data = odd._answer(json.loads(body), self.headers["webhook-id"])
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def _reply(asked: dict[str, Any], message: str, /, **changes: Any) -> dict[str, Any]:
    reply = {
        "type": "approval.decision", "request": asked["request"], "digest": asked["digest"], "question": message,
        "decision": "approve", "by": "alice",
    }  # fmt: skip
    return {name: value for name, value in {**reply, **changes}.items() if value is not None}


def _signed(data: Any, *, key: bytes = KEY, late: float = 0.0, message: str = "r1") -> tuple[dict[str, str], bytes]:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return signed(message, body, key, time.time() - late), body


def _says(status: int = 200, **how: Any) -> Any:
    """A service whose reply has these changes."""
    key, late = how.pop("key", KEY), how.pop("late", 0.0)
    return lambda question, message: (status, *_signed(_reply(question, message, **how), key=key, late=late))


_before: dict[str, Any] = {}


def _replayed(question: dict[str, Any], message: str) -> tuple[int, dict[str, str], bytes]:
    """The good reply to the first question, whatever is asked."""
    return (200, *_before.setdefault("reply", _signed(_reply({**question, "digest": "0" * 64}, message))))


def _twice(question: dict[str, Any], message: str) -> tuple[int, dict[str, str], bytes]:
    text = json.dumps(_reply(question, message, decision="deny"))[:-1] + ', "decision": "approve"}'
    return (200, *_signed(text.encode()))


WRONG = {
    "unsigned": lambda q, m: (200, {}, json.dumps(_reply(q, m)).encode()),
    "another key": _says(key=key_of("another secret: 0123456789 abcdef")),
    "late": _says(late=301),
    "from the future": _says(late=-400),
    "another request": _says(request="01"),
    "another digest": _says(digest="0" * 64),
    "another question": _says(question="0" * 32),
    "no question": _says(question=None),
    "replayed": _replayed,
    "nobody": _says(by=None),
    "no name": _says(by=""),
    "a list of names": _says(by=["alice"]),
    "roles that are none": _says(roles="finance"),
    "no decision": _says(decision=None),
    "a truthy one": _says(decision=True),
    "another word": _says(decision="yes"),
    "a field more": _says(approved=True),
    "an edit of nothing": _says(decision="edit"),
    "an edit of a type that nobody knows": _says(decision="edit", arguments={"amount": {"$type": "x"}, "to": "eve"}),
    "an edit that nobody can record": _says(decision="edit", arguments={"amount": 5, "to": "\ud800"}),
    "another type": _says(type="approval.request"),
    "our own question back": lambda q, m: (200, *_signed(q)),
    "two of one field": _twice,
    "no JSON": lambda *_: (200, *_signed(b"approve")),
    "a list": lambda *_: (200, *_signed(b"[]")),
    "not a number": lambda *_: (200, *_signed(b'{"a": NaN}')),
    "deep": lambda *_: (200, *_signed(b"[" * 100_000)),
    "huge": lambda *_: (200, *_signed(b" " * 300_000)),
    "an error with a good reply": _says(status=500),
    "forbidden": _says(status=403),
    "accepted": _says(status=202),
    "elsewhere": lambda q, m: (307, {"location": "/other"}, b""),
}  # fmt: skip


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_what_is_no_signed_answer_to_this_question_decides_nothing(answer: Any, serve: Serve, store_url: str) -> None:
    """Nothing runs, and the request goes on waiting: somebody else can still decide it, either way."""
    odd = Odd(answer)
    shop = Shop(store_url, Caller("sync"), serve(odd.server()))
    request = shop.pending()
    assert (request.state, request.approved_by, shop.paid, odd.asked) == ("pending", (), [], 1)


def test_a_service_that_is_not_there_decides_nothing(store_url: str, warnings_of_sagaspan: Any) -> None:
    """Connection refused: the request waits, and the log says so."""
    shop = Shop(store_url, Caller("sync"), "http://127.0.0.1:9/")
    assert shop.pending().state == "pending"
    assert any("goes on waiting" in text for text in warnings_of_sagaspan())


def test_a_service_that_does_not_answer_decides_nothing(serve: Serve, store_url: str) -> None:
    """A timeout: the request waits."""
    release = threading.Event()

    def slow(question: dict[str, Any], message: str) -> Any:
        release.wait(60)
        return _says()(question, message)

    url = serve(Odd(slow).server())
    guard = Guard(store_url, approver=Webhook(url, secret=SECRET, timeout=0.2))
    ran: list[int] = []

    @guard.tool(approve=True)
    def act() -> None:
        ran.append(1)

    with pytest.raises(ApprovalPending):
        act()
    release.set()
    assert ran == []


@pytest.mark.parametrize(
    "beginning", ["x: ", "content-length: 500\r\n\r\n", "\r\n"], ids=["head", "body", "to the end"]
)
def test_who_answers_a_byte_now_and_then_holds_nobody(beginning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is of the whole answer, also where what is cut off would look whole."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server, ended, all_of_it = socket.create_server(("127.0.0.1", 0)), threading.Event(), threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\n{beginning}".encode())
            for _ in range(400):
                connection.sendall(b"a")
                if ended.wait(0.05):
                    return
            all_of_it.set()

    threading.Thread(target=drip, daemon=True).start()
    with server, pytest.raises(Unsent, match="too slowly"):
        post(f"http://127.0.0.1:{server.getsockname()[1]}/", b"{}", {}, seconds=0.3)
    ended.set()
    assert not all_of_it.is_set()


def test_a_compressed_answer_is_not_unpacked(serve: Serve) -> None:
    """Of a few bytes it could be any number."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["accept-encoding"])
            self.send_response(200)
            self.send_header("content-encoding", "gzip")
            self.end_headers()
            self.wfile.write(gzip.compress(bytes(10**6)))

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    url = serve(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    with pytest.raises(Unsent, match="compressed"):
        post(url, b"{}", {}, seconds=20)
    assert asked == ["identity"]


def test_while_a_call_waits_the_service_is_not_asked_again_and_again(serve: Serve, store_url: str) -> None:
    """It was told once; whoever decides meanwhile is heard."""
    odd = Odd(lambda *_: (202, {}, b""))
    shop = Shop(store_url, Caller("sync"), serve(odd.server()), wait=60)

    def decide() -> None:
        while not (waiting := shop.guard.approvals.list()) or odd.asked == 0:
            threading.Event().wait(0.01)
        threading.Event().wait(0.3)  # several looks of the call that waits
        shop.guard.approvals.approve(waiting[0].id, by="alice")

    thread = threading.Thread(target=decide)
    thread.start()
    assert shop.order() == "paid 500"
    thread.join()
    assert odd.asked == 1


# -- replies that come later ---------------------------------------------------------------------------------------


@pytest.fixture
def later(serve: Serve, store_url: str) -> Shop:
    """A shop whose service answers later."""
    return Shop(store_url, Caller("sync"), serve(Odd(lambda *_: (202, {}, b"")).server()))


def _later(request: Any, /, **changes: Any) -> dict[str, Any]:
    return _reply({"request": request.id, "digest": request.digest}, "", **{"question": None, **changes})


def test_a_reply_can_come_later(later: Shop) -> None:
    """Through the receiver's own web app or ours; the run goes on then."""
    request = later.pending()
    headers, body = _signed(_later(request))
    decided = later.guard.approvals.receive(headers, body, secret=SECRET)
    assert (decided.state, decided.approved_by) == ("approved", ("alice",))
    assert later.order() == "paid 500"


@pytest.mark.parametrize(
    ("changes", "how", "sentence"),
    [({}, {"key": key_of("another secret: 0123456789 abcdef")}, "signature is wrong"),
     ({}, {"late": 301}, "five minutes"), ({"digest": "0" * 64}, {}, "other arguments"),
     ({"request": "nobody's"}, {}, "no request"), ({"by": None}, {}, "no 'by'"),
     ({"decision": "maybe"}, {}, "its decision is not")],
)  # fmt: skip
def test_a_late_reply_that_is_not_good_decides_nothing(later: Shop, changes: Any, how: Any, sentence: str) -> None:
    """Forged, old, about something else: nothing is decided."""
    request = later.pending()
    headers, body = _signed(_later(request, **changes), **how)
    with pytest.raises(ResolutionError, match=sentence):
        later.guard.approvals.receive(headers, body, secret=SECRET)
    assert later.guard.approvals.get(request.id).state == "pending"


def test_a_reply_counts_once(later: Shop) -> None:
    """Its id is remembered in the commit that it decides: of a quorum nobody makes two of one."""
    shop = Shop(later.guard._engine.store.url, Caller("sync"), "http://127.0.0.1:9/", approval=Approval(approvers=2))
    request = shop.pending(run="q")
    headers, body = _signed(_later(request))
    shop.guard.approvals.receive(headers, body, secret=SECRET)
    with pytest.raises(ResolutionError, match=r"already|only once"):
        shop.guard.approvals.receive(headers, body, secret=SECRET)
    other = _signed(_later(request, by="carol"), message="r1")  # another reply under an id that was used
    with pytest.raises(ResolutionError, match="only once"):
        shop.guard.approvals.receive(*other, secret=SECRET)
    assert shop.guard.approvals.get(request.id).approved_by == ("alice",)
    third = _signed(_later(request, by="carol"), message="r2")
    assert shop.guard.approvals.receive(*third, secret=SECRET).state == "approved"


# -- signatures ----------------------------------------------------------------------------------------------------


def test_it_is_signed_as_the_standard_says() -> None:
    """The example of the specification of Standard Webhooks."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    headers = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", body, key, 1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    two = {**headers, "webhook-signature": f"v1,AAAA {headers['webhook-signature']}"}  # while keys are changed
    assert verified(two, body, key, 1614265330)[1] == {"test": 2432232314}


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_any_flipped_bit_is_another_message(at: int) -> None:
    """Of body, id, timestamp and signature."""
    body = json.dumps({"a": "b" * 60}).encode()
    headers = signed("m" * 60, body, KEY, 1_700_000_000)
    flipped = bytes([*body[:at], body[at] ^ 1, *body[at + 1 :]])
    wrong: list[tuple[dict[str, str], bytes]] = [(headers, flipped)]
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        value = headers[name]
        place = at % len(value)
        changed = value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :]
        wrong.append(({**headers, name: changed}, body))
    signature = base64.b64decode(headers["webhook-signature"][3:])
    assert len(signature) == 32
    for tampered in wrong:
        with pytest.raises(Refused):
            verified(*tampered, KEY, 1_700_000_000)


@pytest.mark.parametrize(
    ("url", "secret", "sentence"),
    [("http://example.com/", SECRET, "use https"), ("ftp://x/", SECRET, "no URL"), ("approvals", SECRET, "no URL"),
     ("https:///x", SECRET, "no URL"), (5, SECRET, "takes a URL"), ("https://x/", "short", "can be guessed"),
     ("https://x/", "whsec_%%", "base64"), ("https://x/", b"x" * 40, "takes a text"), ("http://[::1/", SECRET, "URL"),
     ("https://x/\r\nX: y", SECRET, "line end"), ("https://x\t.example/", SECRET, "control"),
     ("https://x/ y", SECRET, "blank")],
)  # fmt: skip
def test_a_webhook_that_could_be_read_or_guessed_is_refused_at_once(url: Any, secret: Any, sentence: str) -> None:
    """Not by the first payment."""
    with pytest.raises(ConfigurationError, match=sentence):
        Webhook(url, secret=secret)
