"""Who is told of what needs a person: from the audit trail, signed, at least once, whatever dies on the way."""

from __future__ import annotations

import json
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sagaspan import ApprovalPending, CompensationFailed, ConfigurationError, Guard, Notify, _notifier
from sagaspan import _owner as owner
from sagaspan._clock import now_us
from sagaspan._notifier import ATTEMPTS, Notifier
from sagaspan.signing import key_of, verified
from sagaspan.testing import frozen_clock

SECRET = "a secret that nobody guesses: 0123456789"


class Receiver:
    """A service on the loopback that keeps what it is told; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.raw = b""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.raw += body
                at = float(self.headers["webhook-timestamp"])
                receiver.told.append(verified(self.headers, body, key_of(SECRET), at))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def kinds(self) -> list[str]:
        """What it was told of, in order."""
        return [data["type"] for _, data in self.told]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A service that is told."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


Make = Callable[..., Guard]


@pytest.fixture
def make(store_url: str, receiver: Receiver) -> Iterator[Make]:
    """Guards that tell the receiver; in a time that stands still no thread sends, so that each test says when."""
    with frozen_clock():
        yield lambda **how: Guard(store_url, notify=Notify(url=receiver.url, secret=SECRET), approver="inbox", **how)


def _send(guard: Guard) -> None:
    notifier = guard._engine.notifier
    assert notifier is not None
    notifier.round()


# -- what is told --------------------------------------------------------------------------------------------------


def _fail(guard: Guard, *, compensate: Any = None, run: str = "order") -> None:
    @guard.tool("book", compensate=compensate or (lambda: None))
    def book() -> None:
        """Done."""

    with pytest.raises((ValueError, CompensationFailed)), guard.run("trip", id=run):
        book()
        raise ValueError("canary-4711")


def _broken() -> None:
    raise RuntimeError("canary-4712")


def test_a_run_that_failed_is_told_of(make: Make, receiver: Receiver) -> None:
    """Once it is over, with what became of it; what went well is nobody's news."""
    guard = make()
    with guard.run("fine", id="fine"):
        pass
    _fail(guard)
    _send(guard)
    ((_, told),) = receiver.told
    assert told["type"] == "run.failed"
    assert told["data"] == {
        "namespace": "default", "run": "order", "name": "trip", "state": "compensated", "reason": "error",
        "next": "sagaspan show order",
    }  # fmt: skip


def test_a_compensation_that_failed_is_told_of(make: Make, receiver: Receiver) -> None:
    """With the run that is not wholly undone; nothing of what somebody said or did is in it."""
    guard = make()
    _fail(guard, compensate=_broken)
    _send(guard)
    assert sorted(receiver.kinds) == ["compensation.failed", "run.failed"]
    assert b"canary" not in receiver.raw
    (failed,) = [data["data"] for _, data in receiver.told if data["type"] == "compensation.failed"]
    assert (failed["tool"], failed["state"]) == ("book", "compensation_failed")


def test_a_write_in_doubt_is_told_of_once(make: Make, receiver: Receiver) -> None:
    """Not again when it waits for a person; of an undeclared tool nobody has to act."""
    guard = make()

    @guard.tool(effect="write", timeout=30)
    def pay() -> None:
        raise TimeoutError

    @guard.tool
    def look() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), guard.run(id="order"):
        try:
            look()
        except TimeoutError:
            pay()
    _send(guard)
    assert [(kind, data["data"]["tool"]) for kind, (_, data) in zip(receiver.kinds, receiver.told, strict=True)] == [
        ("call.unknown", "pay")
    ]


def test_what_waits_for_approval_is_told_of(make: Make, receiver: Receiver) -> None:
    """With the request, and without its arguments; not if it is decided by then."""
    guard = make()

    @guard.tool(approve=True)
    def act(card: str) -> None:
        """Nothing."""

    requests = []
    for card in ("canary-4711", "canary-4712"):
        with pytest.raises(ApprovalPending) as caught:
            act(card)
        requests.append(caught.value.approval_id)
    guard.approvals.deny(requests[0], by="alice")
    _send(guard)
    ((_, told),) = receiver.told
    assert (told["type"], told["data"]["request"]) == ("approval.waiting", requests[1])
    assert told["data"]["next"] == f"sagaspan approvals show {requests[1]}"
    assert b"canary" not in receiver.raw


def test_a_soft_limit_is_told_of_when_it_is_crossed(make: Make, receiver: Receiver) -> None:
    """In the commit that crosses it, once, and 100 % of a soft budget as well."""
    guard = make(budgets={"user:*": {"limit": "10 calls", "soft": (80,), "hard": False}})

    @guard.tool(loop=False)
    def act() -> None:
        """Nothing."""

    with guard.run(user="ulla"):
        for _ in range(12):
            act()
    _send(guard)
    said = [(data["data"]["scope"], data["data"]["percent"]) for _, data in receiver.told]
    assert said == [("user:ulla", 80), ("user:ulla", 100)]
    assert set(receiver.kinds) == {"budget.soft_limit"}


def test_a_hook_is_told_of_its_events_alone(store_url: str, receiver: Receiver) -> None:
    """The others are nothing to it."""
    hook = Notify(url=receiver.url, secret=SECRET, events=("compensation.failed",))
    with frozen_clock():
        guard = Guard(store_url, notify=[hook])
        _fail(guard, compensate=_broken)
        _send(guard)
    assert receiver.kinds == ["compensation.failed"]


def test_a_guard_without_hooks_writes_and_starts_nothing(store_url: str) -> None:
    """No thread, no rows, no marks."""
    guard = Guard(store_url, budgets={"user:*": {"limit": "10 calls", "soft": (10,)}})
    with guard.run(user="ulla"):
        guard.tool("act")(lambda: None)()
    assert guard._engine.notifier is None
    assert not any(thread.name == "sagaspan-notify" for thread in threading.enumerate())
    assert not any(row.event == "soft_limit" for row in guard._engine.store.audit_of("default", ""))


# -- at least once -------------------------------------------------------------------------------------------------


def test_what_another_process_writes_is_told_of_too(make: Make, receiver: Receiver, store_url: str) -> None:
    """The audit trail is the outbox: who wrote it need not know of any hook."""
    _send(make())  # from here on
    _fail(Guard(store_url))
    _send(make())
    assert receiver.kinds == ["run.failed"]


def test_what_is_not_taken_is_sent_again_under_the_same_id(make: Make, receiver: Receiver) -> None:
    """After growing pauses; a receiver tells repetitions by the id."""
    guard = make()
    receiver.status = 500
    with frozen_clock() as clock:
        _fail(guard)
        _send(guard)
        _send(guard)
        assert len(receiver.told) == 1  # not at once
        (waiting,) = guard._engine.store.deliveries()
        assert (waiting.attempts, waiting.error) == (1, "it answered with the status 500")
        clock.advance(30)
        receiver.status = 200
        _send(guard)
        clock.advance(3600)
        _send(guard)
    assert len({message for message, _ in receiver.told}) == 1
    assert len(receiver.told) == 2
    assert guard._engine.store.deliveries() == []


def test_who_dies_before_it_is_taken_away_has_it_sent_again(make: Make, receiver: Receiver) -> None:
    """Read on and kept in one commit; an attempt that nobody finished is made again by somebody else."""
    guard = make()
    with frozen_clock() as clock:
        _fail(guard)
        notifier = guard._engine.notifier
        assert notifier is not None
        for hook in notifier._hooks.values():
            notifier._collect(hook)
        (kept,) = guard._engine.store.deliveries()
        notifier._posted(kept, 5)  # sent, and died
        _send(make())
        clock.advance(3600)
        _send(make())
    assert [message for message, _ in receiver.told] == [kept.id, kept.id]


def test_of_two_senders_one_sends(make: Make, receiver: Receiver) -> None:
    """An attempt is counted before it is made."""
    guard = make()
    _fail(guard)
    notifiers = [make()._engine.notifier for _ in range(4)]
    threads = [threading.Thread(target=notifier.round) for notifier in notifiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert receiver.kinds == ["run.failed"]


@pytest.mark.parametrize(("status", "attempts"), [(503, ATTEMPTS), (302, ATTEMPTS), (410, 1)])
def test_what_is_never_taken_is_a_dead_letter(
    make: Make, receiver: Receiver, status: int, attempts: int, capsys: Any, store_url: str
) -> None:
    """It is listed with what needs a person, until somebody retries or drops it."""
    from sagaspan.cli import main

    def cli(*args: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as caught:
            main([*args, "--store", store_url])
        return int(caught.value.code or 0), capsys.readouterr().out

    guard = make()
    receiver.status = status
    with frozen_clock() as clock:
        _fail(guard)
        for _ in range(ATTEMPTS + 2):
            _send(guard)
            clock.advance(2 * 3600)
        (dead,) = guard._engine.store.deliveries(dead=True)
        assert (dead.attempts, len(receiver.told)) == (attempts, attempts)
        code, out = cli("status", "--json")
        assert (code, json.loads(out)[0]["next"]) == (
            4,
            f"sagaspan notifications retry {dead.id} --store {shlex.quote(store_url)}",
        )
        receiver.status = 204
        assert cli("notifications", "retry", dead.id)[0] == 0
        assert "None was given up; 1 wait" in cli("notifications", "list", "--dead")[1]
        _send(guard)
        assert guard._engine.store.deliveries() == []
        assert "Everything is delivered" in cli("notifications", "list")[1]
    receiver.status = 410
    _fail(guard, run="second")
    _send(guard)
    assert dead.hook in cli("notifications", "list", "--dead", "--json")[1]
    (second,) = guard._engine.store.deliveries(dead=True)
    assert cli("notifications", "drop", second.id)[0] == 0
    assert cli("notifications", "drop", second.id)[0] == 3


def test_the_thread_and_the_end_of_a_guard_send(store_url: str, receiver: Receiver) -> None:
    """Nobody has to do anything for it; what a closed guard has left over another one sends."""
    with Guard(store_url, notify=Notify(url=receiver.url, secret=SECRET)) as guard:
        _fail(guard)
    assert receiver.kinds == ["run.failed"]
    assert guard._engine.notifier._thread is None
    with Guard(store_url, notify=Notify(url=receiver.url, secret=SECRET)) as guard, guard.run(id="long"):
        with guard.run(id="b", nested=False) as other:
            other.abort("no")
        heard = threading.Event()
        for _ in range(300):
            if len(receiver.told) > 1 or heard.wait(0.05):
                break
        assert receiver.kinds == ["run.failed", "run.failed"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and pauses are short, so that a test need not wait for the real ones."""
    monkeypatch.setattr(_notifier, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(_notifier, "_FIRST_PAUSE", 0.05)
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", "1")
    monkeypatch.setattr(owner, "_alive", {})  # what guards of other tests, which nobody closed, still hold


def _until(happened: Callable[[], Any]) -> None:
    for _ in range(1000):
        if happened():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not happen within 20 s")


@pytest.mark.usefixtures("quick")
def test_what_was_refused_is_sent_again_by_a_process_in_which_nothing_happens_any_more(
    store_url: str, receiver: Receiver
) -> None:
    """The thread stays until everything is delivered, and ends then."""
    receiver.status = 500
    with Guard(store_url, notify=Notify(url=receiver.url, secret=SECRET)) as guard:
        _fail(guard)
        _until(lambda: len(receiver.told) > 4)  # half a second at least: longer than anything may happen here
        receiver.status = 200
        _until(lambda: guard._engine.store.deliveries() == [])
        told = len(receiver.told)
        _until(lambda: guard._engine.notifier._thread is None)
        assert len(receiver.told) == told
    assert len({message for message, _ in receiver.told}) == 1


@pytest.mark.usefixtures("quick")
def test_what_happens_after_a_while_in_which_nothing_did_is_told_of(
    store_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of the first run still covers the second, so nobody announces that one."""
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", "30")
    with Guard(store_url, notify=Notify(url=receiver.url, secret=SECRET)) as guard:
        with guard.run(id="fine"):
            guard.tool("act")(lambda: None)()
        threading.Event().wait(0.3)  # many looks
        _fail(guard)
        _until(lambda: receiver.kinds == ["run.failed"])


def test_the_pause_before_the_next_attempt_is_what_the_docs_say(make: Make, receiver: Receiver) -> None:
    """5 s, then twice as long, to a quarter: without the ten seconds that an attempt may have taken."""
    guard = make()
    receiver.status = 500
    with frozen_clock() as clock:
        _fail(guard)
        for pause in (5, 10, 20, 40):
            _send(guard)
            (waiting,) = guard._engine.store.deliveries()
            assert 0.75 * pause <= (waiting.next_us - now_us()) / 1e6 <= 1.25 * pause
            clock.advance(1.3 * pause)


def test_who_does_not_answer_holds_up_others_for_one_attempt(make: Make, store_url: str, receiver: Receiver) -> None:
    """In one round a receiver that failed is sent nothing more; the others have theirs."""
    other = Notify(url="http://127.0.0.1:9/", secret=SECRET)
    with frozen_clock():
        guard = Guard(store_url, notify=[other, Notify(url=receiver.url, secret=SECRET)])
        _send(guard)
        for run in ("a", "b", "c"):
            _fail(guard, run=run)
        _send(guard)
    assert receiver.kinds == ["run.failed"] * 3
    assert sorted(one.attempts for one in guard._engine.store.deliveries()) == [0, 0, 1]


@pytest.mark.usefixtures("quick")
def test_what_a_process_left_that_was_killed_is_told_of_by_the_next(store_url: str, receiver: Receiver) -> None:
    """It died before anybody was told: the next process with the hook reads on where that one had."""
    hook = Notify(url=receiver.url, secret=SECRET)
    with Guard(store_url, notify=hook) as guard, guard.run(id="first"):
        pass
    child = os.fork()
    if child == 0:  # pragma: no cover - it is killed
        try:
            _fail(Guard(store_url, notify=hook), run="lost")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    before = [data["data"]["run"] for _, data in receiver.told]
    with Guard(store_url, notify=hook) as guard, guard.run(id="second"):
        _until(lambda: [data["data"]["run"] for _, data in receiver.told] == ["lost"])
    assert before in ([], ["lost"])


def test_a_receiver_that_is_not_there_holds_up_nothing(store_url: str) -> None:
    """The run ends as it does, and the message waits."""
    with Guard(store_url, notify=Notify(url="http://127.0.0.1:9/", secret=SECRET)) as guard:
        _fail(guard)
    (waiting,) = guard._engine.store.deliveries()
    assert (waiting.kind, waiting.attempts, waiting.error) == ("run.failed", 1, "ConnectionError")


def test_processes_tell_one_receiver_of_different_events(store_url: str, receiver: Receiver) -> None:
    """As a service does that is deployed anew with other events, and one beside it: neither takes the other's away."""
    with frozen_clock():
        whom = {"url": receiver.url, "secret": SECRET}
        fails = Guard(store_url, notify=Notify(events=("run.failed", "call.unknown"), **whom))
        asks = Guard(store_url, notify=Notify(events=("approval.waiting", "call.unknown"), **whom), approver="inbox")
        pay = asks.tool("pay", approve=True)(lambda n: n)
        for guard in (fails, asks):
            _send(guard)
        for n in range(2):
            _fail(fails, run=f"failed-{n}")
            with pytest.raises(ApprovalPending), asks.run(id=f"asked-{n}"):
                pay(n)
            for guard in (asks, fails) if n else (fails, asks):
                _send(guard)
    assert sorted(receiver.kinds) == ["approval.waiting"] * 2 + ["run.failed"] * 2


@pytest.mark.usefixtures("quick")
def test_the_thread_survives_what_it_does_not_expect(
    store_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The secret is taken away and given back: what happened meanwhile is told, and said once that it could not be."""
    monkeypatch.setattr(_notifier, "SEND_SECONDS", 1.0)  # for so long it is taken to be on its way
    monkeypatch.setenv("HOOK", SECRET)
    with Guard(store_url, notify=Notify(url=receiver.url, secret_env="HOOK")) as guard:
        monkeypatch.delenv("HOOK")
        _fail(guard)
        _until(lambda: "notifications could not be sent" in caplog.text)
        monkeypatch.setenv("HOOK", SECRET)
        _fail(guard, run="again")
        _until(lambda: receiver.kinds == ["run.failed"] * 2)


# -- how it is declared --------------------------------------------------------------------------------------------


def test_hooks_stand_in_the_policy_file_too(
    store_url: str, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret by the name of a variable, so that it is in no file."""
    file = tmp_path / "sagaspan.toml"
    file.write_text(f'[[notify]]\nurl = "{receiver.url}"\nsecret_env = "HOOK"\nevents = ["run.failed"]\n')
    with pytest.raises(ConfigurationError, match="HOOK"):
        Guard(store_url, policies=file)
    monkeypatch.setenv("HOOK", SECRET)
    with Guard(store_url, policies=file) as guard:
        _fail(guard)
    assert receiver.kinds == ["run.failed"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [({"url": "http://example.com/"}, "use https"), ({"secret": "short"}, "guessed"), ({"secret": None}, "one of"),
     ({"secret_env": "X"}, "one of"), ({"events": ["run.ended"]}, "events"), ({"events": []}, "events"),
     ({"urll": "x"}, "urll")],
)  # fmt: skip
def test_a_hook_that_could_not_work_is_refused_at_once(fields: dict[str, Any], sentence: str) -> None:
    """Not by the first failure."""
    with pytest.raises(ConfigurationError, match=sentence):
        Notify(**{"url": "https://example.com/", "secret": SECRET, **fields})


@pytest.mark.parametrize("notify", ["https://example.com", [5], 5])
def test_what_is_no_hook_is_refused(store_url: str, notify: Any) -> None:
    """When the guard is made; and one URL is one hook."""
    with pytest.raises((ConfigurationError, TypeError)):
        Guard(store_url, notify=notify)
    twice = Notify(url="https://example.com/", secret=SECRET)
    with pytest.raises(ConfigurationError, match="twice"):
        Guard(store_url, notify=[twice, twice])


def test_a_secret_is_in_no_repr_and_a_url_in_no_ledger(make: Make, tmp_path: Path) -> None:
    """Both let others speak for you."""
    hook = Notify(url="https://example.com/T0K3N", secret=SECRET)
    assert SECRET not in repr(hook)
    assert "T0K3N" not in hook.name
    guard = make()
    _fail(guard)
    _send(guard)
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("ledger.db*"))
    assert isinstance(guard._engine.notifier, Notifier)


def test_the_next_command_of_a_hook_runs_nothing_that_an_id_says(make: Make, receiver: Receiver) -> None:
    """Who pastes what a message names runs ``sagaspan`` with that id, and no command that stands in the id."""
    guard = make()
    _fail(guard, run="order-17$(touch X)")
    _fail(guard, run="-rf")
    _send(guard)
    assert {told["data"]["next"] for _, told in receiver.told} == {
        "sagaspan show 'order-17$(touch X)'",
        "sagaspan show -- -rf",
    }
