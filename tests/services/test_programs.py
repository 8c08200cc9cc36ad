"""Where Jaeger cannot be had, a smaller viewer is got in its stead, and whoever asks is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services import programs

# Go as far as it is asked here: it has every module but Jaeger.
GO = """#!/bin/sh
case "$*" in
  *jaeger*) echo "403 Forbidden" >&2; exit 1 ;;
  "mod download"*) echo "{\\"Dir\\": \\"$SOURCE\\"}" ;;
  build*) while [ "$1" != -o ]; do shift; done; : > "$2" ;;
esac
"""


@pytest.fixture(autouse=True)
def without_jaeger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has all the other programs, and cannot get Jaeger."""
    go, source = tmp_path / "bin" / "go", tmp_path / "source"
    for folder in (go.parent, source):
        folder.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    monkeypatch.setenv("SOURCE", str(source))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs.cache().mkdir(parents=True)
    for name in ("otelcol", "prometheus", "promtool"):
        (programs.cache() / name).touch()


def test_a_viewer_is_made_where_jaeger_cannot_be() -> None:
    assert programs.missing() == ["jaeger"]
    assert programs.install(60) == []
    assert programs.stand_in() == "viewer: otel-desktop-viewer instead of Jaeger"


def test_nothing_stands_in_for_a_collector() -> None:
    (programs.cache() / "otelcol").unlink()
    (programs.cache() / "jaeger").touch()
    assert programs.missing() == ["otelcol"]
    assert programs.stand_in() is None


def test_no_viewer_is_made_beside_jaeger() -> None:
    (programs.cache() / "jaeger").touch()
    assert programs.install(60) == []
    assert programs.found(programs.VIEWER) is None
    assert programs.stand_in() is None
