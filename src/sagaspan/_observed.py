"""``Guard(mode="observe")``: what would have refused a call is noted on its record and its span, and lets it by.

It is for the first week of an adoption. What protects the effects themselves holds all the same: a call is claimed and
done once, keys and locks conflict, what is in doubt is not repeated; and so does a freeze, which somebody asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call
from sagaspan.exceptions import Refused

_log = logging.getLogger("sagaspan")
ASKED: Final = "approval_pending"


def note_of(error: Refused) -> str:
    """What is noted of an ``error`` that would have refused a call: its kind and its sentence, in one line."""
    return _line(spans.error_type(error), str(error))


def let_by(call: Call, error: Refused) -> Call:
    """``call`` with the note that ``error`` would have refused it."""
    return noted(call, spans.error_type(error), str(error))


def _line(kind: str, text: str) -> str:
    return " ".join(f"{kind}: {text}".split())


def noted(call: Call, kind: str, text: str) -> Call:
    """``call`` with a note of what would have become of it, by the kind of error."""
    note = _line(kind, text)
    call = call.declare(observed=(*call.declared.observed, note))
    tell(call, call.declared.observed)
    return call


@spans.harmless(None)
def tell(call: Call, notes: Sequence[str]) -> None:
    """Say on the span of ``call`` what would have refused it, the log the last of it."""
    _log.info("observed only, so it runs: %s", notes[-1])
    call.span.set_attribute(semconv.OBSERVED, [note.partition(":")[0] for note in notes])
