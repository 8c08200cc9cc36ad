"""How a process is named as the holder of what it does."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sagaspan import _owner as owner


def test_threads_that_begin_at_once_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would make one with a random part of its own, and of all but one nobody would know any more whose it is."""
    boot, together = owner._boot_id(), threading.Barrier(4)

    def at_once() -> str:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(2)
        return boot

    monkeypatch.setattr(owner, "_names", {})
    monkeypatch.setattr(owner, "_boot_id", at_once)
    with ThreadPoolExecutor(4) as crowd:
        names = list(crowd.map(lambda _: owner.this_process(), range(4)))
    assert all(map(owner.is_self, names)), names
