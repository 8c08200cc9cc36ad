"""The dashboards ask for metrics and attributes that we emit, and hold together; so do the files that bring them up.

That Grafana can read them, and that every query has an answer of a real Prometheus, is in ``tests/services``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest
import yaml

from sagaspan import semconv
from sagaspan.cli.metrics import metrics
from sagaspan.status.gauges import STATES
from tests.services.queries import Dashboard, dashboards, documented

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "dashboards"
SUFFIXES: Final = {
    semconv.COUNTER: ("_total",), semconv.GAUGE: ("",), semconv.HISTOGRAM: ("_bucket", "_sum", "_count"),
}  # fmt: skip
UNITS: Final = {"s": "_seconds"}
RESERVED: Final = {"job", "instance", "le", "otel_scope_name"}


def _series() -> dict[str, set[str]]:
    """Every series that Prometheus has of us, with its labels."""
    found = {"target_info": set(RESERVED)}
    for name, metric in semconv.METRICS.items():
        base = name.replace(".", "_") + UNITS.get(metric.unit, "")
        for suffix in SUFFIXES[metric.kind]:
            found[base + suffix] = {dimension.replace(".", "_") for dimension in metric.dimensions} | RESERVED
    return found


ATTRIBUTES: Final = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}


@pytest.fixture(params=["operations", "money"])
def dashboard(request: pytest.FixtureRequest) -> Dashboard:
    """Each of them."""
    return dashboards()[request.param]


def test_panels_are_told_apart_and_do_not_overlap(dashboard: Dashboard) -> None:
    """Ids are unique, the grid is 24 wide, and no place is taken twice."""
    ids = [panel["id"] for panel in dashboard.panels]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard.panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_says_what_it_shows(dashboard: Dashboard) -> None:
    """A title, and for what is not plain from it a description."""
    assert all(panel["title"] for panel in dashboard.panels)
    assert dashboard.json["schemaVersion"] == 42
    assert dashboard.json["uid"].startswith("sagaspan-")


def test_data_sources_are_variables(dashboard: Dashboard) -> None:
    """Nothing names a data source of somebody's Grafana: metrics, Jaeger and Tempo are chosen."""
    text = json.dumps(dashboard.json)
    chosen = {
        variable["name"]: variable["query"] for variable in dashboard.variables if variable["type"] == "datasource"
    }
    assert chosen == {"DS_PROMETHEUS": "prometheus", "DS_JAEGER": "jaeger", "DS_TEMPO": "tempo"}
    for kind, uid in re.findall(r'"type": "(prometheus|jaeger|tempo)", "uid": "([^"]*)"', text):
        assert chosen[uid.strip("${}")] == kind
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {dashboard.json["uid"], *(f"${{{name}}}" for name in chosen)}


def _selectors(text: str) -> Iterator[tuple[str, set[str]]]:
    for name, labels in re.findall(r"\b([a-zA-Z_]\w*)\{([^}]*)\}", text):
        yield name, set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', labels))


def test_metrics_and_labels_are_ours(dashboard: Dashboard) -> None:
    """Each series is one that the library measures, asked by labels that it has, for the chosen services only."""
    series = _series()
    assert dashboard.promql
    for query in dashboard.promql:
        selectors = list(_selectors(query))
        assert selectors, query
        for name, labels in selectors:
            assert name in series, query
            assert ("sagaspan_ledger" if name == "sagaspan_status_items" else "job") in labels, query
            assert labels <= series[name], query
        grouped = {label.strip() for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(",")}
        assert grouped <= set.union(*(series[name] for name, _ in selectors)), query


def test_legends_name_labels_that_the_query_keeps(dashboard: Dashboard) -> None:
    """A legend of a label that was summed away would be empty."""
    for panel in dashboard.panels:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            kept = {
                label.strip()
                for found in re.findall(r"by \(([^)]*)\)", target.get("expr", ""))
                for label in found.split(",")
            }
            assert named <= kept, panel["title"]


def test_every_metric_is_seen_somewhere() -> None:
    """Only what is plumbing is on no dashboard."""
    asked = {name for board in dashboards().values() for query in board.promql for name, _ in _selectors(query)}
    series = {name.replace(".", "_") for name in semconv.METRICS}
    unseen = {base for base in series if not any(name.startswith(base) for name in asked)}
    assert unseen <= {"sagaspan_probes", "sagaspan_notifications"}


def assert_found(tags: str) -> None:
    """Assert that a search of Jaeger's finds spans: the golden traces have every value that it asks for."""
    golden = "".join(file.read_text() for file in (ROOT / "tests" / "telemetry" / "golden").glob("*.txt"))
    for name, value in re.findall(r'([\w.]+)="([^"]*)"', tags):
        if name == "error":  # Jaeger's own word for the status
            continue
        assert name in ATTRIBUTES
        assert value.startswith("$") or f". {name}: str {value}\n" in golden, tags


def test_searches_for_traces_ask_for_attributes_that_we_set(dashboard: Dashboard) -> None:
    """TraceQL and Jaeger's tags name constants of ours."""
    for query in dashboard.traceql:
        assert re.fullmatch(r"\{[^{}]*\}( >> \{[^{}]*\})?( \| sum_over_time\([\w.]+\) by \([\w.]+\))?", query), query
        asked = re.findall(r"\bspan\.([\w.]+)", query)
        assert asked or "name" in query
        assert set(asked) <= ATTRIBUTES, query
    assert dashboard.traceql
    assert dashboard.jaeger_tags
    for tags in dashboard.jaeger_tags:
        assert_found(tags)


def test_searches_of_the_docs_ask_for_attributes_that_we_set() -> None:
    """Nobody copies a search that finds nothing, whatever there is."""
    queries = documented("traceql")
    assert queries
    for page, query in queries:
        assert set(re.findall(r"\bspan\.([\w.]+)", query)) <= ATTRIBUTES, (page, query)
        assert_found(" ".join(re.findall(r'\bspan\.([\w.]+ = "[^"]*")', query)).replace(" = ", "="))


def test_spend_is_shown_by_model_agent_tool_and_user() -> None:
    """Users are no label of a metric: theirs is counted from the spans that say what was spent, and for whom."""
    shown = {
        panel["title"]: panel["targets"][0].get("expr") or panel["targets"][0]["query"]
        for panel in dashboards()["money"].panels
        if panel["title"].startswith("Spend by") and panel["type"] == "timeseries"
    }
    dimensions = {title: re.search(r"by \(([\w.]+)\)", query)[1] for title, query in shown.items()}  # type: ignore[index]
    assert dimensions == {
        "Spend by model": "gen_ai_request_model", "Spend by agent": "gen_ai_agent_name",
        "Spend by tool": "gen_ai_tool_name", "Spend by user": f"span.{semconv.USER_ID}",
    }  # fmt: skip
    assert f"sum_over_time(span.{semconv.COST_USD})" in shown["Spend by user"]


def test_panels_lead_to_traces(dashboard: Dashboard) -> None:
    """A link of a panel opens a search for what was clicked, by a label that the panel has."""
    linked = [panel for panel in dashboard.panels if panel.get("fieldConfig", {}).get("defaults", {}).get("links")]
    assert len(linked) >= 3
    for panel in linked:
        queries = " ".join(target["expr"] for target in panel["targets"])
        for link in panel["fieldConfig"]["defaults"]["links"]:
            (panes,) = re.findall(r"panes=(.*)$", link["url"])
            (pane,) = json.loads(unquote(panes)).values()
            (search,) = pane["queries"]
            assert pane["datasource"] == "${DS_JAEGER}"
            assert search["queryType"] == "search"
            assert_found(search["tags"])
            for label in re.findall(r"__field\.labels\.(\w+)", search["tags"]):
                assert label in queries, panel["title"]


def test_what_is_provisioned_and_mounted_is_there() -> None:
    """Compose mounts files that exist, publishes nothing beyond this machine, and sets variables that are read."""
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    collector = (ROOT / "otel-collector.yaml").read_text()
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            assert (FOLDER / volume.split(":")[0]).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert re.search(r":v?\d", service["image"]), "an image without a version"
    for name in compose["services"]["collector"]["environment"]:
        assert f"${{env:{name}:-" in collector


def test_prometheus_scrapes_what_the_collector_offers() -> None:
    """The ports are those of the Collector, and its labels are left as they are."""
    prometheus = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    jobs: dict[str, Any] = {job["job_name"]: job for job in prometheus["scrape_configs"]}
    assert jobs["agents"]["honor_labels"] is True
    ports = {name: job["static_configs"][0]["targets"][0].partition(":")[2] for name, job in jobs.items()}
    assert ports["sagaspan"] == str(metrics.params[1].default)
    collector = (ROOT / "otel-collector.yaml").read_text()
    assert f"OTELCOL_PROMETHEUS:-127.0.0.1:{ports['agents']}" in collector
    assert f"OTELCOL_SELF_PORT:-{ports['collector']}" in collector


def test_an_exemplar_leads_to_jaeger() -> None:
    """The data source of metrics names that of traces by its uid."""
    sources = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "sagaspan.yaml").read_text())["datasources"]
    metrics, traces = sources
    (destination,) = metrics["jsonData"]["exemplarTraceIdDestinations"]
    assert destination == {"name": "trace_id", "datasourceUid": traces["uid"]}


def _mounts(service: dict[str, Any]) -> dict[str, str]:
    """What is mounted where, by the place within the container."""
    return {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}


def test_services_of_compose_find_each_other() -> None:
    """Every host and port that a file names is a service, at the port where that listens; every path is mounted."""
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    collector, config = services["collector"], (ROOT / "otel-collector.yaml").read_text()
    defaults = dict(re.findall(r"\$\{env:([A-Z_]+):-([^}]+)\}", config))
    set_ = {**defaults, **collector["environment"]}
    listens = {
        "collector": {set_[name].rpartition(":")[2] for name in ("OTELCOL_OTLP_GRPC", "OTELCOL_OTLP_HTTP")},
        "jaeger": {"16686"}, "prometheus": {"9090"}, "grafana": {"3000"},
    }  # fmt: skip
    assert set(services) == set(listens)
    for name, service in services.items():
        assert {port.split(":")[2] for port in service["ports"]} == listens[name]
        assert set(service.get("depends_on", ())) <= set(services)
        for argument in service.get("command", ()):
            if "config" in argument:
                assert argument.rpartition("=")[2] in _mounts(service), argument
    for address in ("OTELCOL_OTLP_GRPC", "OTELCOL_OTLP_HTTP", "OTELCOL_PROMETHEUS"):
        assert set_[address].startswith("0.0.0.0:"), "nobody in another container gets there"
    assert set_["OTELCOL_BACKEND"] == "jaeger:4317"
    assert _mounts(collector)["/etc/sagaspan/otel-collector.yaml"] == "../otel-collector.yaml"
    for folder in ("OTELCOL_TRACES_DIR", "OTELCOL_QUEUE_DIR"):
        assert any(set_[folder].startswith(f"{place}/") for place in _mounts(collector)), folder
    jobs = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {target for job in jobs for one in job["static_configs"] for target in one["targets"]}
    assert targets == {
        f"collector:{set_['OTELCOL_PROMETHEUS'].rpartition(':')[2]}",
        f"collector:{set_['OTELCOL_SELF_PORT']}",
        "host.docker.internal:9464",
    }
    assert "host.docker.internal:host-gateway" in services["prometheus"]["extra_hosts"]


def test_grafana_finds_its_data_sources_and_dashboards() -> None:
    """They are services of compose, one of each kind that the dashboards choose from; both dashboards are mounted."""
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    provisioning = FOLDER / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "sagaspan.yaml").read_text())["datasources"]
    for source in sources:
        host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
        assert any(published.endswith(f":{port}") for published in services[host]["ports"]), source["url"]
    assert {source["type"] for source in sources} == {source["uid"] for source in sources} == {"prometheus", "jaeger"}
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "sagaspan.yaml").read_text())["providers"]
    mounts = _mounts(services["grafana"])
    assert mounts["/etc/grafana/provisioning"] == "./provisioning"
    mounted = {place for place in mounts if place.startswith(f"{provider['options']['path']}/")}
    assert {mounts[place] for place in mounted} == {f"./{name}.json" for name in dashboards()}
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounted
    assert len({board.json["uid"] for board in dashboards().values()}) == len(dashboards())


def test_alerts_ask_for_series_and_states_that_we_have() -> None:
    """Every kind and state that the gauge has is told by an alert, and no alert asks for another."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    series, alerted = _series(), set()
    for rule in group["rules"]:
        for name, labels in _selectors(rule["expr"]):
            assert labels <= series.get(name, set()) or name == "up", rule["alert"]
        for kind, operator, states in re.findall(
            r'kind="(\w+)"(?:,sagaspan_status_state(=~|!=|=)"([^"]*)")?', rule["expr"]
        ):
            known = set(STATES[kind])
            named = set(states.split("|")) if states else known
            assert named <= known, rule["alert"]
            alerted |= {(kind, state) for state in (known - named if operator == "!=" else named)}
    assert alerted == {(kind, state) for kind, states in STATES.items() for state in states}
