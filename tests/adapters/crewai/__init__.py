"""Real CrewAI with scripted models, silent and without a network; skipped where CrewAI is not installed."""

from __future__ import annotations

import atexit
import os
import shutil
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

from crewai.memory.storage.factory import set_memory_storage_factory

atexit.register(shutil.rmtree, os.environ["CREWAI_STORAGE_DIR"], ignore_errors=True)


class Nowhere:
    """Where the memory that CrewAI makes for each flow would keep what no test gives it to remember."""


# Every flow, and every checkpoint, makes one: importing LanceDB for that took four seconds of each worker.
set_memory_storage_factory(lambda kind: Nowhere() if kind == "lancedb" else None)  # type: ignore[arg-type,return-value]
