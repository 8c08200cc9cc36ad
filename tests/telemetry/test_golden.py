"""Golden traces: of every feature the names, types, telling values, parents, links, events and status of its spans.

``uv run --all-extras python -m tests.telemetry.test_golden`` writes them anew; the difference is to be read.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Guard, semconv
from sagaspan.testing import frozen_clock
from tests.telemetry.golden_stories import CRASHES, STORIES

GOLDEN = Path(__file__).parent / "golden"
# Whose values are a closed set, or the story's own: all others are told by their type.
TELLING = re.compile(
    r"error\.type|openinference\.span\.kind|gen_ai\.(operation|tool|agent|provider)\.(name|type)|"
    r"gen_ai\.(request|response)\.(model|finish_reasons)|gen_ai\.(usage|conversation)\..*|gen_ai\.request\.max_tokens|"
    r"sagaspan\.(run|call|approval|idempotency|probe|wait|loop|link|policy|observed|attempt|freeze|cost|budget)(\..*)?"
)
VARYING = re.compile(r"sagaspan\.(call\.(id|compensates)|approval\.(id|wait_ms)|attempt\.delay_ms|policy\.version)")
NAMES = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}
SHAPES = [re.sub(r"\\{\w+\\}", ".+", re.escape(name)) for key, name in vars(semconv).items() if key.startswith("SPAN_")]


def _value(name: str, value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, tuple):
        kind = f"{type(value[0]).__name__}[]"
    text = str(value)
    if not TELLING.fullmatch(name) or VARYING.fullmatch(name) or re.fullmatch(r"session-[0-9a-f]+", text):
        return kind
    return f"{kind} {text}"


def _lines(span: ReadableSpan, depth: int, named: dict[int, str]) -> Iterator[str]:
    indent = "  " * depth
    status = span.status.status_code.name + (f" {span.status.description!r}" if span.status.description else "")
    yield f"{indent}{span.name} [{span.kind.name} {status}]"
    for name, value in sorted((span.attributes or {}).items()):
        yield f"{indent}  . {name}: {_value(name, value)}"
    for link in span.links:
        yield f"{indent}  -> {dict(link.attributes or {})} {named.get(link.context.span_id, '(a span that was lost)')}"
    for event in span.events:
        attributes = {name: _value(name, value) for name, value in sorted((event.attributes or {}).items())}
        yield f"{indent}  * {event.name} {attributes}"


def _told(spans: Sequence[ReadableSpan]) -> str:
    """The traces in the order of their beginning, each as a tree."""
    order = sorted(spans, key=lambda span: span.start_time or 0)
    ids = {span.context.span_id for span in order if span.context}
    named = {span.context.span_id: span.name for span in order if span.context}
    below: dict[int | None, list[ReadableSpan]] = {}
    for span in order:
        above = span.parent.span_id if span.parent is not None and span.parent.span_id in ids else None
        assert (above is None) == (span.parent is None), f"{span.name} is an orphan"
        below.setdefault(above, []).append(span)

    def tree(span: ReadableSpan, depth: int) -> Iterator[str]:
        yield from _lines(span, depth, named)
        for child in below.get(span.context.span_id if span.context else None, []):
            yield from tree(child, depth + 1)

    return "\n".join(line for root in below.get(None, []) for line in [*tree(root, 0), ""])


def _played(story: Callable[..., None], folder: Path) -> Sequence[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made: list[Guard] = []

    def make(**how: Any) -> Guard:
        made.append(Guard(f"sqlite:///{folder}/ledger-{len(made)}.db", tracer_provider=provider, **how))
        return made[-1]

    try:
        with frozen_clock():  # a slow machine waits no shorter
            story(exporter, provider) if story in CRASHES else story(make)
    finally:
        for guard in made:
            guard.close()
        provider.shutdown()
    return exporter.get_finished_spans()


@pytest.mark.parametrize("story", [*STORIES, *CRASHES], ids=lambda story: story.__name__)
def test_a_trace_is_what_it_was(story: Callable[..., None], tmp_path: Path) -> None:
    """Who has a dashboard, a query or an alert on our spans finds them unchanged; each name is a constant of ours."""
    spans = _played(story, tmp_path)
    assert _told(spans) == (GOLDEN / f"{story.__name__}.txt").read_text()
    for span in spans:
        assert any(re.fullmatch(shape, span.name) for shape in SHAPES), span.name
        said = [dict(one.attributes or {}) for one in (span, *span.links, *span.events)]
        assert {name for attributes in said for name in attributes} <= NAMES
        assert {event.name for event in span.events} <= NAMES
        scope = span.instrumentation_scope
        assert scope is not None
        assert (scope.name, scope.schema_url) == ("sagaspan", semconv.SCHEMA_URL)


if __name__ == "__main__":
    for story in [*STORIES, *CRASHES]:
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN / f"{story.__name__}.txt").write_text(_told(_played(story, Path(folder))))
    sys.stdout.write(f"read the difference: git diff {GOLDEN}\n")
