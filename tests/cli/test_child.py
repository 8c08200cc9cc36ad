"""A statement that DuckDB cannot stop by itself is ended by the system, and the command line says so in one line."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sagaspan.cli._child import MEMORY
from sagaspan.index import TraceIndex
from tests.cli.conftest import Sagaspan
from tests.index.lines import line, span, write

ONE_VALUE = "select damerau_levenshtein(repeat('ab', 90000), repeat('ba', 90000)) as far"
"""Takes minutes and little memory, and no interrupt is looked at meanwhile."""

HOSTILE = [
    ONE_VALUE,
    "select length(repeat('x', 4000000000) || repeat('y', 4000000000))",
    "select unnest(range(1000000000))",
    "select count(*) from (select unnest(range(1000000000)))",
    "select count(*) from range(10000000000) a, range(1000) b where a.range % 7 = b.range % 3",
    "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t",
    "select list_aggregate(range(1000000000), 'sum')",
    "select length(string_agg(repeat('x', 1000000), ',')) from range(100000)",
    "select regexp_replace(repeat('a', 100000000), '((a{0,20}){0,20}){0,2}b', 'x', 'g')",
    "select range, repeat('x', 10000) from range(100000000)",
]


@pytest.fixture
def traces(home: Path) -> Path:
    """A folder of traces with one span in it, which is in the index."""
    folder = home / "traces"
    folder.mkdir(parents=True)
    write(folder / "a.jsonl", line(span(0, "only")))
    TraceIndex(folder).sync()
    return folder


@pytest.mark.parametrize("statement", HOSTILE)
def test_a_hostile_statement_ends_within_its_limits(statement: str, sagaspan: Sagaspan, traces: Path) -> None:
    """Its deadline or its memory ends it, with one error, and the index answers the next question."""
    answer = sagaspan("sql", statement, "--timeout", "2s", "--json")
    assert answer.code == 1
    assert answer.json["kind"] == "QueryError"
    assert answer.err.startswith("Error: the query ")
    assert answer.err.count("\n") == 1
    limit = MEMORY + 2**20 * 32 * (os.cpu_count() or 1)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < limit
    assert sagaspan("sql", "select name from spans", "--json").json == [{"name": "only"}]


@pytest.mark.usefixtures("traces")
def test_a_deadline_leaves_no_half_a_file(sagaspan: Sagaspan, tmp_path: Path) -> None:
    """A Parquet file has its name only when it is whole; one that was there before is as it was."""
    target = tmp_path / "out.parquet"
    target.write_text("before")
    answer = sagaspan("sql", ONE_VALUE, "--timeout", "0.5s", "-o", str(target))
    assert (answer.code, "took longer than" in answer.err) == (1, True)
    assert target.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {".sagaspan", "out.parquet"}


def _started(*args: str) -> subprocess.Popen[str]:
    """The program in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "sagaspan", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def _wait_for_child(program: subprocess.Popen[str]) -> int:
    """The process that answers, once there is one."""
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    while not (found := children.read_text().split()):
        assert program.poll() is None
    return int(found[0])


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.usefixtures("traces")
def test_ctrl_c_ends_both_processes() -> None:
    """The exit code is that of an interrupted program, without a traceback."""
    program = _started("sql", ONE_VALUE, "--timeout", "600s")
    child = _wait_for_child(program)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate()
    assert (program.returncode, out, "Traceback" in err) == (130, "", False)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.usefixtures("traces")
def test_a_killed_program_leaves_no_process_at_work() -> None:
    """The pipes of the program are closed at once, and not at the deadline."""
    program = _started("sql", ONE_VALUE, "--timeout", "600s")
    _wait_for_child(program)
    program.kill()
    program.communicate()


@pytest.mark.usefixtures("traces")
def test_a_reader_that_has_gone_is_no_error() -> None:
    """As with ``| head``: exit code 0 and nothing on standard error."""
    program = _started("sql", "select range, repeat('x', 1000) from range(10000)", "-f", "csv")
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.readline()
    program.stdout.close()
    assert (program.wait(), program.stderr.read()) == (0, "")
    program.stderr.close()
