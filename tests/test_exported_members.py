"""``__all__`` is exactly the public names, and importing them costs what it should."""

from __future__ import annotations

import subprocess
import sys

import sagaspan


def test_every_public_name_is_there() -> None:
    """Each name of ``__all__`` can be imported, and the lazy table has no other."""
    assert sorted(sagaspan.__all__) == sorted([*sagaspan._HOME_OF, "__version__"])
    for name in sagaspan.__all__:
        assert getattr(sagaspan, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A typo is answered like that of any module."""
    assert not hasattr(sagaspan, "Gard")


def test_import_brings_no_framework_no_duckdb_and_no_exporter() -> None:
    """``import sagaspan`` and making a guard leave the heavy packages alone."""
    code = (
        "import sys, sagaspan; sagaspan.Guard('sqlite:///x.db').tool('act')(lambda: 1);"
        "heavy = ('langchain', 'langchain_core', 'langgraph', 'crewai', 'duckdb', 'cel', 'opentelemetry.exporter',"
        " 'opentelemetry.sdk', 'genai_prices', 'openai', 'anthropic', 'httpx2');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
