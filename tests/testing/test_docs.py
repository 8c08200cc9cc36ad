"""The examples of docs/testing.md are tests that pass, and each says what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLE = re.compile(r"<!-- runs: (\w+\.py) -->\n```python\n(.*?)```", re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    """As somebody would have them: files in a folder, and pytest."""
    examples = EXAMPLE.findall(DOCS.read_text())
    assert len(examples) == 3
    for name, code in examples:
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "SAGASPAN_HOME": str(tmp_path / "home"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.findall(r"^test_order\.py::\S.*$", DOCS.read_text(), re.MULTILINE)
    assert len(shown) > 5
    for line in shown:
        assert line in done.stdout
