"""What the dashboards ask: their panels, their PromQL, their searches for traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dashboards"
DOCS = FOLDER.parent / "docs"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard, as Grafana reads it."""

    json: dict[str, Any]

    @property
    def panels(self) -> list[dict[str, Any]]:
        """All panels, also those in rows that are closed."""
        return [inner for panel in self.json["panels"] for inner in (panel, *panel.get("panels", ()))]

    @property
    def variables(self) -> list[dict[str, Any]]:
        """What is chosen at the top."""
        variables: list[dict[str, Any]] = self.json["templating"]["list"]
        return variables

    @property
    def promql(self) -> list[str]:
        """Every query for Prometheus."""
        return [target["expr"] for target in self._targets("prometheus")]

    @property
    def choices(self) -> list[str]:
        """The series that Prometheus is asked for the values of a variable: what ``label_values`` is of."""
        asked = [one["query"]["query"] for one in self.variables if one["type"] == "query"]
        return [re.fullmatch(r"label_values\((.+), \w+\)", query)[1] for query in asked]  # type: ignore[index]

    @property
    def traceql(self) -> list[str]:
        """Every query for Tempo."""
        return [target["query"] for target in self._targets("tempo")]

    @property
    def jaeger_tags(self) -> list[str]:
        """What searches in Jaeger ask for."""
        return [target["tags"] for target in self._targets("jaeger")]

    def _targets(self, kind: str) -> Iterator[dict[str, Any]]:
        for panel in self.panels:
            yield from (target for target in panel.get("targets", ()) if target["datasource"]["type"] == kind)


def dashboards() -> dict[str, Dashboard]:
    """The dashboards by name."""
    return {path.stem: Dashboard(json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json"))}


def documented(language: str) -> list[tuple[str, str]]:
    """The queries of the docs in this language, a line of a fenced block each, and the page of each."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [
        (path.name, query)
        for path in sorted(DOCS.glob("*.md"))
        for block in fence.findall(path.read_text())
        for query in block.splitlines()
    ]


def as_prometheus_is_asked(query: str, *, interval: str, over: str, service: str) -> str:
    """A query with Grafana's variables filled in."""
    filled = {"$__rate_interval": interval, "$__range": over, "$service": service, "$ledger": ".*"}
    for variable, value in filled.items():
        query = query.replace(variable, value)
    return query
