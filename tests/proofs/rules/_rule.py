"""A safety rule, and how it is broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One safety rule, and how it is broken. ``tests``: all of them must fail then."""

    section: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
