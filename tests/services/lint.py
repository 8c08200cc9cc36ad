"""Dashboards and queries as Grafana reads them; ``python -m tests.services.lint`` gets what that needs, and checks all.

TraceQL and PromQL go through the grammars of Grafana's and Prometheus's own editors, dashboards through the TypeScript
compiler with Grafana's schema. The packages of ``grafana/package.json``, each in exactly one version, stay in a cache
outside the tree. No server is asked: that queries have answers is in ``test_real.py``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.services.programs import kept
from tests.services.queries import FOLDER, as_prometheus_is_asked, dashboards, documented

RULES: Final = Path(__file__).with_name("grafana")
MANIFEST: Final = RULES / "package.json"
# On the line of the dashboard's first, so that the compiler's lines are those of the JSON.
HEAD: Final = "import type { Board } from './board.js'; export const board: Board = "


@dataclass(frozen=True, slots=True)
class Query:
    """One query, in ``traceql`` or ``promql``, and where it is from."""

    where: str
    language: str
    text: str


def cache() -> Path:
    """The folder of the packages, in these versions."""
    return kept("grafana", MANIFEST.read_bytes())


def lacking() -> str | None:
    """Why nothing can be checked here."""
    if shutil.which("node") is None:
        return "no node here: Node 18 or newer, with npm"
    return None if cache().is_dir() else "no grammars and types of Grafana here: python -m tests.services.lint"


def install(seconds: float) -> None:
    """Get the packages, unless they are there, for at most so many seconds; only the whole lot comes into the cache."""
    if cache().is_dir():
        return
    cache().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache().parent, prefix=".making-") as folder:
        made = Path(folder) / "made"
        made.mkdir()
        shutil.copy(MANIFEST, made)
        quietly = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
        subprocess.run(["npm", "install", *quietly], cwd=made, stdin=subprocess.DEVNULL, timeout=seconds, check=True)
        made.replace(cache())


@contextmanager
def _workplace() -> Iterator[Path]:
    """A folder with the rules, from where the packages are found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(RULES, folder, dirs_exist_ok=True)
        (folder / "node_modules").symlink_to(cache() / "node_modules", target_is_directory=True)
        yield folder


def faults(queries: Sequence[Query]) -> list[str]:
    """What no grammar reads: of each such query where it is from, it, and the place (in characters from its start)."""
    asked = json.dumps([(query.language, query.text) for query in queries])
    with _workplace() as folder:
        done = subprocess.run(
            ["node", "parse.mjs"], cwd=folder, input=asked, capture_output=True, text=True, timeout=60, check=True
        )
    places: list[list[int]] = json.loads(done.stdout)
    return [
        f"{query.where}: {query.text}: no {query.language} from {places[0]} on: {query.text[places[0] :]!r}"
        for query, places in zip(queries, places, strict=True)
        if places
    ]


def misfits(boards: Mapping[str, str]) -> list[str]:
    """What Grafana's schema does not have: the compiler's complaints about dashboards, given as text by their name."""
    with _workplace() as folder:
        for name, text in boards.items():
            (folder / f"{name}.ts").write_text(f"{HEAD}{text};\n")
        done = subprocess.run(
            ["node", "node_modules/typescript/bin/tsc", "--project", "."],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    found = [line.replace(".ts(", ".json(", 1) for line in done.stdout.splitlines() if not line.startswith(" ")]
    if done.returncode and not found:
        raise RuntimeError(f"the compiler failed without a word of what is wrong: {done.stderr}")
    return found


def shipped_queries() -> list[Query]:
    """Every query of the dashboards, with Grafana's variables filled in, and of the docs."""
    found = [Query(page, language, text) for language in ("traceql", "promql") for page, text in documented(language)]
    for name, board in dashboards().items():
        where = f"{name}.json"
        found += [Query(where, "traceql", text) for text in board.traceql]
        found += [
            Query(where, "promql", as_prometheus_is_asked(text, interval="5m", over="1h", service=".*"))
            for text in (*board.promql, *board.choices)
        ]
    return found


def shipped_boards() -> dict[str, str]:
    """The dashboards by name, as they are on disk."""
    return {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.json"))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Check dashboards and queries as Grafana reads them.")
    parser.add_argument("--seconds", type=float, default=120, help="how long getting the packages may take")
    parser.add_argument("--get", action="store_true", help="get the packages, check nothing")
    options = parser.parse_args()
    try:
        install(options.seconds)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"missing: Grafana's grammars and types: {error}")
    if not options.get:
        complaints = [*faults(shipped_queries()), *misfits(shipped_boards())]
        sys.exit("\n".join(complaints) or None)
