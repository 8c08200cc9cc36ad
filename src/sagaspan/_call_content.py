"""What was said and done in a call, for its span: under the content opt-in alone, and without what is redacted."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.util.types import AttributeValue

from sagaspan import _live as live
from sagaspan import _spans as spans
from sagaspan import codecs, semconv
from sagaspan.redaction import Redaction


def content_of(
    arguments: str, value: Any, error: BaseException | None, redaction: Redaction | None
) -> dict[str, AttributeValue]:
    """The attributes for ``arguments``, as they are recorded, and for what a body returned, if it did."""
    shown = codecs.dump(live.scrubbed_data(json.loads(arguments)))
    attributes: dict[str, AttributeValue] = {semconv.GEN_AI_TOOL_CALL_ARGUMENTS: spans.content(shown)}
    if error is None and (result := _result(value, redaction)) is not None:
        attributes[semconv.GEN_AI_TOOL_CALL_RESULT] = spans.content(result)
    return attributes


def without_redacted(arguments: str, redaction: Redaction | None) -> str:
    """Recorded ``arguments`` without what ``redaction`` names, for calls whose arguments nobody has redacted yet."""
    return arguments if redaction is None else codecs.dump(redaction.arguments(json.loads(arguments), codecs.blank))


def _result(value: Any, redaction: Redaction | None) -> str | None:
    try:
        plain = codecs.to_json(value, hide=codecs.blank)
        shown = plain if redaction is None else redaction.result(plain, codecs.blank)
        return codecs.dump(live.scrubbed_data(shown))
    except codecs.Unencodable:
        return None
