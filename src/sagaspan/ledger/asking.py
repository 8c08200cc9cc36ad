"""How asking about a call is seen: a short span each time, linked to the one in which it was asked first, and metrics.

A span held open for hours is lost with its process, so each asking is a span of its own; who approved is on none.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from sagaspan import _metrics as metrics
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan.ledger.approvals import votes_of
from sagaspan.ledger.records import ApprovalRecord, ApprovalState
from sagaspan.ledger.requests import facts_of

TRACEPARENT: Final = "traceparent"
"""The fact of a request that names the span in which it was asked first."""


class Asking:
    """One asking about ``call``; ``record`` is the request as it is known last."""

    def __init__(self, call: Call) -> None:
        self.record: ApprovalRecord | None = None
        self.span: Span = spans.start(
            call.tracer, semconv.SPAN_APPROVAL.format(tool=call.tool.name),
            {semconv.GEN_AI_TOOL_NAME: call.tool.name, semconv.RUN_ID: call.run.id,
             semconv.OPENINFERENCE_SPAN_KIND: semconv.KIND_GUARDRAIL,
             **({semconv.GEN_AI_CONVERSATION_ID: call.run.conversation} if call.run.conversation else {})},
            parent=call.span,
        )  # fmt: skip

    @property
    def traceparent(self) -> str | None:
        """How a later asking finds this one."""
        return spans.traceparent_of(self.span)

    @spans.harmless(None)
    def end(self) -> None:
        """It is over, with whatever is known of the request."""
        record = self.record
        if record is None or not self.span.is_recording():
            self.span.end()
            return
        first = facts_of(record).get(TRACEPARENT)
        for link in spans.link_to(first, semconv.LINK_ASKED) or () if first != self.traceparent else ():
            self.span.add_link(link.context, link.attributes)
        spans.end(self.span, _attributes(record))


def _attributes(record: ApprovalRecord) -> dict[str, AttributeValue]:
    until = now_us() if record.ended_us is None else record.ended_us
    attributes: dict[str, AttributeValue] = {
        semconv.APPROVAL_ID: record.id,
        semconv.APPROVAL_OUTCOME: str(record.state),
        semconv.APPROVAL_WAIT_MS: max(until - record.created_us, 0) / 1e3,
    }
    if channel := channel_of(record):
        attributes[semconv.APPROVAL_CHANNEL] = channel
    return attributes


def channel_of(record: ApprovalRecord) -> str:
    """How it was decided last, as far as somebody agreed."""
    votes = votes_of(record)
    return votes[-1].channel if votes else ""


def decided(record: ApprovalRecord, channel: str) -> None:
    """Count a decision, where it is made."""
    if record.state is not ApprovalState.PENDING:
        waited = (now_us() - record.created_us) / 1e6
        metrics.approval(record.tool, str(record.state), channel, max(waited, 0.0))
