"""Threads for the steps of asynchronous calls: as many as are needed, and none is left undone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import pytest

from sagaspan._threads import MOST, Threads, threads


def test_steps_are_done_side_by_side_and_later_ones_wait() -> None:
    """No more than ``MOST`` at once; each is done once."""
    mine, together, done, lock = Threads(), threading.Barrier(MOST + 1), [], threading.Lock()

    def step(number: int) -> None:
        if number < MOST:
            together.wait(60)
            together.wait(60)
        with lock:
            done.append((number, threading.current_thread()))

    for number in range(3 * MOST):
        mine.submit(lambda number=number: step(number))  # type: ignore[misc]
    together.wait(60)
    assert done == []
    together.wait(60)
    mine._finish()
    assert sorted(number for number, _ in done) == list(range(3 * MOST))
    assert len({thread for _, thread in done}) <= MOST


def test_the_thread_that_was_idle_last_goes_on() -> None:
    """One after the other, they are done by one thread."""
    mine, seen, told = Threads(), set(), threading.Semaphore(0)

    def step() -> None:
        seen.add(threading.get_ident())
        told.release()

    for _ in range(50):
        mine.submit(step)
        assert told.acquire(timeout=60)
        while not mine._idle:
            pass
    mine._finish()
    assert len(seen) == 1


def test_a_step_that_fails_is_logged_and_no_other_suffers(caplog: pytest.LogCaptureFixture) -> None:
    """Its thread goes on with the next."""
    mine, done = Threads(), threading.Event()
    with caplog.at_level(logging.ERROR, logger="sagaspan"):
        mine.submit(lambda: 1 / 0)
        mine.submit(done.set)
        assert done.wait(60)
        mine._finish()
    assert "ZeroDivisionError" in caplog.text


AT_THE_END = """
import os, sys, threading, time
from sagaspan._threads import threads
def late():
    time.sleep(0.3)
    threads().submit(lambda: print("later", flush=True))
    print("done", flush=True)
threads().submit(late)
if sys.argv[1] == "fork" and os.fork() == 0:
    threads().submit(lambda: print("child", flush=True))
    sys.exit()
"""


@pytest.mark.parametrize(
    "how", ["alone", pytest.param("fork", marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"))]
)
def test_a_program_does_not_end_before_its_last_step(how: str) -> None:
    """Nor does a forked child, which has threads of its own."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END, how], capture_output=True, text=True, timeout=300)
    assert sorted(done.stdout.split()) == (["child"] if how == "fork" else []) + ["done", "later"], done.stderr
    assert done.stderr == ""


def test_all_of_a_process_use_the_same() -> None:
    """However many loops there are."""
    assert threads() is threads()
