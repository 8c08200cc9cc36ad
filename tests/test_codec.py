"""``Guard(codec=...)``: content is encrypted in the ledger, and a process without the codec does nothing by guess."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.fernet import Fernet

from sagaspan import (
    Applied,
    CompensationFailed,
    ConfigurationError,
    Guard,
    KeyConflict,
    NotApplied,
    OutcomeUnknown,
    RunClosed,
    RunConflict,
    StoreUnavailable,
)
from sagaspan.cli import cli
from sagaspan.keys import fingerprint, idempotency_key
from sagaspan.testing import CrashPoint, World, assert_settled, crash_points
from tests.conftest import Caller, Sql

DOCS = Path(__file__).parents[1] / "docs" / "encryption.md"
EXAMPLES = dict(re.findall(r"<!-- runs: (\w+\.py) -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL))
CANARIES = ("4111-canary-1111", "tok_canary_9f8e7d", "said_canary_555")


def codec_of_the_docs() -> Any:
    names: dict[str, Any] = {}
    exec(EXAMPLES["ledger_codec.py"], names)
    return names["FernetCodec"]


FernetCodec = codec_of_the_docs()


def new_key() -> str:
    return Fernet.generate_key().decode()


@pytest.fixture
def codec() -> Any:
    return FernetCodec(new_key())


@pytest.fixture
def encrypting(store_url: str, codec: Any) -> Any:
    with Guard(store_url, codec=codec) as guard:
        yield guard


def check_clean(folder: Path, *texts: str, rows: Sequence[tuple[Any, ...]] = ()) -> None:
    """No file of a ledger in ``folder``, none of ``texts`` and none of ``rows`` holds a canary."""
    files = {str(path): path.read_bytes() for path in folder.glob("ledger.db*")}
    files |= {f"text {number}": text.encode() for number, text in enumerate(texts)}
    files |= {f"row {row}": b"\n".join(c if isinstance(c, bytes) else str(c).encode() for c in row) for row in rows}
    assert files
    for name, content in files.items():
        for secret in CANARIES:
            assert secret.encode() not in content, f"{secret!r} is in {name}"


@pytest.fixture
def clean(recorded: Callable[[], list[tuple[Any, ...]]], tmp_path: Path) -> Callable[..., None]:
    """``check_clean`` of this test's ledger, wherever that is."""
    return lambda *texts: check_clean(tmp_path, *texts, rows=recorded())


def command(*arguments: str, store: str) -> str:
    done = CliRunner().invoke(cli, [*arguments, "--store", store])
    assert done.exit_code in (0, 4), done.output
    return done.output


# -- the docs --------------------------------------------------------------------------------------------------


def test_the_examples_of_the_docs_run(tmp_path: Path) -> None:
    """As somebody would have them: files in a folder, and pytest."""
    assert len(EXAMPLES) == 2
    for name, code in EXAMPLES.items():
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "SAGASPAN_HOME": str(tmp_path / "home"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


# -- what is in the file ---------------------------------------------------------------------------------------


def test_a_canary_goes_through_every_path_and_is_nowhere(
    encrypting: Guard, store_url: str, clean: Callable[..., None], caller: Caller
) -> None:
    """Arguments, results, errors, undoing, deferred calls, inputs, outputs and notes; the command line says so."""
    card, token, said = CANARIES
    undone: list[Any] = []

    @caller.tool(encrypting, effect="write", compensate=lambda card, result: undone.append((card, result)))
    def pay(card: str, amount: int) -> dict[str, Any]:
        return {"token": token}

    @caller.tool(encrypting, effect="write", error_means="failed")
    def flaky(card: str) -> None:
        raise LookupError(f"{card} was {said}")

    @caller.tool(encrypting, effect="write", error_means="unknown")
    def lost(card: str) -> None:
        raise TimeoutError(f"{card} {said}")

    @caller.tool(encrypting, defer=True, effect="write")
    def mail(text: str) -> str:
        return text

    async def job() -> None:
        async with caller.run(encrypting, "shop", id="good", input={"card": card}) as run:
            assert await caller.call(pay, card, 5) == {"token": token}
            await caller.call(mail, said)
            run.output = [token]
        async with caller.run(encrypting, "shop", id="good", input={"card": card}) as again:
            assert await caller.call(pay, card, 5) == {"token": token}
        assert again.output == [token]
        with pytest.raises(LookupError, match=said):
            async with caller.run(encrypting, "shop", id="bad"):
                await caller.call(pay, card, 7)
                await caller.call(flaky, card)
        with pytest.raises(TimeoutError):
            async with caller.run(encrypting, "shop", id="held"):
                await caller.call(lost, card)

    caller.play(job)
    assert undone == [(card, {"token": token})]
    status = command("status", store=store_url)
    assert "nobody knows how it ended: <encrypted>" in " ".join(status.split())
    (unknown,) = encrypting.runs.get("held").calls
    encrypting.calls.resolve(unknown.id, "happened", result=[token], note=f"the bank says {said}")
    assert encrypting.calls.get(unknown.id).result == [token]
    good = encrypting.runs.get("good")
    assert (good.input, good.output, good.calls[0].args["card"]) == ({"card": card}, [token], card)
    assert said in encrypting.runs.get("bad").error
    shown = [status, command("runs", "list", store=store_url)]
    for run in ("good", "bad", "held"):
        shown += [command("show", run, store=store_url), command("runs", "show", run, "--json", store=store_url)]
    for call in encrypting.calls.list(open=False):
        shown += [command("show", call.id, store=store_url), command("calls", "show", call.id, store=store_url)]
    shown += [command("calls", "list", "--all", *json, store=store_url) for json in ([], ["--json"])]
    clean(*shown)
    assert all("encrypted" in text for text in shown[2:])


def test_nothing_in_the_ledger_can_be_found_by_trying(encrypting: Guard, sql: Sql) -> None:
    """Keys and fingerprints of calls and inputs are keyed with what only the codec reads."""
    encrypting.tool("login", effect="write")(lambda pin: None)
    with encrypting.run("shop", id="a", input="1234"):
        encrypting.tool("pay", effect="write")(lambda pin: None)("1234")
    guesses = {fingerprint(data) for data in (["pay", {"pin": "1234"}], "1234", {"pin": "1234"}, ["1234"])}
    key = idempotency_key("default", "run:a", "pay", fingerprint(["pay", {"pin": "1234"}]), 0)
    guesses |= {key} | {hashlib.sha256(text.encode()).hexdigest() for text in ("1234", '"1234"')}
    recorded = sql("select * from calls") + sql("select * from runs")
    held = [str(value) for row in recorded for value in row]
    assert not [guess for guess in guesses if any(guess in value for value in held)]


def test_two_ledgers_of_one_codec_have_nothing_in_common(tmp_path: Path, codec: Any) -> None:
    """The key of the fingerprints is that of one ledger."""
    keys = set()
    for name in ("one", "two"):
        with Guard(f"sqlite:///{tmp_path}/{name}.db", codec=codec) as guard, guard.run(id="a"):
            guard.tool("pay", effect="write")(lambda pin: None)("1234")
            keys.add(guard.runs.get("a").calls[0].key)
    assert len(keys) == 2


def test_what_looks_encrypted_is_encrypted_too(encrypting: Guard, clean: Callable[..., None]) -> None:
    """A text of somebody's that starts as encrypted ones do is content like any other."""
    pay = encrypting.tool("pay", error_means="failed")(lambda: fail_with("$encrypted:" + CANARIES[0]))
    with pytest.raises(LookupError):
        pay()
    clean()
    assert encrypting.calls.list(open=False)[0].error == "LookupError: <encrypted>"


def fail_with(text: str) -> None:
    raise LookupError(text)


def test_redact_and_a_codec_go_together(encrypting: Guard, clean: Callable[..., None]) -> None:
    """What is redacted is not there, also for who has the codec; the rest is encrypted."""
    pay = encrypting.tool("pay", effect="write", redact=["card", "result.token"])(
        lambda card, note: {"token": CANARIES[1], "id": 7}
    )
    with encrypting.run(id="a"):
        pay(CANARIES[0], CANARIES[2])
    (call,) = encrypting.runs.get("a").calls
    assert (call.args["note"], call.result["id"]) == (CANARIES[2], 7)
    assert str(call.args["card"]).startswith("<redacted")
    clean()


def test_a_guard_without_a_codec_pays_nothing(guard: Guard) -> None:
    """Nothing is done on the way in or out, and nothing is asked."""
    guard.tool("pay", effect="write")(lambda: None)()
    assert not guard._store.seal.active
    assert not guard._store.seal.encryption
    assert guard._store.facts("default") == {}


# -- before there was a codec ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"key": "order"}, {"redact": ["card"]}, {"key": "order", "redact": ["card"]}])
@pytest.mark.parametrize("before", [{}, {"redact": ["card"]}])
def test_what_was_done_before_is_read_and_not_done_again(
    store_url: str, codec: Any, before: dict[str, Any], fields: dict[str, Any]
) -> None:
    """The same run, with the same input, and the same business key, go on with a codec."""
    if "key" in fields:
        before = {**before, "key": "order"}
    ran: list[str] = []

    def play(guard: Guard, declared: dict[str, Any]) -> Any:
        pay = guard.tool("pay", effect="write", **declared)(lambda order, card: ran.append(order) or f"paid {order}")
        with guard.run("shop", id="a", input=[1]) as run:
            answers = pay("o-1", "c-111"), pay("o-2", "c-111")
            run.pause()
        return answers

    with Guard(store_url) as plain:
        play(plain, before)
    with Guard(store_url, codec=codec) as guard:
        for _ in range(2):
            assert play(guard, {**fields, **before}) == ("paid o-1", "paid o-2")
        assert ran == ["o-1", "o-2"]
        assert guard.runs.get("a").calls[0].args["order"] == "o-1"
        with pytest.raises(RunConflict), guard.run("shop", id="a", input=[2]):
            pass


def test_another_argument_under_a_key_is_still_a_conflict(store_url: str, codec: Any) -> None:
    """Also if one of the two calls was before there was a codec."""
    for fields in ({}, {"codec": codec}):
        with Guard(store_url, **fields) as guard:
            guard.tool("pay", key="order")(lambda order, amount: None)(f"o-{len(fields)}", 5)
    with Guard(store_url, codec=codec) as guard:
        for order in ("o-0", "o-1"):
            with pytest.raises(KeyConflict):
                guard.tool("pay", key="order")(lambda order, amount: None)(order, 6)


# -- without the codec -----------------------------------------------------------------------------------------


class Shop:
    """A run that did something and was left: with its codec, without one, with another one."""

    def __init__(self, store: str, codec: Any) -> None:
        self.store = store
        self.codec = codec
        self.undone: list[Any] = []

    def guard(self, codec: Any, undo: Callable[..., Any] | None = None, **fields: Any) -> tuple[Guard, Any]:
        guard = Guard(self.store, codec=codec)
        undo = undo or (lambda card, result: self.undone.append((card, result)))
        declare = guard.tool("pay", effect="write", compensate=undo, **fields)
        return guard, declare(lambda card: f"paid {card}")

    def pays(self, **fields: Any) -> None:
        guard, pay = self.guard(self.codec, **fields)
        with guard, guard.run("shop", id="a"):
            pay("c-1")
            pay("c-2")


@pytest.fixture
def shop(store_url: str, codec: Any) -> Shop:
    return Shop(store_url, codec)


def test_a_run_that_was_recorded_under_a_codec_is_not_entered_without_it(shop: Shop) -> None:
    """What was done would look new there."""
    shop.pays()
    guard, _ = shop.guard(None)
    sentence = "the run 'a' was recorded under a codec, and this guard has none"
    with guard, pytest.raises(ConfigurationError, match=sentence), guard.run("shop", id="a"):
        pytest.fail("entered")


def test_a_key_that_was_used_under_a_codec_is_refused_without_it(store_url: str, codec: Any) -> None:
    """The call is not made again, and not taken for another one."""
    ran: list[str] = []
    for fields in ({"codec": codec}, {}):
        with Guard(store_url, **fields) as guard:
            pay = guard.tool("pay", key="order")(lambda order: ran.append(order))
            if fields:
                pay("o-1")
                continue
            with pytest.raises(ConfigurationError, match="was recorded under a codec"):
                pay("o-1")
            pay("o-2")
    assert ran == ["o-1", "o-2"]


def test_an_undo_waits_for_the_codec(shop: Shop) -> None:
    """Nothing is undone with ciphertext: it is queued, and recovery with the codec does it, in order."""
    shop.pays()
    guard, _ = shop.guard(None)
    with guard:
        assert [call.args for call in guard.runs.get("a").calls] == [{"": "<encrypted>"}] * 2
        foreseen = guard.compensate("a", dry_run=True)
        assert (len(foreseen.undone), len(foreseen.queued)) == (0, 2)
        with pytest.raises(
            CompensationFailed, match=r"NOT undone yet: pay, pay; .* is encrypted, and the codec is not"
        ):
            guard.compensate("a")
        assert [run.id for run in guard.recover().queued] == ["a"]
    assert shop.undone == []
    guard, _ = shop.guard(shop.codec)
    with guard:
        assert [run.id for run in guard.recover().compensated] == ["a"]
    assert shop.undone == [("c-2", "paid c-2"), ("c-1", "paid c-1")]


@pytest.mark.parametrize("declares", ["card", "result", "compensation_data", "call", "all", "expect"])
def test_whatever_reads_content_waits(shop: Shop, declares: str) -> None:
    """An argument, the result, the call itself, or an expectation that reads one of them."""
    handlers: dict[str, dict[str, Any]] = {
        "card": {"undo": lambda card: shop.undone.append(card)},
        "result": {"undo": lambda result: shop.undone.append(result)},
        "compensation_data": {"undo": lambda compensation_data: shop.undone.append(compensation_data)},
        "call": {"undo": lambda call: shop.undone.append(call.args["card"])},
        "all": {"undo": lambda **all: shop.undone.append(all)},
        "expect": {"undo": lambda: shop.undone.append(1), "expect": lambda card: True},
    }
    shop.pays(**handlers[declares])
    guard, _ = shop.guard(None, **handlers[declares])
    with guard, pytest.raises(CompensationFailed, match="NOT undone yet"):
        guard.compensate("a")
    assert shop.undone == []


def test_an_undo_that_needs_no_content_goes_on(shop: Shop) -> None:
    """Its own key is enough for many services."""

    def undo(idempotency_key: str) -> None:
        shop.undone.append(idempotency_key)

    shop.pays(undo=undo)
    guard, _ = shop.guard(None, undo)
    with guard:
        assert len(guard.compensate("a").undone) == 2
    assert len(set(shop.undone)) == 2
    guard, _ = shop.guard(shop.codec)
    with guard:
        assert [call.args for call in guard.runs.get("a").calls[:2]] == [{"card": "c-1"}, {"card": "c-2"}]


def test_a_probe_is_not_asked_about_ciphertext(store_url: str, codec: Any) -> None:
    """Who has the codec asks it; until then the call stays in doubt, and nobody gives it up."""
    asked: list[str] = []

    def play(guard: Guard) -> None:
        def probe(card: str) -> Applied:
            asked.append(card)
            return Applied("paid")

        guard.tool("pay", effect="write", error_means="unknown", compensate=lambda card: None, probe=probe)(
            lambda card: fail_with("gone")
        )

    with Guard(store_url, codec=codec) as guard:
        pay = guard.tool("pay", effect="write", error_means="unknown")(lambda card: fail_with("gone"))
        with pytest.raises(LookupError), guard.run(id="a"):
            pay("c-1")
    with Guard(store_url) as without:
        play(without)
        with pytest.raises(OutcomeUnknown, match="nobody knows whether 'pay' happened"):
            without.compensate("a")
        assert without.runs.get("a").calls[0].state == "unknown"
    assert asked == []
    with Guard(store_url, codec=codec) as guard:
        play(guard)
        guard.compensate("a")
        assert guard.runs.get("a").calls[0].result == "paid"
    assert asked == ["c-1"]


def test_a_deferred_call_waits_for_the_codec(worker: Any, store_url: str) -> None:
    """It is sent from its record, so never from one that cannot be read."""
    key = new_key()
    script = """
    guard = Guard(os.environ["TEST_STORE"], codec=FernetCodec(os.environ["KEY"]))
    mail = guard.tool("mail", defer=True, effect="write")(lambda text: effect(text))
    guard._engine._sending = lambda call: die()  # decided, and nothing is sent yet
    with guard.run("shop", id="a"):
        mail("first")
        mail("second")
    """
    assert worker.run(EXAMPLES["ledger_codec.py"] + textwrap.dedent(script), KEY=key).returncode < 0
    assert worker.effects == []
    sent: list[str] = []
    with Guard(store_url) as without:
        without.tool("mail", defer=True, effect="write")(lambda text: sent.append(text))
        assert [run.id for run in without.recover().queued] == ["a"]
    assert sent == []
    with Guard(store_url, codec=FernetCodec(key)) as guard:
        guard.tool("mail", defer=True, effect="write")(lambda text: sent.append(text))
        assert [run.id for run in guard.recover().completed] == ["a"]
    assert sent == ["first", "second"]


def test_a_decision_is_not_written_in_clear_by_who_has_no_codec(
    encrypting: Guard, store_url: str, clean: Callable[..., None]
) -> None:
    """Neither its result nor its note: a person's word counts with the guard that has the codec."""
    pay = encrypting.tool("pay", effect="write", error_means="unknown")(lambda: fail_with("gone"))
    with pytest.raises(LookupError), encrypting.run(id="a"):
        pay()
    (call,) = encrypting.runs.get("a").calls
    arguments = ["calls", "resolve", call.id, "happened", "--note", CANARIES[1], "--store", store_url]
    for more in ([], ["--result", f'"{CANARIES[0]}"']):
        refused = CliRunner().invoke(cli, [*arguments, *more])
        assert refused.exit_code == 1
        assert "would be written in clear" in str(refused.exception)
        assert "--app MODULE:GUARD" in str(refused.exception)
    assert encrypting.calls.resolve(call.id, "happened", note=CANARIES[1]).state == "done"
    clean()


def test_the_command_line_reads_with_the_codec_of_your_guard(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--app MODULE:GUARD`` lends it, and writes with it."""
    key = new_key()
    module = EXAMPLES["ledger_codec.py"] + (
        f"\nfrom sagaspan import Guard\nguard = Guard({shop.store!r}, codec=FernetCodec({key!r}))\n"
    )
    (tmp_path / "codec_app.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    shop.codec = FernetCodec(key)
    shop.pays()
    read = CliRunner().invoke(cli, ["show", "a", "--app", "codec_app:guard"])
    assert "c-1" in read.output
    assert "encrypted" not in read.output
    sys.modules.pop("codec_app")


# -- another key -----------------------------------------------------------------------------------------------


def test_a_guard_with_another_key_writes_nothing(shop: Shop, sql: Sql, caller: Caller) -> None:
    """It is told so, and what is there stays as it is, to be read with the right one."""
    shop.pays()
    before = sql("select * from calls"), sql("select * from runs")
    guard, _ = shop.guard(FernetCodec(new_key()))
    other = caller.tool(guard, "other", effect="write")(lambda: pytest.fail("ran"))

    async def job() -> None:
        with pytest.raises(ConfigurationError, match="does not read what the namespace 'default' of the ledger"):
            await caller.call(other)
        with pytest.raises(ConfigurationError, match="does not read"):
            async with caller.run(guard, id="b"):
                pytest.fail("entered")

    with guard:
        caller.play(job)
        with pytest.raises(ConfigurationError, match="does not read"):
            guard.compensate("a")
        with pytest.raises(ConfigurationError, match="does not read"):
            guard.recover()
        assert guard.runs.get("a").calls[0].args == {"": "<encrypted>"}
    assert (sql("select * from calls"), sql("select * from runs")) == before
    assert shop.undone == []
    guard, _ = shop.guard(shop.codec)
    with guard:
        assert guard.runs.get("a").calls[0].args == {"card": "c-1"}


def test_what_no_key_reads_any_more_is_kept_and_not_repeated(store_url: str, sql: Sql) -> None:
    """The old key was dropped too early: no second call, no undo by guess, and all is well when it is back."""
    old, new = new_key(), new_key()
    shop = Shop(store_url, FernetCodec(old))
    shop.pays()
    guard, _ = shop.guard(FernetCodec(f"{new} {old}"))
    with guard:
        guard.tool("other")(lambda: None)()  # the key of the fingerprints is under the new key now
    recorded = sql("select arguments from calls where tool = 'pay' order by seq")
    guard, pay = shop.guard(FernetCodec(new))
    with guard:
        with pytest.raises(OutcomeUnknown, match="it is encrypted") as unread, guard.run("shop", id="a"):
            pay("c-1")
        assert unread.value.tool_ran == "yes"
        with pytest.raises(CompensationFailed, match="a person must look: pay, pay"):
            guard.compensate("a")
    assert shop.undone == []
    assert sql("select arguments from calls where tool = 'pay' order by seq") == recorded
    guard, _ = shop.guard(FernetCodec(f"{new} {old}"))
    with guard:
        guard.compensate("a")
    assert shop.undone == [("c-2", "paid c-2"), ("c-1", "paid c-1")]


def test_processes_that_start_at_once_agree_on_one_key(worker: Any) -> None:
    """Each makes one, and all use the first."""
    script = (
        EXAMPLES["ledger_codec.py"]
        + """
guard = Guard(os.environ["TEST_STORE"], codec=FernetCodec(os.environ["KEY"]))
pay = guard.tool("pay", key="order")(lambda order, card: effect(order))
while not effects.with_name("go").exists():
    time.sleep(0.001)
pay("o-1", "c-111")
"""
    )
    key = new_key()
    processes = [worker.start(script, KEY=key) for _ in range(6)]
    worker.effects_file.with_name("go").write_text("")
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert worker.effects == ["o-1"]


# -- a process that dies ---------------------------------------------------------------------------------------

CRASH_KEY = new_key()


def order(world: World) -> None:
    """A probe and a compensation that know only what the ledger has of the call."""
    guard = Guard(world.store, codec=FernetCodec(CRASH_KEY))

    def find(card: str) -> Applied | NotApplied:
        return Applied(f"paid by {card}") if world.happened("pay", key=card) else NotApplied()

    def refund(card: str, result: str) -> None:
        world.effect("refund", key=f"{card}, {result}")

    @guard.tool(effect="write", probe=find, compensate=refund)
    def pay(card: str) -> str:
        world.effect("pay", key=card)
        return f"paid by {card}"

    with guard, contextlib.suppress(KeyError), guard.run("order", id="o-17", on_interrupt="compensate"):
        pay("c-1")
        raise KeyError("no seat")


@pytest.mark.parametrize("crash", crash_points(order))
def test_who_goes_on_reads_what_the_dead_one_encrypted(crash: CrashPoint) -> None:
    """Wherever a process dies, what was paid is paid back, once and with the right card."""
    with crash as world:
        with contextlib.suppress(RunClosed):
            world.resume()
        assert_settled(world)
        assert world.effects == ["pay", "refund"]
        assert world.happened("refund", key="c-1, paid by c-1")


# -- a codec that fails ----------------------------------------------------------------------------------------


class Moody:
    """A codec that can be out of reach."""

    def __init__(self, codec: Any) -> None:
        self.codec = codec
        self.down = False

    def encode(self, data: bytes, /) -> bytes:
        if self.down:
            raise ConnectionError(f"no key service for {data!r}")
        return self.codec.encode(data)

    def decode(self, data: bytes, /) -> bytes:
        if self.down:
            raise ConnectionError("no key service")
        return self.codec.decode(data)


def test_a_codec_that_fails_before_the_call_stops_it(store_url: str, codec: Any, caller: Caller) -> None:
    """Nothing runs that could not be recorded, and the error says nothing of the content."""
    moody = Moody(codec)
    ran: list[str] = []
    with Guard(store_url, codec=moody) as guard:
        pay = caller.tool(guard, "pay", effect="write")(ran.append)

        async def job() -> None:
            await caller.call(pay, "c-1")
            moody.down = True
            with pytest.raises(StoreUnavailable, match="did not encrypt what is to be recorded") as stopped:
                await caller.call(pay, CANARIES[0])
            assert CANARIES[0] not in str(stopped.value)
            moody.down = False
            await caller.call(pay, "c-2")

        caller.play(job)
    assert ran == ["c-1", "c-2"]


def test_a_codec_that_fails_after_the_call_loses_nothing(store_url: str, codec: Any, caller: Caller) -> None:
    """The caller gets the result, and it is saved when that works."""
    moody = Moody(codec)

    def work(card: str) -> str:
        moody.down = True
        return f"paid {card}"

    with Guard(store_url, codec=moody) as guard:
        pay = caller.tool(guard, "pay", effect="write")(work)

        async def job() -> None:
            assert await caller.call(pay, "c-1") == "paid c-1"

        caller.play(job)
        moody.down = False
        guard._engine.settle()
        (call,) = guard.calls.list(open=False)
        assert (call.state, call.result) == ("done", "paid c-1")


def test_a_codec_that_does_not_read_itself_is_refused(store_url: str) -> None:
    """Before anything is recorded with it."""

    class OneWay:
        def encode(self, data: bytes, /) -> bytes:
            return hashlib.sha256(data).digest()

        def decode(self, data: bytes, /) -> bytes:
            return data

    with Guard(store_url, codec=OneWay()) as guard:
        pay = guard.tool("pay")(lambda: pytest.fail("ran"))
        with pytest.raises(ConfigurationError, match="does not decode what it has encoded"):
            pay()


class Async:
    async def encode(self, data: bytes) -> bytes:
        return data

    async def decode(self, data: bytes) -> bytes:
        return data


@pytest.mark.parametrize(
    ("codec", "sentence"),
    [
        ("secret", r"encode\(bytes\) and decode\(bytes\), not a str"),
        (FernetCodec, "not the class FernetCodec"),
        (Async(), "encode is async"),
    ],
)
def test_what_is_no_codec_is_refused_at_once(codec: Any, sentence: str) -> None:
    """Where the guard is made."""
    with pytest.raises(ConfigurationError, match=sentence):
        Guard(codec=codec)


def test_a_read_goes_on_while_the_store_is_down(tmp_path: Path, codec: Any, caplog: pytest.LogCaptureFixture) -> None:
    """``fail_open=True`` needs no key for what is not recorded; a write fails closed."""
    caplog.set_level(logging.ERROR)
    (tmp_path / "file").write_text("")
    with Guard(f"sqlite:///{tmp_path}/file/ledger.db", codec=codec, fail_open=True) as guard:
        look = guard.tool("look", effect="read")(lambda card: card)
        pay = guard.tool("pay", effect="write")(lambda card: pytest.fail("ran"))
        with guard.run(id="a"):
            assert look("c-1") == "c-1"
        assert look("c-1") == "c-1"
        with pytest.raises(StoreUnavailable):
            pay("c-1")


def test_a_test_store_is_encrypted_too(codec: Any, tmp_path: Path) -> None:
    """``guard.override(store=...)`` goes on with the codec."""
    with Guard(f"sqlite:///{tmp_path}/first.db", codec=codec) as encrypting:
        pay = encrypting.tool("pay", effect="write")(lambda card: card)
        with encrypting.override(store=f"sqlite:///{tmp_path}/ledger.db"), encrypting.run(id="a"):
            pay(CANARIES[0])
    check_clean(tmp_path)
