"""The safety rules, and for each how to break it and which tests must then fail (``mutation`` runs them).

A rule names the section of the rule book, the file, a text that stands there exactly once, and what to put in its place.
When the code is rewritten, rewrite the patch with it: one that no longer applies fails the gate. A rule without a test
that goes red is not kept by anybody: write the test.
"""

from __future__ import annotations

from typing import Final

from tests.proofs.rules import (
    approvals,
    audit,
    budgets,
    clients,
    crewai,
    langchain,
    loops,
    notifications,
    once,
    policies,
    runs,
    sagas,
    secrets,
    traces,
)
from tests.proofs.rules._rule import Rule

RULES: Final[tuple[Rule, ...]] = tuple(
    rule
    for room in (
        once,
        runs,
        sagas,
        budgets,
        loops,
        approvals,
        audit,
        policies,
        notifications,
        secrets,
        clients,
        langchain,
        crewai,
        traces,
    )
    for rule in room.RULES
)

__all__ = ["RULES", "Rule"]
