"""``redact=``: what is named there is never recorded or shown, only a keyed hash of it."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel, SecretBytes, SecretStr

from sagaspan import (
    Applied,
    ApprovalPending,
    CompensationFailed,
    ConfigurationError,
    Guard,
    OutcomeUnknown,
    Policy,
    Retry,
    configure_tracing,
)
from sagaspan._secret import path_for
from sagaspan.cli import cli
from tests.conftest import Caller
from tests.servers import Postgres

CANARY = '4111-canary/1111 "quoted" é'
OTHERS = ("tok_canary_9f8e7d", "987654321012")


def spelt(secret: str) -> set[bytes]:
    """How a secret could stand in a file."""
    texts = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {text.encode() for text in texts}


def check_clean(folder: Path, *texts: str, rows: Sequence[tuple[Any, ...]] = ()) -> None:
    """No file below ``folder``, none of ``texts``, and none of ``rows`` of a ledger holds one of the secrets."""
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files |= {f"text {number}": text.encode() for number, text in enumerate(texts)}
    files |= {f"row {row}": b"\n".join(c if isinstance(c, bytes) else str(c).encode() for c in row) for row in rows}
    for name, content in files.items():
        for secret in (CANARY, *OTHERS):
            for form in spelt(secret):
                assert form not in content, f"{secret!r} is in {name}"
    assert rows or any(name.endswith("ledger.db") for name in files)


@pytest.fixture
def clean(recorded: Callable[[], list[tuple[Any, ...]]], tmp_path: Path) -> Callable[..., None]:
    """``check_clean`` of this test's folder and of all that its ledger holds, wherever that is."""

    def check(*texts: str) -> None:
        check_clean(tmp_path, *texts, rows=recorded())

    return check


class Customer(BaseModel):
    name: str
    ssn: str


# -- the canary ------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAGASPAN_HOME", str(tmp_path / ".sagaspan"))
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_AND_EVENT")
    return tmp_path / ".sagaspan"


@pytest.fixture
def traced(home: Path) -> Iterator[Guard]:
    """A guard whose spans, with content, go to the home."""
    provider = TracerProvider(shutdown_on_exit=False)
    configure_tracing("test", directory=home / "traces", tracer_provider=provider)
    with Guard(tracer_provider=provider) as guard:
        yield guard
    provider.shutdown()


def test_a_canary_goes_through_every_path_and_is_nowhere(
    traced: Guard, home: Path, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    """Arguments, results, errors, retries, compensations, replays, spans, logs, DuckDB and the command line."""
    guard, tries = traced, []
    caplog.set_level(logging.DEBUG)

    def refund(result: dict[str, Any], customer: dict[str, Any]) -> str:
        raise RuntimeError(f"cannot refund {CANARY}: {result!r} {customer!r}")

    @caller.tool(guard, effect="write", compensate=refund, redact=["card", "customer.ssn", "result.token"])
    def pay(card: str, customer: Customer, amount: int) -> dict[str, Any]:
        return {"id": 7, "token": OTHERS[0], "amount": amount}

    @caller.tool(guard, redact=["card"], retry=Retry(attempts=3, initial_delay=0.0), error_means="failed")
    def flaky(card: str) -> None:
        tries.append(1)
        raise LookupError(f"attempt {len(tries)} with {card} ({card!r}) was declined")

    @caller.tool(guard, redact=["result"])
    def token() -> str:
        return OTHERS[0]

    @caller.tool(guard, critical=False, effect="write")
    def login(password: SecretStr, pin: SecretBytes) -> None:
        raise ValueError(f"{password.get_secret_value()} and {pin.get_secret_value()!r} are wrong")

    customer = Customer(name="Ann", ssn=OTHERS[1])

    async def job() -> None:
        with pytest.raises(CompensationFailed, match="NOT undone"):
            async with caller.run(guard, "shop", id="a") as run:
                await caller.call(pay, CANARY, customer, 5)
                with pytest.raises(OutcomeUnknown) as replayed:
                    await caller.call(pay, CANARY, customer, 5)
                assert replayed.value.tool_ran == "yes"
                assert CANARY not in str(replayed.value) + repr(replayed.value.call)
                await caller.call(token)
                answer = await caller.call(login, SecretStr(CANARY), SecretBytes(OTHERS[1].encode()))
                assert CANARY not in str(answer)
                run.output = {"said": f"paid with {CANARY}"}
                try:
                    await caller.call(flaky, CANARY)
                except LookupError as error:
                    raise RuntimeError(f"wrapped: {error}") from error
        with pytest.raises(LookupError):
            await caller.call(flaky, CANARY)
        async with caller.run(guard, "shop", id="b") as done:
            await caller.call(token)
            done.output = [f"the token is {OTHERS[0]}"]

    caller.play(job)
    assert len(tries) == 6
    shown = []
    calls = [call.id for call in guard.calls.list(open=False)]
    for command in (
        ["status"], ["runs", "list"], ["runs", "show", "a"], ["runs", "show", "b"], ["calls", "list", "--all"],
        ["show", "a"], *(["show", call] for call in calls), *(["calls", "show", call] for call in calls),
        ["traces", "list"], ["sql", "select * from spans"], ["recover"], ["doctor"],
    ):  # fmt: skip
        for answer in ([], ["--json"]):
            done = CliRunner().invoke(cli, [*command, *answer])
            assert done.exit_code in (0, 1, 4), (command, done.output)
            shown.append(done.output)
    assert any("redacted" in text for text in shown)
    check_clean(home, *shown, caplog.text)


def test_what_others_say_of_a_call_is_cleaned_too(guard: Guard, clean: Callable[..., None], caller: Caller) -> None:
    """The answer of an expectation, and of a probe, in the record and in the audit trail."""
    undo = {"compensate": lambda: pytest.fail("undone"), "expect": lambda: f"now it is {CANARY}"}
    pay = caller.tool(guard, "pay", effect="write", redact=["card"], **undo)(lambda card: None)

    def probe() -> None:
        raise LookupError(f"looked for {OTHERS[0]}")

    book = caller.tool(guard, "book", effect="write", redact=["pin"], error_means="unknown", probe=probe)(
        lambda pin: fails()
    )

    def fails() -> None:
        raise TimeoutError

    async def job() -> None:
        with pytest.raises(CompensationFailed):
            async with caller.run(guard, id="a"):
                await caller.call(pay, CANARY)
                raise KeyError
        with pytest.raises(TimeoutError):
            async with caller.run(guard, id="b"):
                await caller.call(book, OTHERS[0])

    caller.play(job)
    (step,) = guard.runs.get("a").calls
    assert "now it is <redacted>" in step.error
    said = guard._store.audit_of("default", "a") + guard._store.audit_of("default", "b")
    for sentence in ("now it is <redacted>", "looked for <redacted>"):
        assert any(sentence in (row.detail or "") for row in said), sentence
    clean()


# -- what is recorded instead ----------------------------------------------------------------------------------


def test_equal_values_are_recognised(guard: Guard, caller: Caller) -> None:
    """The keyed hash stands for the value: an equal call is the same call, another card is another one."""
    ran: list[str] = []

    @caller.tool(guard, effect="write", redact=["card"])
    def pay(card: str, amount: int) -> str:
        ran.append(card)
        return "paid"

    async def job() -> None:
        for _ in range(2):
            async with caller.run(guard, id="a") as run:
                for card in ("c-111", "c-222", "c-111"):
                    await caller.call(pay, card, 5)
                run.pause()

    caller.play(job)
    assert ran == ["c-111", "c-222"]
    one, two = guard.runs.get("a").calls
    assert (one.args["amount"], one.args["card"] == two.args["card"]) == (5, False)
    assert one.args["card"] == guard.calls.get(one.id).args["card"]
    assert str(one.args["card"]).startswith("<redacted ")


def test_the_hash_is_no_hash_of_the_value_alone(guard: Guard, store_url: str, tmp_path: Path) -> None:
    """Two ledgers have nothing in common, nor two tools of one: who has only the ledger cannot try all numbers."""
    digests = set()
    for url in (store_url, f"sqlite:///{tmp_path}/other.db"):
        with Guard(url) as one:
            for name in ("pay", "book"):
                one.tool(name, redact=["pin"])(lambda pin: None)("1234")
            digests |= {call.args["pin"].digest for call in one.calls.list(open=False)}
    assert len(digests) == 4
    secret = path_for(store_url)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_paths_reach_into_everything(guard: Guard, clean: Callable[..., None]) -> None:
    """Lists, tuples, mappings with other keys, models, any field, and a name anywhere."""

    @guard.tool(redact=["order.*.pin", "people.ssn", "**.password", "result.items.token"])
    def act(order: Any, people: Any, extra: Any) -> Any:
        return {"items": [{"token": OTHERS[0], "n": 1}], "deep": [{"password": CANARY}]}

    people = [Customer(name="Ann", ssn=OTHERS[1]), Customer(name="Bob", ssn=OTHERS[1])]
    act({1: {"pin": OTHERS[1]}, "b": {"pin": OTHERS[1]}}, (people, people), {"x": [{"y": {"password": CANARY}}]})
    (call,) = guard.calls.list(open=False)
    assert call.args["people"][0][0]["name"] == "Ann"
    assert call.result["items"][0]["n"] == 1
    clean()


def test_absent_values_stay_absent(guard: Guard) -> None:
    """None says that there is nothing, and a result without the field is replayed."""

    @guard.tool(effect="write", redact=["card", "result.token"])
    def pay(card: str | None) -> dict[str, Any]:
        return {"token": None, "id": 1}

    with guard.run(id="a"):
        assert pay(None) == pay(None) == {"token": None, "id": 1}
    assert guard.runs.get("a").calls[0].args == {"card": None}


def test_a_secret_is_redacted_by_itself(guard: Guard, clean: Callable[..., None]) -> None:
    """pydantic's secrets, also within models and lists, need no policy; equal ones are the same call."""
    ran: list[int] = []

    class Login(BaseModel):
        user: str
        password: SecretStr

    @guard.tool(effect="write")
    def login(login: Login, more: list[Any]) -> dict[str, Any]:
        ran.append(1)
        return {"session": SecretStr(OTHERS[0])}

    with guard.run(id="a"):
        login(Login(user="ann", password=SecretStr(CANARY)), [SecretBytes(OTHERS[1].encode())])
        with pytest.raises(OutcomeUnknown, match="redacted"):
            login(Login(user="ann", password=SecretStr(CANARY)), [SecretBytes(OTHERS[1].encode())])
        login(Login(user="ann", password=SecretStr("another")), [])
    assert len(ran) == 2
    assert guard.runs.get("a").calls[0].args["login"]["user"] == "ann"
    clean()


def test_what_a_person_says_it_returned_is_redacted_too(
    guard: Guard, store_url: str, clean: Callable[..., None]
) -> None:
    """Also by a command line that does not have the tool: the ledger knows which fields."""

    @guard.tool(effect="write", error_means="unknown", redact=["result.token"])
    def pay() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), guard.run(id="a"):
        pay()
    (call,) = guard.runs.get("a").calls
    guard.close()
    said = json.dumps({"token": OTHERS[0], "id": 7})
    done = CliRunner().invoke(
        cli,
        ["calls", "resolve", call.id, "happened", "--note", "saw it", "--result", said, "--json", "--store", store_url],
    )
    assert done.exit_code == 0, done.output
    assert guard.calls.get(call.id).result["id"] == 7
    clean(done.output)


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"redact": ["crad"]}, r"the tool has no argument 'crad'; did you mean card\?"),
        ({"redact": ["token"]}, r"result\.token is a field of its result"),
        ({"redact": ["card."]}, "is no path"),
        ({"redact": ["**"]}, "is no path"),
        ({"redact": "card"}, "names or dotted paths of fields"),
        ({"redact": ["card"], "compensate": lambda card: None}, "compensation '<lambda>' needs 'card'"),
        ({"redact": ["card"], "compensate": lambda **all: None}, r"takes all arguments \(\*\*kwargs\), but 'card'"),
        ({"redact": ["result"], "compensate": lambda result: None}, "needs 'result'"),
        ({"redact": ["result"], "compensate": lambda compensation_data: None}, "needs 'compensation_data'"),
        ({"redact": ["**.card"], "compensate": lambda card: None}, "needs 'card'"),
        ({"redact": ["card"], "probe": lambda card: None}, "its probe '<lambda>' needs 'card'"),
        ({"redact": ["card"], "compensate": lambda: None, "expect": lambda card: True}, "expectation '<lambda>' needs"),
        ({"redact": ["card"], "key": "card"}, "its key needs 'card'"),
        ({"redact": ["card"], "key": lambda card: card}, "its key needs 'card'"),
        ({"redact": ["customer.ssn"], "key": "customer.ssn"}, r"its key needs 'customer\.ssn'"),
        ({"redact": ["customer.ssn"], "key": 'customer["ssn"]'}, r"its key needs 'customer\.ssn'"),
        ({"redact": ["card"], "lock": "card"}, "its lock needs 'card'"),
        ({"redact": ["card"], "defer": True}, "defer=True, so it is sent from its record, but 'card'"),
    ],
)
def test_what_cannot_work_is_refused_at_definition(guard: Guard, fields: dict[str, Any], sentence: str) -> None:
    """By name, before anything has run."""
    with pytest.raises(ConfigurationError, match=sentence):
        guard.tool("pay", **fields)(lambda card, customer: None)


def test_a_compensation_named_by_a_string_is_refused_before_the_body(guard: Guard) -> None:
    """It is looked up when the first body is about to run, and that is not too late."""
    guard.tool("refund")(lambda card: None)
    pay = guard.tool("pay", compensate="refund", redact=["card"])(lambda card: pytest.fail("ran"))
    with pytest.raises(ConfigurationError, match="compensation 'refund' needs 'card'"):
        pay("c-111")


def test_nobody_takes_back_what_another_source_redacts(tmp_path: Path, store_url: str) -> None:
    """Sources only add to each other."""
    file = tmp_path / "sagaspan.toml"
    file.write_text('[tools.pay]\nredact = ["pin"]\n')
    assert Policy(redact=()).over(Policy(redact=("card",))).redact == ("card",)
    with Guard(store_url, policies=file) as guard:
        guard.tool("pay", redact=["card"])(lambda card, pin: None)("c-111", "1234")
        (call,) = guard.calls.list(open=False)
    assert all(str(value).startswith("<redacted") for value in call.args.values())


def test_a_key_made_of_an_argument_with_redacted_fields_is_hashed(guard: Guard, clean: Callable[..., None]) -> None:
    """A function could have put anything into it."""
    ran = []
    pay = guard.tool("pay", key=lambda customer: customer["ssn"], redact=["customer.ssn"])(
        lambda customer: ran.append(1)
    )
    for _ in range(2):
        pay({"ssn": OTHERS[1]})
    assert ran == [1]
    clean()


# -- a policy that changes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "order"])
def test_what_was_done_before_a_field_was_redacted_is_not_done_again(store_url: str, key: str | None) -> None:
    """The same run, and the same business key, go on with a version that redacts more."""
    ran: list[str] = []

    def declare(guard: Guard, **fields: Any) -> Callable[..., Any]:
        return guard.tool("pay", effect="write", key=key, **fields)(lambda order, card: ran.append(order))

    with Guard(store_url) as before, before.run(id="a") as run:
        declare(before)("o-1", "c-111")
        run.pause()
    with Guard(store_url) as after, after.run(id="a"):
        declare(after, redact=["card"])("o-1", "c-111")
    assert ran == ["o-1"]


def test_a_key_that_was_no_hash_before_is_the_same_key(store_url: str) -> None:
    """A key made of an argument with redacted fields is hashed from then on; what was done under it is not repeated."""
    ran: list[int] = []
    for fields in ({}, {"redact": ["customer.ssn"]}):
        with Guard(store_url) as guard:
            pay = guard.tool("pay", key=lambda customer: customer["id"], **fields)(lambda customer: ran.append(1))
            pay({"id": "c-1", "ssn": "123"})
    assert ran == [1]


# -- the secret ------------------------------------------------------------------------------------------------


def _pays(url: str) -> str:
    with Guard(url) as guard:
        guard.tool("pay", key="order", redact=["card"])(lambda order, card: None)("o-1", "c-111")
        return str(guard.calls.list(open=False)[0].args["card"])


def test_processes_share_the_secret_of_the_environment(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no file is made; one that can be guessed is refused, and so is another one for the same ledger."""
    monkeypatch.setenv("SAGASPAN_SECRET", "short")
    with pytest.raises(ConfigurationError, match="SAGASPAN_SECRET has 5 characters"):
        _pays(store_url)
    monkeypatch.setenv("SAGASPAN_SECRET", "a" * 64)
    assert _pays(store_url) == _pays(store_url)
    assert not (tmp_path / "ledger.db.secret").exists()
    monkeypatch.setenv("SAGASPAN_SECRET", "b" * 64)
    with pytest.raises(ConfigurationError, match="written with another secret than that of SAGASPAN_SECRET"):
        _pays(store_url)
    assert "b" * 64 not in CliRunner().invoke(cli, ["doctor", "--json"]).output


@pytest.mark.of_sqlite("the secret beside its file")
def test_a_secret_that_is_gone_is_not_made_anew(store_url: str, tmp_path: Path) -> None:
    """With another one, what was done would look new."""
    _pays(store_url)
    (tmp_path / "ledger.db.secret").unlink()
    with pytest.raises(ConfigurationError, match=r"is not in .*; restore it.*SAGASPAN_SECRET"):
        _pays(store_url)


def _asked_on(url: str, card: str) -> tuple[str, ...]:
    """What ``card`` is paid with once somebody agreed; the ids of the requests without that."""
    with Guard(url, approver="inbox") as guard:
        pay = guard.tool("pay", key="order", redact=["card"], approve=True)(lambda order, card: card)
        with contextlib.suppress(ApprovalPending), guard.run(id="r"):
            return ("paid", pay("o-1", card))
        return tuple(request.id for request in guard.approvals.list())


def test_what_is_approved_on_one_host_is_asked_for_on_another(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They have one secret: who makes it says that all need it, and who lacks it is refused and makes none."""
    monkeypatch.setenv("SAGASPAN_HOME", str(tmp_path / "a" / ".sagaspan"))
    (request,) = _asked_on(postgres.url, CANARY)
    secret = tmp_path / "a" / ".sagaspan" / "secret"
    assert (stat.S_IMODE(secret.stat().st_mode), stat.S_IMODE(secret.parent.stat().st_mode)) == (0o600, 0o700)
    assert [str(secret) in entry.message for entry in caplog.records] == [True]
    other = tmp_path / "b" / ".sagaspan"
    monkeypatch.setenv("SAGASPAN_HOME", str(other))
    with pytest.raises(ConfigurationError, match=rf"is not in {other}/secret; .*copy it from a host.*SAGASPAN_SECRET"):
        _asked_on(postgres.url, CANARY)
    assert not other.exists()
    monkeypatch.setenv("SAGASPAN_SECRET", secret.read_text().strip())
    with Guard(postgres.url) as guard:
        guard.approvals.approve(request, by="ada")
    assert _asked_on(postgres.url, CANARY) == ("paid", CANARY)
    assert len(caplog.records) == 1


@pytest.mark.of_sqlite("the secret beside its file")
def test_a_secret_that_others_can_read_is_refused(store_url: str, tmp_path: Path) -> None:
    """As ssh refuses such a key."""
    _pays(store_url)
    (tmp_path / "ledger.db.secret").chmod(0o644)
    with pytest.raises(ConfigurationError, match="others can read the secret"):
        _pays(store_url)


@pytest.mark.of_sqlite("the secret beside its file")
def test_processes_that_start_at_once_agree_on_one(worker: Any, tmp_path: Path) -> None:
    """Each makes one, and all use the first."""
    script = """
    pay = guard.tool("pay", key="order", redact=["card"])(lambda order, card: effect(order))
    while not effects.with_name("go").exists():
        time.sleep(0.001)
    pay("o-1", "c-111")
    """
    processes = [worker.start(script) for _ in range(6)]
    (tmp_path / "go").write_text("")
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert worker.effects == ["o-1"]
    assert [path.name for path in tmp_path.glob("*.secret*")] == ["ledger.db.secret"]


@pytest.mark.of_sqlite("the secret beside its file")
def test_a_guard_without_any_of_it_asks_for_no_secret(guard: Guard, tmp_path: Path) -> None:
    """Nothing is made, and nothing is asked of the store."""
    asked = []
    store = guard._store
    facts = store.facts
    store.facts = lambda namespace: asked.append(namespace) or facts(namespace)  # type: ignore[method-assign]
    with guard.run(id="a"):
        guard.tool("pay", effect="write")(lambda order: order)("o-1")
    assert asked == []
    assert not store.seal.active
    assert list(tmp_path.glob("*.secret")) == []
    connection = sqlite3.connect(tmp_path / "ledger.db")
    assert connection.execute("select count(*) from facts").fetchone() == (0,)
    connection.close()


# -- what is redacted comes back -------------------------------------------------------------------------------


CARD = "4111-secret-2222"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (lambda card: card, None),
        (lambda card: {"id": 7, "card": card}, {"id": 7}),
        (lambda card: {"id": 7, "echo": f"charged {card} today"}, {"id": 7}),
        (lambda card: {"id": 7, "deep": [{"who": ("x", {card})}]}, {"id": 7}),
        (lambda card: {"id": 7, "by": {card: "ok"}}, {"id": 7}),
        (lambda card: {"id": 7, "raw": f"<{card}>".encode()}, {"id": 7}),
        (lambda card: {"id": 7, "body": json.dumps({"card": card})}, {"id": 7}),
        (lambda card: {"id": 7, "by": {1: card, (2, card): 3}}, {"id": 7}),
        (lambda card: Customer(name="Ann", ssn=card), {"name": "Ann"}),
    ],
)
def test_a_redacted_argument_that_comes_back_in_a_result_is_not_recorded(
    guard: Guard, caller: Caller, recorded: Any, body: Callable[[str], Any], left: dict[str, Any] | None
) -> None:
    """Wherever its text is; the caller gets the result, and nobody gets it from the record."""
    pay = caller.tool(guard, "pay", effect="write", redact=["card"])(body)

    async def job() -> None:
        async with caller.run(guard, id="a"):
            assert await caller.call(pay, CARD) == body(CARD)
            with pytest.raises(OutcomeUnknown, match="redacted") as replayed:
                await caller.call(pay, CARD)
            assert replayed.value.tool_ran == "yes"

    caller.play(job)
    (call,) = guard.runs.get("a").calls
    assert left is None or {name: call.result[name] for name in left} == left
    assert not [row for row in recorded() if "4111-secret" in str(row)]


@pytest.mark.parametrize(
    ("argument", "result", "is_kept"),
    [
        ("", "", True), ("no", {"said": "no"}, True), (True, {"ok": True, "text": "True"}, True), (7, [7, "7"], True),
        (None, [None, "None"], True), ("abc", "abcdef", True), ("abc", "an abc.", False), (1234, 91234, True),
        (1234, "o-91234, 1234.5", True), (1234, "pin 1234.", False), (1234, 1234, False), ("1234", [1234], False),
        ("1234", "o-91234", True), (2**60, 2**60, False), ("word", "swordfish", False),
    ],
)  # fmt: skip
def test_a_trivial_value_is_not_looked_for_in_results(guard: Guard, argument: Any, result: Any, is_kept: bool) -> None:
    """Less than three characters never, three and numbers as a whole, and more anywhere."""
    guard.tool("tell", effect="read", redact=["value"])(lambda value: result)(argument)
    (call,) = guard.calls.list(open=False)
    assert (call.result == result) is is_kept


def test_a_value_within_a_redacted_argument_is_looked_for(guard: Guard) -> None:
    """A part of it is as secret as all of it, and so is a pydantic secret; what is not redacted stays."""
    guard.tool("pay", effect="read", redact=["customer"])(lambda customer, login: [customer["ssn"], "n-1", login])(
        {"ssn": CARD}, SecretStr("hidden-login")
    )
    guard.tool("echo", effect="read")(lambda login: f"with {login.get_secret_value()}")(SecretStr("hidden-login"))
    echo, pay = guard.calls.list(open=False)
    assert [str(one) for one in pay.result] == ["<redacted>", "n-1", "<redacted>"]
    assert str(echo.result) == "<redacted>"


def test_what_a_probe_and_a_person_say_it_returned_has_no_redacted_argument(guard: Guard, recorded: Any) -> None:
    """Also in another process, which knows only its hash: whole values and whole words."""

    def lost(card: str) -> None:
        raise TimeoutError

    probe = lambda: Applied({"id": 7, "card": CARD, "said": f"paid with {CARD}"})  # noqa: E731
    probed = guard.tool("probed", effect="write", redact=["card"], probe=probe, error_means="unknown")(lost)
    asked = guard.tool("asked", effect="write", redact=["card"], error_means="unknown")(lost)
    for tool in (probed, asked):
        with pytest.raises(TimeoutError), guard.run(id=f"run-{tool is asked}"):
            tool(CARD)
    (call,) = guard.runs.get("run-True").calls
    guard.calls.resolve(call.id, "happened", result={"id": 8, "card": CARD}, note="saw it")
    guard.recover()
    found = {one.tool: one for run in ("run-True", "run-False") for one in guard.runs.get(run).calls}
    assert (found["asked"].result["id"], str(found["asked"].result["card"])) == (8, "<redacted>")
    assert found["probed"].result["id"] == 7
    assert not [row for row in recorded() if CARD in str(row)]


def test_a_compensation_is_not_run_with_a_stand_in_for_the_result(guard: Guard, recorded: Any) -> None:
    """One that needs a result that was not recorded is given up in one sentence; what is beside it, it gets."""
    undone: list[Any] = []
    refund = lambda result: undone.append(result["id"])  # noqa: E731
    whole = guard.tool("whole", effect="write", redact=["card"], compensate=refund)(lambda card: f"charged {card}")
    part = guard.tool("part", effect="write", redact=["card"], compensate=refund)(lambda card: {"id": 7, "card": card})
    with pytest.raises(CompensationFailed, match="undone part; NOT undone"), guard.run(id="a"):
        part(CARD)
        whole(CARD)
        raise LookupError
    assert undone == [7]
    history = guard._store.audit_of("default", "a")
    assert any("'result', which holds a redacted argument" in (row.detail or "") for row in history)
    assert not [row for row in recorded() if CARD in str(row)]


def test_a_canary_that_a_tool_returns_is_in_no_file(traced: Guard, home: Path, caller: Caller, caplog: Any) -> None:
    """The ledger, its log, the spans with content and the lines of the log."""
    caplog.set_level(logging.DEBUG)

    @caller.tool(traced, effect="write", redact=["card", "pin"], compensate=lambda result: {"undone": CANARY})
    def pay(card: str, pin: int, memo: str) -> dict[str, Any]:
        return {"card": card, "echo": f"charged {card} {pin}", "deep": [{"pin": pin}]}

    async def job() -> None:
        await caller.call(pay, CANARY, int(OTHERS[1]), "none")
        with pytest.raises(LookupError):
            async with caller.run(traced, id="a"):
                result = await caller.call(pay, CANARY, int(OTHERS[1]), "none")
                raise LookupError(f"no room for {result}")

    caller.play(job)
    with contextlib.closing(traced._store):
        check_clean(home, caplog.text)
