"""The sink: every sampled span that ended is a whole line on disk, and nothing of it reaches the traced
program.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, StaticSampler

from sagaspan.exceptions import ConfigurationError
from sagaspan.telemetry import JsonLinesSpanProcessor
from sagaspan.telemetry import sink as sink_module
from sagaspan.telemetry.retention import ROTATE_SECONDS, Retention, forget_old, left_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sagaspan.telemetry.sink import Fsync

SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return tmp_path / "home" / "traces"


@pytest.fixture
def sink(traces: Path) -> Iterator[JsonLinesSpanProcessor]:
    processor = JsonLinesSpanProcessor(traces)
    yield processor
    processor.shutdown()


def provider_with(processor: JsonLinesSpanProcessor, **arguments: object) -> TracerProvider:
    resource = Resource({"service.name": "my shop/1"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False, **arguments)  # type: ignore[arg-type]
    provider.add_span_processor(processor)
    return provider


def names(directory: Path) -> Counter[str]:
    """The span names in every file; fails if any line is not whole JSON."""
    found: Counter[str] = Counter()
    for path in directory.glob("*.jsonl"):
        text = path.read_bytes()
        assert text.endswith(b"\n")
        for line in text.splitlines():
            found[json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"]] += 1
    return found


def test_a_span_is_on_disk_when_it_has_ended(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """No flush and no shutdown is needed to read a span that ended."""
    with provider_with(sink).get_tracer("t").start_as_current_span("pay"):
        assert not traces.exists()
    assert names(traces) == {"pay": 1}
    assert sink.force_flush()


def test_a_span_is_one_write(sink: JsonLinesSpanProcessor, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One ``write(2)`` of its whole line, also of a long one, and none at its start: so nothing can tear it."""
    written: list[bytes] = []
    write = os.write

    def counted(descriptor: int, data: bytes) -> int:
        written.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(sink_module.os, "write", counted)
    tracer = provider_with(sink).get_tracer("t")
    for number in range(3):
        tracer.start_span(f"s{number}", attributes={f"key-{n}": "x" * 4000 for n in range(100)}).end()
        assert len(written) == number + 1
    assert [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] for line in written] == [
        "s0", "s1", "s2",
    ]  # fmt: skip
    assert b"".join(written) == b"".join(path.read_bytes() for path in traces.glob("*.jsonl"))


def test_files_are_private_and_named(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """The directory is 0700, the file 0600, and its name cannot leave the directory."""
    provider_with(sink).get_tracer("t").start_span("pay").end()
    (path,) = traces.iterdir()
    assert re.fullmatch(rf"my_shop_1-\d{{8}}T\d{{6}}Z-{os.getpid()}-[0-9a-f]{{8}}\.jsonl", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(traces.stat().st_mode) == 0o700
    assert sink.path == path


def test_unsampled_spans_are_not_written(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """What the sampler drops leaves no file, nor does what it only records."""

    class RecordOnly(StaticSampler):
        def __init__(self) -> None:
            super().__init__(Decision.RECORD_ONLY)

    for sampler in (ALWAYS_OFF, RecordOnly()):
        provider_with(sink, sampler=sampler).get_tracer("t").start_span("pay").end()
    assert not traces.exists()
    assert sink.dropped == 0


def test_a_file_emptied_by_log_rotation_goes_on_without_a_hole(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """Every line goes to the end of the file, wherever that is now."""
    tracer = provider_with(sink).get_tracer("t")
    tracer.start_span("before").end()
    os.truncate(next(traces.iterdir()), 0)
    tracer.start_span("after").end()
    assert names(traces) == {"after": 1}


def test_threads_share_one_file_without_tearing_lines(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """Eight threads that begin at once write one file in which every line is whole."""
    tracer = provider_with(sink).get_tracer("t")
    barrier = threading.Barrier(8)

    def work(name: str) -> None:
        barrier.wait()
        for _ in range(250):
            tracer.start_span(name, attributes={"text": "x" * 500}).end()

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(traces) == {f"t{number}": 250 for number in range(8)}
    assert len(list(traces.iterdir())) == 1


def test_a_forked_child_writes_its_own_file(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """After a fork parent and child write side by side, each under its own process id, and nothing doubles."""
    tracer = provider_with(sink).get_tracer("t")
    tracer.start_span("before").end()
    child = os.fork()
    if child == 0:
        tracer.start_span("child").end()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    tracer.start_span("parent").end()
    assert names(traces) == {"before": 1, "child": 1, "parent": 1}
    assert {path.name.split("-")[2] for path in traces.iterdir()} == {str(os.getpid()), str(child)}


_WRITER = """
import sys
from opentelemetry.sdk.trace import TracerProvider
from sagaspan.telemetry import JsonLinesSpanProcessor
provider = TracerProvider()
provider.add_span_processor(JsonLinesSpanProcessor(sys.argv[1]))
tracer = provider.get_tracer("t")
number = 0
while True:
    tracer.start_span(f"span-{number}").end()
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
"""


def test_kill_9_loses_no_span_that_ended(traces: Path) -> None:
    """Every span a killed process said it had ended is in the file, whole; that which it was writing may be cut."""
    command = [sys.executable, "-c", _WRITER, str(traces)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for _ in range(500):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        last = 499 + len(process.stdout.read().splitlines())
    for path in traces.glob("*.jsonl"):
        path.write_bytes(path.read_bytes().rpartition(b"\n")[0] + b"\n")
    written = names(traces)
    assert all(written[f"span-{number}"] == 1 for number in range(last))


def _write_many(directory: str, name: str) -> None:
    tracer = provider_with(JsonLinesSpanProcessor(directory)).get_tracer("t")
    for _ in range(300):
        tracer.start_span(name).end()


def test_processes_write_side_by_side(traces: Path) -> None:
    """Three processes in one directory lose and mix nothing."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(str(traces), f"p{number}")) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert names(traces) == {f"p{number}": 300 for number in range(3)}
    assert len(list(traces.iterdir())) == 3


def test_an_unwritable_directory_is_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The traced program goes on; the loss is counted exactly and logged once, with the place and the remedy."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    sink = JsonLinesSpanProcessor(blocked / "traces")
    tracer = provider_with(sink).get_tracer("t")
    with caplog.at_level(logging.WARNING, logger="sagaspan"):
        threads = [threading.Thread(target=lambda: [tracer.start_span("x").end() for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sink.dropped == 200
    (record,) = caplog.records
    assert str(blocked) in record.getMessage()
    assert "writable" in record.getMessage()


def test_a_value_that_cannot_be_encoded_does_not_raise(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """A hostile value is written as its type name; the span is not lost."""

    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no")

    span = provider_with(sink).get_tracer("t").start_span("x")
    span._attributes._dict["bad"] = Hostile()  # type: ignore[attr-defined]
    span.end()
    assert names(traces) == {"x": 1}
    assert "<Hostile>" in next(traces.iterdir()).read_text()


def test_spans_after_shutdown_are_dropped_and_counted(sink: JsonLinesSpanProcessor, traces: Path) -> None:
    """A span that ends after shutdown is counted, and the descriptor is closed."""
    tracer = provider_with(sink).get_tracer("t")
    tracer.start_span("before").end()
    (path,) = traces.iterdir()
    sink.shutdown()
    tracer.start_span("after").end()
    sink.shutdown()
    assert names(traces) == {"before": 1}
    assert sink.dropped == 1
    assert str(path) not in {str(link.resolve()) for link in Path("/proc/self/fd").iterdir()}


_LIMITED = """
import resource, signal, sys
from opentelemetry.sdk.trace import TracerProvider
from sagaspan.telemetry import JsonLinesSpanProcessor
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sink = JsonLinesSpanProcessor(sys.argv[1])
provider = TracerProvider()
provider.add_span_processor(sink)
tracer = provider.get_tracer("t")
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
for number in range(20):
    tracer.start_span(f"span-{number}", attributes={"text": "x" * 700}).end()
print(sink.dropped)
"""


def test_a_torn_line_ends_its_file(traces: Path) -> None:
    """When the file system takes half a line, the next span starts a new file instead of continuing that
    line.
    """
    command = [sys.executable, "-c", _LIMITED, str(traces)]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True
    )
    whole = sum(path.read_bytes().count(b"\n") for path in traces.iterdir())
    assert whole + int(result.stdout) == 20
    assert whole > 10
    for path in traces.iterdir():
        for line in path.read_bytes().split(b"\n")[:-1]:
            json.loads(line)


def test_a_large_file_is_left_for_a_new_one(traces: Path) -> None:
    """No thread loses or tears a line at that, and of threads that leave it at once all go to the same one."""
    sink = JsonLinesSpanProcessor(traces, max_bytes=20_000)
    tracer = provider_with(sink).get_tracer("t")
    barrier = threading.Barrier(4)

    def work(name: str) -> None:
        barrier.wait()
        for _ in range(100):
            tracer.start_span(name, attributes={"text": "x" * 500}).end()

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.shutdown()
    assert names(traces) == {f"t{number}": 100 for number in range(4)}
    sizes = sorted(path.stat().st_size for path in traces.iterdir())
    assert len(sizes) > 5
    assert sizes[-1] < 40_000
    assert all(size >= 20_000 for size in sizes[1:])


def test_a_file_is_left_after_an_hour(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what tells others that nobody writes to it any more."""
    sink = JsonLinesSpanProcessor(traces)
    tracer = provider_with(sink).get_tracer("t")
    tracer.start_span("before").end()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + ROTATE_SECONDS + 1)
    tracer.start_span("after").end()
    sink.shutdown()
    assert names(traces) == {"before": 1, "after": 1}
    assert len(list(traces.iterdir())) == 2


def a_file(folder: Path, hours: float, *, size: int = 1000, pid: int = 7) -> Path:
    begun = datetime.now(UTC) - timedelta(hours=hours)
    path = folder / f"shop-{begun:%Y%m%dT%H%M%SZ}-{pid}-{int(hours * 100):08x}.jsonl"
    path.write_bytes(b"x" * size)
    os.utime(path, (begun.timestamp(),) * 2)
    return path


def test_the_oldest_files_go_first_and_never_one_that_is_written_to(tmp_path: Path) -> None:
    """By size and by age; what is not ours, and what somebody may still write to, stays."""
    old, older, oldest = (a_file(tmp_path, hours, pid=hours) for hours in (2, 50, 100))
    written = a_file(tmp_path, 0.5, size=10_000)
    other = tmp_path / "collector.jsonl"
    other.write_bytes(b"x" * 100_000)
    assert forget_old(tmp_path, Retention(max_bytes=12_500)) == [oldest]
    assert forget_old(tmp_path, Retention(max_bytes=None, max_seconds=86_400)) == [older]
    assert forget_old(tmp_path, Retention(max_bytes=None)) == []
    assert forget_old(tmp_path, Retention(max_bytes=0)) == [old]
    assert set(tmp_path.iterdir()) == {written, other}


def test_a_file_that_is_open_stays_however_old_it_looks(traces: Path) -> None:
    """Two services of one process (or two containers, of one process 1), and one is idle: its file is not taken."""
    idle, busy = (JsonLinesSpanProcessor(traces, service_name=name) for name in ("idle", "busy"))
    provider_with(idle).get_tracer("t").start_span("first").end()
    provider_with(busy).get_tracer("t").start_span("other").end()
    assert idle.path is not None
    looks = idle.path.rename(a_file(traces, 100, pid=os.getpid()))
    os.utime(looks, (1, 1))
    assert left_files(traces) == []
    assert forget_old(traces, Retention(max_bytes=0)) == []
    idle.shutdown()
    assert left_files(traces) == [looks]
    assert forget_old(traces, Retention(max_bytes=0)) == [looks]


def test_the_sink_forgets_when_it_begins_a_file(traces: Path) -> None:
    """Where no command line ever runs the disk is bounded too."""
    traces.mkdir(parents=True)
    old = a_file(traces, 30)
    sink = JsonLinesSpanProcessor(traces, retention=Retention(max_bytes=100))
    provider_with(sink).get_tracer("t").start_span("now").end()
    sink.shutdown()
    assert not old.exists()
    assert names(traces) == {"now": 1}


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        ("30d", Retention(max_bytes=None, max_seconds=30 * 86_400)),
        ("5GB", Retention(max_bytes=5 * 10**9)),
        ("12h, 1.5 gb", Retention(max_bytes=1_500_000_000, max_seconds=12 * 3600)),
        ("all", Retention(max_bytes=None)),
    ],
)
def test_retention_is_written_as_people_write_it(text: str, retention: Retention) -> None:
    """How old, how large, or both."""
    assert Retention.parse(text) == retention


@pytest.mark.parametrize("text", ["", "30", "30x", "5GB 6GB", "for ever", "-1d"])
def test_retention_that_cannot_be_read_is_refused(text: str) -> None:
    """A typo must neither keep nor delete everything."""
    with pytest.raises(ConfigurationError, match="30d"):
        Retention.parse(text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_left_alone_and_tried_again(
    sink: JsonLinesSpanProcessor, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans are counted as lost without touching the disk again for a while; then they are written again."""
    tracer = provider_with(sink).get_tracer("t")
    tracer.start_span("before").end()
    file = sink._file
    assert file is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.descriptor)
    os.close(full)
    tracer.start_span("lost").end()
    monkeypatch.setattr(os, "write", lambda *_: pytest.fail("the disk was asked again"))
    tracer.start_span("lost too").end()
    assert sink.dropped == 2
    monkeypatch.undo()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31 + ROTATE_SECONDS)
    tracer.start_span("after").end()
    assert names(traces) == {"before": 1, "after": 1}
    assert sink.dropped == 2


def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is synced to the disk from here on."""
    calls: list[int] = []
    real = sink_module._to_disk
    monkeypatch.setattr(sink_module, "_to_disk", lambda descriptor: (calls.append(descriptor), real(descriptor)))
    return calls


@pytest.mark.parametrize(("fsync", "after_three", "a_second_later", "at_the_end"), [
    ("off", 0, 0, 0), ("interval", 1, 2, 3), ("always", 3, 4, 5),
])  # fmt: skip
def test_spans_are_on_the_disk_as_often_as_was_asked(
    traces: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync, after_three: int, a_second_later: int, at_the_end: int
) -> None:
    """Never, once a second, or each; and all of them when the program ends."""
    sink, calls, now = JsonLinesSpanProcessor(traces, fsync=fsync), synced(monkeypatch), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tracer = provider_with(sink).get_tracer("t")
    for name in "abc":
        tracer.start_span(name).end()
    assert len(calls) == after_three
    monkeypatch.setattr(time, "monotonic", lambda: now + 1.1)
    tracer.start_span("d").end()
    assert len(calls) == a_second_later
    sink.shutdown()
    assert len(calls) == at_the_end
    assert names(traces) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert sink.dropped == 0


def test_a_way_of_syncing_that_there_is_not_is_refused(traces: Path) -> None:
    """A typo must not leave spans unsafe."""
    with pytest.raises(ConfigurationError, match="'interval'"):
        JsonLinesSpanProcessor(traces, fsync="sometimes")  # type: ignore[arg-type]
