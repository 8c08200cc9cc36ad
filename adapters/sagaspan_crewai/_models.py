"""Calls of models: reserved before they are sent, settled with what they used."""

from __future__ import annotations

from typing import Any

from sagaspan_crewai._session import Session


def watch(llm: Any) -> None:
    """Nothing yet."""


def on_event(session: Session, source: Any, event: Any) -> None:
    """Nothing yet."""
