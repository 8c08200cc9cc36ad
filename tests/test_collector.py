"""``otel-collector.yaml`` holds together: names, references, order, and patterns against the names that we emit.

That a real Collector takes it, and does what it says, is in ``tests/services``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sagaspan import semconv

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "otel-collector.yaml").read_text()
CONFIG: dict[str, Any] = yaml.safe_load(TEXT)
MANIFEST: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "services" / "otelcol.yaml").read_text())
SECTIONS: Final = ("extensions", "receivers", "processors", "connectors", "exporters")

# The module of each component: what the builder is told, for what the configuration says.
MODULES: Final = {
    "extensions/health_check": "healthcheckextension",
    "extensions/file_storage": "filestorage",
    "receivers/otlp": "otlpreceiver",
    "processors/memory_limiter": "memorylimiterprocessor",
    "processors/transform": "transformprocessor",
    "processors/redaction": "redactionprocessor",
    "processors/tail_sampling": "tailsamplingprocessor",
    "connectors/forward": "forwardconnector",
    "connectors/span_metrics": "spanmetricsconnector",
    "exporters/file": "fileexporter",
    "exporters/otlp_grpc": "otlpexporter",
    "exporters/prometheus": "prometheusexporter",
}
CONTENT: Final = {
    *semconv.ARGUMENTS_ALIASES,
    *semconv.RESULT_ALIASES,
    *semconv.INPUT_ALIASES,
    *semconv.OUTPUT_ALIASES,
    semconv.GEN_AI_SYSTEM_INSTRUCTIONS,
    semconv.EXCEPTION_STACKTRACE,
}


def _pipelines() -> dict[str, dict[str, list[str]]]:
    return CONFIG["service"]["pipelines"]


def _used(section: str) -> set[str]:
    """The components of ``section`` that are in force: in a pipeline, or named as an extension."""
    if section == "extensions":
        return set(CONFIG["service"]["extensions"])
    ends = ("receivers", "exporters") if section == "connectors" else (section,)
    named = {name for pipeline in _pipelines().values() for end in ends for name in pipeline.get(end, ())}
    return named & set(CONFIG["connectors"]) if section == "connectors" else named - set(CONFIG["connectors"])


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_configured_is_used_and_what_is_used_is_configured(section: str) -> None:
    """No pipeline names a component that is not there, and none stands there idle."""
    assert _used(section) == set(CONFIG[section])


@pytest.mark.parametrize("section", SECTIONS)
def test_the_manifest_builds_exactly_what_is_used(section: str) -> None:
    """The Collector that the tests build has each component of the configuration, and no other."""
    built = {entry["gomod"].split()[0].rpartition("/")[2] for entry in MANIFEST[section]}
    assert built == {MODULES[f"{section}/{name.partition('/')[0]}"] for name in CONFIG[section]}


def test_a_connector_ends_one_pipeline_and_begins_another() -> None:
    """What is handed on is taken up."""
    for name in CONFIG["connectors"]:
        assert any(name in pipeline["exporters"] for pipeline in _pipelines().values())
        assert any(name in pipeline["receivers"] for pipeline in _pipelines().values())


def test_memory_is_limited_first_and_content_goes_before_anything_is_kept() -> None:
    """Wherever something comes in the limiter stands first; no exporter is before what drops and masks."""
    for pipeline in _pipelines().values():
        if "otlp" in pipeline["receivers"]:
            assert pipeline["processors"][0] == "memory_limiter"
            assert pipeline["processors"][-1] == "redaction"
    assert "transform/content" in _pipelines()["traces/in"]["processors"]


def test_the_file_and_the_metrics_see_what_sampling_drops() -> None:
    """They branch off before it."""
    before = _pipelines()["traces/in"]
    assert "tail_sampling" not in before["processors"]
    assert {"file/index", "span_metrics"} <= set(before["exporters"])


def test_the_queue_is_on_disk_and_never_gives_up() -> None:
    """The storage that the queue names is an extension that runs, and retries have no end."""
    exporter = CONFIG["exporters"]["otlp_grpc/traces"]
    assert exporter["sending_queue"]["storage"] in CONFIG["service"]["extensions"]
    assert exporter["retry_on_failure"]["max_elapsed_time"] == "0s"


def test_every_variable_has_a_default() -> None:
    """The file runs as it stands, and binds no address but this machine's."""
    variables = re.findall(r"\$\{([^}]*)\}", TEXT)
    assert variables
    for variable in variables:
        assert re.fullmatch(r"env:OTELCOL_[A-Z_]+:-\S+", variable), variable
    assert "0.0.0.0" not in TEXT


def test_every_variable_is_in_the_docs() -> None:
    """The table of the docs names them all, with their defaults."""
    table = (ROOT / "docs" / "dashboards.md").read_text()
    for name, default in re.findall(r"\$\{env:([A-Z_]+):-([^}]+)\}", TEXT):
        assert f"| `{name}` | `{default}` |" in table


def _statements(context: str) -> list[str]:
    groups = CONFIG["processors"]["transform/content"]["trace_statements"]
    return [line for group in groups if group["context"] == context for line in group["statements"]]


def _deleted() -> list[re.Pattern[str]]:
    found = [re.search(r'span\.attributes, "(.*)"\)', line) for line in _statements("span")]
    return [re.compile(match[1].replace(r"\\", "\\")) for match in found if match]


@pytest.mark.parametrize("name", sorted(CONTENT))
def test_content_is_dropped_under_every_name_that_we_know(name: str) -> None:
    """Arguments, results, messages and stacks do not leave the program, whoever recorded them."""
    assert any(pattern.search(name) for pattern in _deleted())


def test_nothing_else_of_ours_is_dropped_or_masked() -> None:
    """What spans are asked for later passes: no name of ours is taken for content or for a secret."""
    ours = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)} - CONTENT
    blocked = [re.compile(pattern) for pattern in CONFIG["processors"]["redaction"]["blocked_key_patterns"]]
    for name in sorted(ours - {semconv.ENV_CAPTURE_CONTENT}):
        assert not any(pattern.search(name) for pattern in (*_deleted(), *blocked)), name


def test_what_looks_like_a_secret_is_masked_and_an_id_is_not() -> None:
    """Card numbers, account numbers, keys and tokens; not ids, digests and times."""
    blocked = [re.compile(pattern) for pattern in CONFIG["processors"]["redaction"]["blocked_values"]]
    secrets = (
        "4111111111111111", "card 4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "sk-proj-abcdefghijklmnop1234",
        "sk_live_abcdefghijklmnop", "AKIAIOSFODNN7EXAMPLE", "ghp_" + "a" * 36, "xoxb-1234567890-abc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "Bearer abcdefghijklmnop",
        "-----BEGIN RSA PRIVATE KEY-----",
    )  # fmt: skip
    for secret in secrets:
        assert any(pattern.search(secret) for pattern in blocked), secret
    ids = (
        "order-17", "trip-8309be-declined", "c05ec2370016da147901d45962134e48", "1763723405123", "1763723405123456",
        "0198a6f2-7f3e-7c1a-9d55-1f2e3d4c5b6a", "2026-11-21T12:00:00.123456+00:00", "gpt-4o-2024-08-06", "THREAD-17/3",
    )  # fmt: skip
    for text in ids:
        assert not any(pattern.search(text) for pattern in blocked), text


def test_sampling_keeps_what_we_emit_under_the_names_that_we_use() -> None:
    """Policies ask for attributes of ours, by their names of today."""
    policies = {policy["name"]: policy for policy in CONFIG["processors"]["tail_sampling"]["policies"]}
    assert semconv.RUN_ID in policies["runs"]["ottl_condition"]["span"][0]
    assert semconv.APPROVAL_ID in policies["approvals"]["ottl_condition"]["span"][0]
    assert policies["refusals"]["boolean_attribute"] == {"key": semconv.CALL_EXECUTED, "value": False}
    assert policies["errors"]["status_code"]["status_codes"] == ["ERROR"]


def test_span_metrics_have_dimensions_that_we_emit() -> None:
    """A dimension is a name of ours, and no id of anything."""
    names = {value for value in vars(semconv).values() if isinstance(value, str)}
    for dimension in CONFIG["connectors"]["span_metrics"]["dimensions"]:
        assert dimension["name"] in names
        assert not dimension["name"].endswith(".id")


def test_an_id_that_is_not_masked_is_hashed_where_it_has_a_card_number_in_it() -> None:
    """Masked, two runs with numbers for ids became one; let through, an id could carry a card."""
    (group,) = CONFIG["processors"]["transform/ids"]["trace_statements"]
    hashed = {re.match(r'set\(span\.attributes\["([^"]+)"\], SHA256', line)[1] for line in group["statements"]}  # type: ignore[index]
    assert hashed == set(CONFIG["processors"]["redaction"]["ignored_keys"])
    assert semconv.RUN_ID in hashed
