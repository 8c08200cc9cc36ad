"""A changed policy file holds from the next call on, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import BudgetExceeded, Guard, LoopDetected, NotApplied, PolicyDenied
from sagaspan.ledger.stale_policies import StalePolicy, stale_policies
from sagaspan.testing import FrozenClock, frozen_clock
from tests.conftest import Caller

DENY = "[[rules]]\ntools = 'pay'\nwhen = 'amount > 10'\naction = 'deny'\n"
BROKEN = ["[[rules]\n", DENY.replace("deny", "forbid"), DENY.replace("amount", "amont"), "[tools.pay]\ntimout = 3",
          "[budgets]\n'usr:1' = '1 USD'", "[guard]\nloop = -1", "[prices]\nx = 3", "[tools.pay]\nkey = 'ordr'",
          "[[notify]]\nurl = 'https://x.example'\nsecret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'",
          "[tools.pay]\ndefer = true", "[tools.pay]\ncompensate = 'nobody'"]  # fmt: skip


class Shop:
    """A guard over a policy file, a clock that stands still, and a tool that pays."""

    def __init__(self, caller: Caller, store_url: str, file: Path, clock: FrozenClock, text: str) -> None:
        self.file, self.clock, self.caller = file, clock, caller
        self.write(text)
        self.guard = Guard(store_url, policies=file)
        self.pay_ = caller.tool(self.guard, "pay", effect="write", repeat="new")(lambda amount: amount)

    def write(self, text: str) -> None:
        """Save the file, a moment later than before, and leave it alone for a second."""
        self.file.write_text(text)
        self.touched()
        self.clock.advance(1)

    def touched(self, ahead: int = 0) -> None:
        """The file was written now, by a clock that is ``ahead`` seconds."""
        now = (self.clock.now_us() + ahead * 1_000_000) * 1000
        os.utime(self.file, ns=(now, now))

    def pay(self, amount: int) -> int:
        """Call the tool."""
        return self.caller.play(lambda: self.caller.call(self.pay_, amount))


@pytest.fixture
def shop(caller: Caller, store_url: str, tmp_path: Path) -> Iterator[Callable[[str], Shop]]:
    """A shop whose file begins with a text."""
    with frozen_clock() as clock:
        yield lambda text="": Shop(caller, store_url, tmp_path / "sagaspan.toml", clock, text)


def test_a_changed_file_holds_from_the_next_call_on(shop: Callable[..., Shop]) -> None:
    """Rules and fields of tools that were declared long ago; taken back, it is as before."""
    changing = shop()
    version = changing.guard._engine.policy.version
    assert changing.pay(50) == 50
    changing.write(DENY + "[tools.pay]\nmax_calls = 3")
    for _ in range(2):
        with pytest.raises(PolicyDenied):
            changing.pay(50)
    assert [changing.pay(amount) for amount in (1, 2)] == [1, 2]
    with pytest.raises(BudgetExceeded):
        [changing.pay(amount) for amount in (3, 4, 5)]
    changing.write("# nothing")
    assert [changing.pay(amount) for amount in (50, 4, 5)] == [50, 4, 5]
    used = {call.policy for call in changing.guard.calls.list(open=False)}
    assert len(used) == 2
    assert version in used


def test_each_claim_says_under_which_content_it_was_made(shop: Callable[..., Shop]) -> None:
    """One that failed and is claimed again under another content: the record has the last, the audit trail both."""
    changing = shop("# first")
    before = changing.guard._engine.policy.version

    def once(n: int) -> int:
        if not tried:
            tried.append(n)
            raise NotApplied
        return n

    tried: list[int] = []
    once_ = changing.caller.tool(changing.guard, "once", effect="write")(once)

    async def job() -> None:
        async with changing.caller.run(changing.guard, id="order"):
            with pytest.raises(NotApplied):
                await changing.caller.call(once_, 1)
            changing.write(DENY)
            assert await changing.caller.call(once_, 1) == 1

    changing.caller.play(job)
    after = changing.guard._engine.policy.version
    (call,) = changing.guard.calls.list(open=False)
    claims = [row["digest"] for row in changing.guard.audit.rows("order") if row["event"] == "claim"]
    assert (call.policy, claims) == (after, [before, after])
    assert changing.guard.audit.verify().ok


def test_budgets_and_defaults_hold_too(shop: Callable[..., Shop]) -> None:
    """Nothing of the file stays behind: the budget of a run, equal calls, budgets of scopes, prices."""
    changing = shop()
    changing.write(
        "[guard]\nbudget = '2 calls'\nloop = 1\n[budgets]\n'user:42' = '1 calls'\n[prices]\nm = {input = 1, output = 1}"
    )
    changing.pay(1)
    with pytest.raises(LoopDetected):
        changing.pay(1)
    assert changing.guard.prices.price_of.__self__ is changing.guard.prices

    async def job(*amounts: int, **run: str) -> None:
        async with changing.caller.run(changing.guard, "r", **run):
            for amount in amounts:
                await changing.caller.call(changing.pay_, amount)

    for amounts, run in (((1, 2, 3), {}), ((5, 6), {"user": "42"})):
        with pytest.raises(BudgetExceeded):
            changing.caller.play(lambda amounts=amounts, run=run: job(*amounts, **run))


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_edit_keeps_the_old_one_and_says_so(
    shop: Callable[..., Shop], text: str, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Once in the log, until somebody mends it; nothing of the broken one holds."""
    changing = shop(DENY)
    version = changing.guard._engine.policy.version
    changing.write(text)
    for _ in range(3):
        changing.clock.advance(2)
        assert changing.pay(5) == 5
        with pytest.raises(PolicyDenied):
            changing.pay(50)
    assert changing.guard._engine.policy.version == version
    assert changing.guard.policy_problem
    assert len([said for said in warnings_of_sagaspan() if "cannot be put in force" in said]) == 1
    changing.write("# nothing")
    assert changing.pay(50) == 50
    assert changing.guard.policy_problem is None


def test_other_processes_see_that_a_broken_edit_is_not_in_force(shop: Callable[..., Shop]) -> None:
    """As long as a process may go by the older content; mended, it is taken back."""
    changing = shop(DENY)
    store = changing.guard._engine.store

    def told() -> list[StalePolicy]:
        return [*stale_policies(store, "default")]

    assert (changing.pay(1), told()) == (1, [])
    changing.write("[[rules]\n")
    assert changing.pay(2) == 2
    (said,) = told()
    assert (said.path, said.version) == (str(changing.file), changing.guard._engine.policy.version)
    assert "not valid TOML" in said.problem
    ((name, value),) = ((name, value) for name, value in store.facts("default").items() if "stale" in name)
    boot, pid_namespace, _, *rest = said.owner.split(":")
    for other, holds in ((":".join((boot, pid_namespace, "4194305", *rest)), False), ("elsewhere", True)):
        assert store.put_fact("default", name, value.replace(said.owner, other), expected=store.facts("default")[name])
        assert bool(told()) is holds
    changing.clock.advance(24 * 3600)
    assert told() == []
    changing.write(DENY)
    assert (changing.pay(3), store.facts("default")[name]) == (3, "")


def test_a_file_that_is_gone_keeps_what_it_said(shop: Callable[..., Shop]) -> None:
    """Nobody lifts a rule by taking the file away."""
    changing = shop(DENY)
    changing.pay(1)
    changing.file.unlink()
    changing.clock.advance(2)
    with pytest.raises(PolicyDenied):
        changing.pay(50)
    assert "cannot be read" in (changing.guard.policy_problem or "")


def _become_a_pipe(file: Path) -> None:
    os.mkfifo(file)


def _become_a_link_to_itself(file: Path) -> None:
    file.symlink_to(file.name)


def _become_a_deep_key(file: Path) -> None:
    file.write_text(".".join(["a"] * 60_000) + " = 1\n")


def _become_a_large_condition(file: Path) -> None:
    file.write_text(DENY.replace("amount > 10", "+".join(["amount"] * 20_000) + " > 10"))


@pytest.mark.parametrize(
    "become", [_become_a_pipe, _become_a_link_to_itself, _become_a_deep_key, _become_a_large_condition]
)
def test_a_file_that_becomes_unreadable_hangs_no_call(
    shop: Callable[..., Shop], become: Callable[[Path], None], warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """The last good content stays in force, and one line of the log says so."""
    changing = shop(DENY)
    assert changing.pay(1) == 1
    changing.file.unlink()
    become(changing.file)
    for _ in range(3):
        changing.clock.advance(2)
        assert changing.pay(5) == 5
        with pytest.raises(PolicyDenied):
            changing.pay(50)
    assert changing.guard.policy_problem
    assert len([said for said in warnings_of_sagaspan() if "cannot be put in force" in said]) == 1
    changing.file.unlink()
    changing.write("# nothing")
    assert changing.pay(50) == 50


@pytest.mark.parametrize("part", ["", "[tools.pay]\nmax_calls = 99\n"])
def test_what_is_being_written_does_not_hold(shop: Callable[..., Shop], part: str) -> None:
    """Neither the moment in which the file is empty nor a half of it that would be valid, however often it is saved."""
    changing = shop(DENY)
    for _ in range(3):
        changing.clock.advance(1)
        changing.file.write_text(part)
        changing.touched()
        with pytest.raises(PolicyDenied):
            changing.pay(50)
        changing.clock.advance(0.7)
        changing.file.write_text(part + DENY)
        changing.touched()
        changing.clock.advance(0.7)
        with pytest.raises(PolicyDenied):
            changing.pay(50)


def test_a_file_that_stays_empty_keeps_what_it_said(shop: Callable[..., Shop]) -> None:
    """Whoever saved it was interrupted; a comment says that nothing is to hold."""
    changing = shop(DENY)
    changing.write("\n")
    for _ in range(3):
        with pytest.raises(PolicyDenied):
            changing.pay(50)
        changing.clock.advance(1)
    assert "is empty" in (changing.guard.policy_problem or "")
    changing.write("# nothing")
    assert changing.pay(50) == 50


def test_a_file_of_a_clock_that_is_ahead_holds_on_the_second_look(shop: Callable[..., Shop]) -> None:
    """A share that another machine serves."""
    changing = shop()
    changing.file.write_text(DENY)
    changing.touched(ahead=3600)
    changing.clock.advance(1)
    assert changing.pay(50) == 50
    changing.clock.advance(1)
    with pytest.raises(PolicyDenied):
        changing.pay(51)


def test_what_is_written_while_it_is_read_waits(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that were read are those of the stamp, or they do not hold."""
    from sagaspan import _policy_watch as watch

    changing, read = shop(DENY), watch.PolicyFile.read

    def overtaken(path: Path) -> object:
        found = read(path)
        path.write_text("# nothing\n" + DENY)
        return found

    changing.write("# nothing")
    monkeypatch.setattr(watch.PolicyFile, "read", overtaken)
    with pytest.raises(PolicyDenied):
        changing.pay(50)


def test_it_is_looked_at_once_a_second(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every call."""
    from sagaspan import _policy_watch as watch

    changing, looks, stamp_of = shop(), [], watch.stamp_of
    monkeypatch.setattr(watch, "stamp_of", lambda path: looks.append(path) or stamp_of(path))
    changing.clock.advance(1)
    for amount in range(5):
        changing.pay(amount)
    assert len(looks) == 1
    changing.clock.advance(1)
    changing.pay(9)
    assert len(looks) == 2


def test_other_spelling_is_no_other_policy(
    shop: Callable[..., Shop], warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """A comment changes nothing, and nobody is told."""
    changing = shop(DENY)
    changing.write("# why\n" + DENY)
    changing.pay(1)
    assert not [said for said in warnings_of_sagaspan() if "is in force instead" in said]


def test_the_span_says_that_an_older_content_is_in_force(
    store_url: str, tmp_path: Path, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    """For whoever wonders why an edit does nothing."""
    file = tmp_path / "p.toml"
    file.write_text(DENY)
    with frozen_clock() as clock, Guard(store_url, policies=file, tracer_provider=provider) as guard:
        pay = guard.tool("pay")(lambda amount: amount)
        pay(1)
        file.write_text("[oops")
        os.utime(file, ns=(clock.now_us() * 1000, clock.now_us() * 1000))
        clock.advance(1)
        pay(2)
    first, second = (span.attributes for span in spans.get_finished_spans())
    assert ("sagaspan.policy.stale" in first, second["sagaspan.policy.stale"]) == (False, True)
