"""Processes whose wall clocks are an hour off: no lease, no approval and no recovery is fooled, on any store.

On SQLite all processes are of one machine, but may be of another boot of it, or in a container. What expires there does
so by the clock of that machine; on a server by the server's, and by no other.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sagaspan import Guard
from tests.conftest import Worker
from tests.nursery import Forked
from tests.proofs import ON_A_SERVER

SECONDS = 60.0
LONG, SHORT = "30", "0.5"  # a lease that is not over in a test, and one that is over soon

SKEWED = """
true_time = time.time_ns
time.time_ns = lambda: true_time() + {hours} * 3600 * 10**9
"""
PLACES = {
    "container": "from sagaspan import _owner\n_owner._pid_namespace = lambda: 'elsewhere'\n",
    "machine": "from sagaspan import _owner\n_owner._boot_id = lambda: 'another-boot'\n",
}
HOLDER = """
@guard.tool("pay", effect="write")
def pay(n):
    effect("pay")
    print("in", flush=True)
    sys.stdin.readline()
    return "paid"
with guard.run("job", id="a", on_interrupt="hold"):
    print(pay(1), flush=True)
"""
ONCE = "print(bool(guard.recover(dry_run=True)))\n"  # which waits for nobody's lease to end
UNTIL_HELD = f"""
until = time.monotonic() + {SECONDS}
while not (report := guard.recover()).needs_human and time.monotonic() < until:
    time.sleep(0.05)
print(*(run.id for run in report.needs_human))
"""
PAYMENT = """
guard = Guard(os.environ["TEST_STORE"], approver="inbox")
@guard.tool("pay", approve=True, approval=Approval(expires_in=1800))
def pay(n):
    effect("pay")
try:
    with guard.run(id="r"):
        pay(1)
except ApprovalPending as error:
    print(error.approval_id)
"""
APPROVE = "print(guard.approvals.approve('{}', by='ann').state)\n"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Where the holder is: nobody can prove its death."""
    return PLACES[request.param]


@pytest.fixture
def holders(worker: Worker) -> Iterator[list[Forked]]:
    """Those that were started: taken away in the end."""
    started: list[Forked] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def _holds(worker: Worker, script: str, lease: str) -> Forked:
    process = worker.start(script + HOLDER, SAGASPAN_LEASE_SECONDS=lease)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


@pytest.mark.parametrize(("holder", "looker"), [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, 1)])
def test_a_lease_holds(worker: Worker, holders: list[Forked], place: str, holder: int, looker: int) -> None:
    """Whoever of them is wrong, who works and who looks: nobody would take the run of a live holder, and it ends it."""
    holders.append(_holds(worker, SKEWED.format(hours=holder) + place, LONG))
    looked = worker.run(SKEWED.format(hours=looker) + ONCE)
    assert looked.stdout == "False\n", looked.stderr
    out, err = holders[0].communicate("\n", timeout=SECONDS)
    assert out == "paid\n", err
    assert worker.effects == ["pay"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_death_is_noticed(worker: Worker, holders: list[Forked], place: str, hours: int) -> None:
    """However far the clocks of the dead and of who looks are apart, its lease ends, and nothing is run again."""
    holders.append(_holds(worker, SKEWED.format(hours=hours) + place, SHORT))
    holders[0].kill()
    looked = worker.run(SKEWED.format(hours=-hours) + UNTIL_HELD, SAGASPAN_LEASE_SECONDS=SHORT)
    assert looked.stdout == "a\n", looked.stderr
    with Guard(worker.store_url) as guard:
        (call,) = guard.calls.list()
        assert call.state == "unknown"
    assert worker.effects == ["pay"]


@pytest.mark.parametrize("hours", [-1, 1] if ON_A_SERVER else [0])
def test_an_approval_lives_as_long_as_it_says(worker: Worker, hours: int) -> None:
    """Half an hour, whatever the clocks of who asks, who decides and who runs say."""
    asked = worker.run(SKEWED.format(hours=hours) + PAYMENT)
    decided = worker.run(APPROVE.format(asked.stdout.strip()))
    assert decided.stdout == "approved\n", decided.stderr
    ran = worker.run(SKEWED.format(hours=-hours) + PAYMENT)
    assert (ran.stdout, worker.effects) == ("", ["pay"]), ran.stderr


@pytest.mark.parametrize("hours", [-1, 1] if ON_A_SERVER else [0])
def test_an_approval_lives_no_longer_than_it_says(worker: Worker, hours: int) -> None:
    """One that has expired is expired for everybody, an hour behind and an hour ahead."""
    short = PAYMENT.replace("1800", "0.2")
    asked = worker.run(SKEWED.format(hours=hours) + short)
    decided = worker.run(SKEWED.format(hours=-hours) + "time.sleep(0.2)\n" + APPROVE.format(asked.stdout.strip()))
    assert "is expired" in decided.stderr
    assert worker.effects == []
