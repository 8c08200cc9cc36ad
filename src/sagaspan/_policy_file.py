"""The policy file of a guard: read and checked whole, so that nothing of it holds unless all of it can."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from sagaspan.exceptions import ConfigurationError
from sagaspan.policy import PolicyBook, read_policy_file
from sagaspan.rules import Rules

TABLES: Final = ("guard", "tools", "rules", "budgets", "prices", "notify")
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """One content of the file at ``path``: ``version`` is a digest of what it says, whatever its spelling.

    ``tables`` are those that others read: ``guard``, ``budgets``, ``prices`` and ``notify``.
    """

    path: Path
    version: str
    tools: PolicyBook
    rules: Rules
    tables: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """What the file at ``path`` says; raises ``ConfigurationError``."""
        tables = read_policy_file(path)
        unknown = sorted(set(tables) - set(TABLES))
        if unknown:
            raise ConfigurationError(
                f"{path}: unknown table [{unknown[0]}]; policies stand in [tools.NAME], beside [[rules]], [guard], "
                "[budgets], [prices] and [[notify]]"
            )
        tools = tables.get("tools", {})
        if not isinstance(tools, dict) or not all(isinstance(fields, dict) for fields in tools.values()):
            raise ConfigurationError(f"{path}: every policy is a table [tools.NAME] of fields")
        return cls(
            path=path, version=version_of(tables), tools=PolicyBook(tools, source=str(path)),
            rules=Rules(tables.get("rules", []), source=str(path)), tables=tables,
        )  # fmt: skip


def version_of(tables: Mapping[str, Any]) -> str:
    """A short digest of what a policy file says: comments and the order of tables do not count, that of rules does."""
    text = json.dumps(tables, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
