"""Grafana can read what we ship: every query is one of its language, every dashboard one of its schema."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.services.lint import MANIFEST, Query, faults, lacking, misfits, shipped_boards, shipped_queries

REQUIRED: Final = os.environ.get("SAGASPAN_REQUIRE_SERVICES") == "1"


@pytest.fixture
def _packages() -> None:
    """Node, the grammars and the types; without them a skip, or a failure where they are demanded."""
    if (reason := lacking()) is not None:
        (pytest.fail if REQUIRED else pytest.skip)(reason)


WRONG_TRACEQL: Final = (
    "",
    '{ span.sagaspan.run.state =~ "held" ',
    '{ span.sagaspan.run.state ~~ "held" }',
    "{ span.sagaspan.cost.usd > }",
    '{ name = "a" } >> ',
    '{ name = "a" } } ',
)
WRONG_PROMQL: Final = (
    "",
    'rate(sagaspan_calls_unknown_total{job=~".*"}[5m]',
    'sagaspan_calls_unknown_total{job=~"}',
    "sagaspan_calls_unknown_total{job=~.*}",
    "rate(sagaspan_calls_unknown_total[$__rate_interval])",
    "sum by (job) (a) b",
)


@pytest.mark.usefixtures("_packages")
def test_every_query_is_one_of_its_language() -> None:
    """TraceQL and PromQL of dashboards and docs parse; each of a few broken ones is found, by its own name."""
    shipped = shipped_queries()
    assert {query.language for query in shipped} == {"traceql", "promql"}
    assert any(query.where == "dashboards.md" for query in shipped)
    broken = [Query(f"traceql-{number}", "traceql", text) for number, text in enumerate(WRONG_TRACEQL)]
    broken += [Query(f"promql-{number}", "promql", text) for number, text in enumerate(WRONG_PROMQL)]
    found = faults([*shipped, *broken])
    assert [fault.partition(":")[0] for fault in found] == [query.where for query in broken], "\n".join(found)


def _first(board: dict[str, Any], kind: str) -> Any:
    return next(panel for panel in board["panels"] if panel["type"] == kind)


def _defaults(board: dict[str, Any], kind: str) -> Any:
    return _first(board, kind)["fieldConfig"]["defaults"]


BREAKS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "schema-version-is-text": lambda board: board.update(schemaVersion="42"),
    "unknown-field-of-a-dashboard": lambda board: board.update(titel="Operations"),
    "unknown-kind-of-panel": lambda board: _first(board, "stat").update(type="stta"),
    "unknown-field-of-a-panel": lambda board: _first(board, "stat").update(titel="Unknown"),
    "width-is-text": lambda board: _first(board, "stat")["gridPos"].update(w="4"),
    "query-without-a-letter": lambda board: _first(board, "stat")["targets"][0].pop("refId"),
    "option-that-is-none": lambda board: _first(board, "stat")["options"].update(colourMode="value"),
    "value-that-an-option-has-not": lambda board: _first(board, "stat")["options"].update(colorMode="backgrund"),
    "style-that-there-is-not": lambda board: _defaults(board, "timeseries")["custom"].update(drawStyle="columns"),
    "unit-is-a-number": lambda board: _defaults(board, "stat").update(unit=5),
    "thresholds-of-no-mode": lambda board: _defaults(board, "stat")["thresholds"].update(mode="relative"),
    "variable-hidden-by-a-word": lambda board: board["templating"]["list"][0].update(hide="yes"),
    "panel-within-a-row": lambda board: next(panel for panel in board["panels"] if panel.get("panels"))["panels"][
        0
    ].update(options={"cellHeight": "small"}),
}


@pytest.mark.usefixtures("_packages")
def test_every_dashboard_is_one_of_the_schema() -> None:
    """As they are on disk they have its types, each panel those of its kind; whatever is broken in one is found."""
    shipped = shipped_boards()
    assert set(shipped) == {"money", "operations"}
    broken = {}
    for name, breaks in BREAKS.items():
        board = json.loads(shipped["operations"])
        breaks(board)
        broken[name] = json.dumps(board)
    found = misfits({**shipped, **broken})
    assert {line.partition(".json(")[0] for line in found} == set(broken), "\n".join(found)


def test_packages_are_exact_versions() -> None:
    """What is checked today is checked next year, too."""
    versions = json.loads(MANIFEST.read_text())["dependencies"].values()
    assert all(version.replace(".", "").isdecimal() for version in versions)
