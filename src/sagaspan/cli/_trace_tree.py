"""A trace as a tree: timings, costs, attempts, refusals, what undoes what, and, where captured, words and stacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

from sagaspan import semconv
from sagaspan.cli._render import console, plain_error, short, visible, when

_BAD: Final = ("failed", "unknown", "partially_compensated", "denied", "needs_human", "compensation_failed")
_REASONING: Final = 400
_CONTENT: Final = 160
_STACK: Final = 12
"""Lines of a stack that are shown: its end."""


def emit_tree(spans: Sequence[Any]) -> None:
    """Print the spans of one trace."""
    from rich.text import Text
    from rich.tree import Tree

    first = spans[0]
    head = Text.assemble((f"trace {first.trace_id}", "bold"), (f"  {when(first.start)}", "dim"))
    tree = Tree(head)
    branches = {-1: tree}
    tools = {span.call_id: span.tool for span in spans if span.call_id}
    # An error that only passed through a span is told in full where it was raised.
    passed_on = {span.parent_span_id for span in spans if span.stack}
    for span in spans:
        branch = branches[span.depth] = branches[span.depth - 1].add(_label(span, tools))
        for text, style in details(span, stack=span.span_id not in passed_on):
            branch.add(Text("\n".join(map(legible, text.split("\n"))), style=style))
    console().print(tree)
    if total := totals(spans):
        console().print(Text(total, style="dim"), soft_wrap=True)


def totals(spans: Sequence[Any]) -> str:
    """Return what a trace used, in one line."""
    counted = [span for number, span in enumerate(spans) if not _is_counted_elsewhere(spans, number)]
    read, wrote = (sum(getattr(span, name) or 0 for span in counted) for name in ("input_tokens", "output_tokens"))
    errors = sum(span.status == "ERROR" for span in spans)
    costs = [span.cost_usd for span in counted if span.cost_usd is not None]
    facts = (
        "1 span" if len(spans) == 1 else f"{len(spans)} spans",
        f"{errors} errors" if errors > 1 else "1 error" if errors else "",
        f"{read} tokens in, {wrote} out" if read or wrote else "",
        cost(sum(costs)) if costs else "",
    )
    return ", ".join(fact for fact in facts if fact)


def _is_counted_elsewhere(spans: Sequence[Any], number: int) -> bool:
    """Return whether a span has the tokens of a call that another span has too, as in the view ``llm_calls``.

    Another instrumentation may have one around ours, or below it; of several without ours the outermost counts.
    ``spans`` are in the order of the tree.
    """
    span = spans[number]
    if span.input_tokens is None or span.run_id is not None:
        return False
    depth = span.depth
    for other in reversed(spans[:number]):
        if other.depth < depth:
            if other.input_tokens is not None:
                return True
            depth = other.depth
    below = takewhile(lambda other: other.depth > span.depth, spans[number + 1 :])
    return any(other.input_tokens is not None and other.run_id is not None for other in below)


def facts_of(span: Any, tools: dict[str | None, str | None]) -> list[tuple[str, str]]:
    """What is said of a span behind its name, each with its style."""
    attributes = span.attributes
    refused = _is_refused(span)
    undoes = attributes.get(semconv.CALL_COMPENSATES)
    outcome = attributes.get(semconv.IDEMPOTENCY_OUTCOME)
    tokens = f"{span.input_tokens} > {span.output_tokens} tokens" if span.input_tokens is not None else None
    notes = [
        (span.state, "red" if span.state in _BAD else "green"),
        (f"undoes {tools.get(undoes) or undoes}" if undoes else None, "yellow"),
        (None if outcome in (semconv.OUTCOME_EXECUTED, span.state) else outcome, "cyan"),
        (_attempts(attributes.get(semconv.CALL_ATTEMPTS)), "magenta"),
        (tokens, "dim"),
        (None if span.cost_usd is None else cost(span.cost_usd), "dim"),
        (f"refused: {span.error_type}" if refused else plain_error(span.error_type), "red"),
        (_ruled(attributes), "red"),
        (_looked(attributes), "cyan"),
        (_waited(attributes), "cyan"),
        (_observed(attributes), "yellow"),
        (span.status_message, "red"),
    ]
    return [(visible(note), style) for note, style in notes if note]


def details(span: Any, *, stack: bool = True) -> Iterator[tuple[str, str]]:
    """Texts below a span: what the model thought, what went in and out, and where it broke."""
    if thought := reasoning(span.attributes.get(semconv.GEN_AI_OUTPUT_MESSAGES)):
        yield f"thinks: {short(thought, _REASONING)}", "italic cyan"
    if span.input is not None:
        yield f"in: {short(span.input, _CONTENT)}", "dim"
    if span.output is not None:
        yield f"out: {short(span.output, _CONTENT)}", "dim"
    if stack and span.stack and not _is_refused(span):  # whose stack is our own code, and whose message says it all
        yield "\n".join(span.stack.strip().splitlines()[-_STACK:]), "red dim"


def is_stack_shortened(span: Any) -> bool:
    """Return whether ``details`` shows a part of the span's stack."""
    return bool(span.stack) and not _is_refused(span) and len(span.stack.strip().splitlines()) > _STACK


def legible(line: str) -> str:
    """A line of which nothing is obeyed, as far in as it is."""
    rest = line.lstrip(" ")
    return " " * (len(line) - len(rest)) + visible(rest)


def reasoning(messages: str | None) -> str:
    """What the model thought before it answered, of the messages of OpenTelemetry's GenAI conventions."""
    try:
        found = json.loads(messages or "[]")
    except ValueError:
        return ""
    parts = [
        part
        for message in (found if isinstance(found, list) else [])
        if isinstance(message, dict) and isinstance(message.get("parts"), list)
        for part in message["parts"]
        if isinstance(part, dict) and part.get("type") == "reasoning"
    ]
    return "\n".join(str(part["content"]) for part in parts if part.get("content"))


def cost(usd: float) -> str:
    """US dollars, with as many digits as there is something to see."""
    return f"${usd:.2f}" if usd >= 1 or not usd else f"${usd:.4f}" if usd >= 0.0001 else f"${usd:.2g}"


def milliseconds(duration_ms: float | None) -> str:
    """A duration as people read it."""
    if duration_ms is None:
        return ""
    return f"{duration_ms / 1000:.2f} s" if duration_ms >= 1000 else f"{duration_ms:.1f} ms"


def _label(span: Any, tools: dict[str | None, str | None]) -> Any:
    from rich.text import Text

    undoes = span.attributes.get(semconv.CALL_COMPENSATES)
    label = Text(visible(span.name), style="yellow" if undoes else "red" if span.status == "ERROR" else "")
    label.append(f"  {milliseconds(span.duration_ms)}", style="dim")
    for note, style in facts_of(span, tools):
        label.append(f"  {note}", style=style)
    return label


def _attempts(number: str | None) -> str | None:
    return f"{number} attempts" if number not in (None, "0", "1") else None


def _ruled(attributes: Any) -> str | None:
    rule, scope = attributes.get(semconv.POLICY_RULE), attributes.get(semconv.BUDGET_SCOPE)
    frozen = attributes.get(semconv.FREEZE_SCOPE)
    return f"rule {rule}" if rule else f"budget of {scope}" if scope else f"{frozen} is frozen" if frozen else None


def _is_refused(span: Any) -> bool:
    from sagaspan.index.sql import refusal_types

    return bool(span.error_type in refusal_types() and span.attributes.get(semconv.CALL_EXECUTED) == "false")


def _observed(attributes: Any) -> str | None:
    """What would have refused a call, of a guard that only observes."""
    try:
        kinds = json.loads(attributes.get(semconv.OBSERVED) or "[]")
    except ValueError:
        return None
    return f"would be refused: {', '.join(map(str, kinds))}" if isinstance(kinds, list) and kinds else None


def _looked(attributes: Any) -> str | None:
    """What a probe said; what an agent was told of going in circles; who went on with a run."""
    answer, loop = attributes.get(semconv.PROBE_ANSWER), attributes.get(semconv.LOOP_KIND)
    by = attributes.get(semconv.RUN_ENTERED_BY)
    if answer is not None:
        return f"says {answer.replace('_', ' ')}"
    if loop is not None:
        return f"told of a loop ({loop})"
    return {semconv.BY_RECOVERY: "recovered", semconv.BY_REQUEST: "on request"}.get(by)


def _waited(attributes: Any) -> str | None:
    """How an approval was decided, and after how long."""
    if attributes.get(semconv.APPROVAL_WAIT_MS) is None:
        return None
    channel = attributes.get(semconv.APPROVAL_CHANNEL)
    after = milliseconds(float(attributes[semconv.APPROVAL_WAIT_MS]))
    return f"{f'by {channel} ' if channel else ''}after {after}"
