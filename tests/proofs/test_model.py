"""The model test in small, and that it notices what it is there to notice."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import pytest

from sagaspan.ledger import answers
from tests.proofs.model import OUT_OF_REACH, every_transition, left_out
from tests.proofs.model_machine import live

EXAMPLES: Final = int(os.environ.get("SAGASPAN_MODEL_EXAMPLES", "30"))


def test_some_histories() -> None:
    """Whatever happens, in any order: the ledger is true, and nothing is left at the end."""
    reached = live(EXAMPLES, "0/0")
    assert reached["None", "claim", "running"] > EXAMPLES / 4


def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a write in doubt run again without evidence, a history would have the effect twice."""
    monkeypatch.setattr(answers, "permitted", lambda rows: True)
    with pytest.raises(AssertionError, match="happened 2 times"):
        live(400, "0", shrink=False)


def test_a_transition_that_no_history_goes_through_is_named() -> None:
    """So is one that is said to be out of reach, and was reached."""
    everything = Counter(step for step in every_transition() if step not in OUT_OF_REACH)
    assert left_out(everything) == []
    del everything["running", "succeed", "done"]
    everything.update(list(OUT_OF_REACH)[:1])
    assert left_out(everything)[0] == "not reached: running --succeed--> done"
    assert len(left_out(everything)) == 1 + bool(OUT_OF_REACH)
