"""Reading traces back as objects: the list, and one as a tree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from sagaspan.index import SpanLink, TraceIndex, TraceNotFound, Where

from .lines import line, pairs, span, write

if TYPE_CHECKING:
    from pathlib import Path

    from sagaspan.index import SpanRow


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    kind = pairs({"sagaspan.link.type": "compensates"})
    link = {"traceId": f"{1:032X}", "spanId": f"{2:016x}", "attributes": kind}
    write(
        tmp_path / "a.jsonl",
        line(span(3, "second child", parent=0, error="app.SoldOut")),
        line(span(1, "first child", parent=0, attributes={"k": "v"}, links=[link])),
        line(span(2, "grandchild", parent=1)),
        line(span(0, "root", attributes={"sagaspan.run.id": "order-1"})),
        line(span(4, "orphan", parent=99)),
        line(span(60_000, "other", trace=0xABC), service="billing"),
        line(span(61_000, "another", trace=0xABD)),
    )
    result = TraceIndex(tmp_path)
    result.sync()
    return result


def outline(spans: tuple[SpanRow, ...]) -> list[tuple[int, str]]:
    return [(row.depth, row.name) for row in spans]


def test_one_trace_comes_as_a_tree(index: TraceIndex) -> None:
    """Parents come before children, siblings by start, and a span whose parent is missing stands at the root."""
    spans = index.trace(f"{1:032x}")
    assert outline(spans) == [
        (0, "root"),
        (1, "first child"),
        (2, "grandchild"),
        (1, "second child"),
        (0, "orphan"),
    ]
    root, first, *_, second, _ = spans
    assert root.start == datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    assert first.attributes == {"k": "v"}
    assert first.links == (
        SpanLink(trace_id=f"{1:032x}", span_id=f"{2:016x}", attributes={"sagaspan.link.type": "compensates"}),
    )
    assert (second.status, second.error_type, second.duration_ms) == ("ERROR", "app.SoldOut", 2.0)


def test_a_prefix_is_enough_if_it_is_unique(index: TraceIndex) -> None:
    """Upper case and white space do not matter."""
    assert outline(index.trace(f" {'0' * 29}ABC ")) == [(0, "other")]


@pytest.mark.parametrize("prefix", ["f", "", "%", "'; drop table spans; --"])
def test_no_such_trace_is_an_error(index: TraceIndex, prefix: str) -> None:
    """What begins no id is not found, patterns and SQL included."""
    with pytest.raises(TraceNotFound, match="no trace id begins with") as caught:
        index.trace(prefix)
    assert caught.value.matches == ()


def test_an_ambiguous_prefix_lists_its_matches(index: TraceIndex) -> None:
    """The error names the ids, so that the next try can be right."""
    with pytest.raises(TraceNotFound, match="more than one") as caught:
        index.trace("0" * 29 + "ab")
    assert caught.value.matches == (f"{0xABC:032x}", f"{0xABD:032x}")


def test_traces_are_listed_newest_first_and_filtered(index: TraceIndex) -> None:
    """limit, since, status, run_id and service_name narrow the list."""

    def names(**filters: object) -> list[str]:
        return [row.name for row in index.traces(Where(**filters))]  # type: ignore[arg-type]

    start = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    assert names() == ["another", "other", "root"]
    assert names(limit=1) == ["another"]
    assert names(since=start + timedelta(seconds=60, milliseconds=500)) == ["another"]
    assert names(status=("error",)) == ["root"]
    assert names(run_id="order-1") == ["root"]
    assert names(service_name="billing") == ["other"]
    (row,) = index.traces(Where(status=("error",)))
    assert (row.spans, row.errors, row.run_id, row.start) == (5, 1, "order-1", start)


def test_spans_in_a_circle_are_all_shown(tmp_path: Path) -> None:
    """Broken parent ids neither hang the reader nor hide spans."""
    circle = [span(0, "a", parent=1), span(1, "b", parent=0), span(2, "self", parent=2)]
    write(tmp_path / "a.jsonl", line(*circle))
    with TraceIndex(tmp_path) as index:
        index.sync()
        assert sorted(row.name for row in index.trace(f"{1:032x}")) == ["a", "b", "self"]
