"""Real CrewAI with scripted models, silent and without a network; skipped where CrewAI is not installed."""

from __future__ import annotations

import os
import tempfile
import warnings

import pytest

# Before its import: CrewAI reads them there, and would install signal handlers and send reports of its own.
os.environ.update(
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_TRACING_ENABLED="false",
    CREWAI_TESTING="true",
    CREWAI_STORAGE_DIR=tempfile.mkdtemp(prefix="sagaspan-crewai-"),
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("crewai", exc_type=ImportError)
