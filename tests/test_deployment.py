"""The deployment that the docs tell of: its files can be read, name what is there, and say what is understood."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from sagaspan.cli import cli

DEPLOY = Path(__file__).parents[1] / "examples" / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("sagaspan*"))
MANIFESTS = [
    document for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]  # fmt: skip


def _pods(document: Any) -> Iterator[dict[str, Any]]:
    """The pod specifications in a manifest."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        for value in document.values():
            yield from _pods(value)


PODS = [(document["metadata"]["name"], pod) for document in MANIFESTS for pod in _pods(document)]
CONTAINERS = [
    (f"{name}/{one['name']}", pod, one) for name, pod in PODS
    for one in (*pod.get("initContainers", ()), *pod["containers"])
]  # fmt: skip


def _understood(command: list[str]) -> None:
    """Raises what the command line would refuse it with."""
    # A command keeps the help option of the first context that it is asked in: it must be the real one.
    context = click.Context(cli, info_name="sagaspan", **cli.context_settings)
    name, found, rest = cli.resolve_command(context, list(command))
    assert found is not None
    found.make_context(name, rest, parent=context)


def _commands() -> Iterator[tuple[str, list[str]]]:
    for where, _, container in CONTAINERS:
        yield where, container.get("command", [])
    for unit in UNITS:
        for line in re.findall(r"^ExecStart(?:Pre)?=(.*)$", unit.read_text(), re.MULTILINE):
            yield unit.name, shlex.split(line)


COMMANDS = [(where, command[1:]) for where, command in _commands() if command and command[0].endswith("sagaspan")]


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=[f"{where}-{command[0]}" for where, command in COMMANDS])
def test_the_command_line_understands_what_the_files_say(where: str, command: list[str]) -> None:
    """No unit and no manifest calls sagaspan with a verb or an option that it does not have."""
    _understood(command)


def test_a_verb_that_does_not_exist_would_be_found() -> None:
    """The check above can fail."""
    with pytest.raises(click.UsageError):
        _understood(["recover", "--wotch"])


@pytest.mark.parametrize(("where", "pod", "container"), CONTAINERS, ids=[where for where, _, _ in CONTAINERS])
def test_what_a_container_mounts_and_reads_is_in_the_manifests(where: str, pod: dict, container: dict) -> None:
    """Volumes, secrets and maps that containers name exist, or the file's head says how they are made."""
    volumes = {volume["name"] for volume in pod.get("volumes", ())} | {"data"}  # that of the claim of a StatefulSet
    assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
    there = {(document["kind"], document["metadata"]["name"]) for document in MANIFESTS}
    for source in container.get("envFrom", ()):
        for kind, name in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            assert name not in source or (kind, source[name]["name"]) in there


def test_selectors_and_ports_lead_to_what_they_name() -> None:
    """A Deployment finds its own pods, a Service the ports of its containers."""
    for document in MANIFESTS:
        spec = document.get("spec", {})
        if document["kind"] in ("Deployment", "StatefulSet"):
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        if document["kind"] == "Service":
            names = {port["name"] for *_, container in CONTAINERS for port in container.get("ports", ())}
            assert {port["targetPort"] for port in spec["ports"]} <= names


def test_the_variables_of_the_collector_are_those_of_its_configuration() -> None:
    """Nothing is set that ``otel-collector.yaml`` does not read, and its folders are on the disk that is mounted."""
    configuration = (DEPLOY.parents[1] / "otel-collector.yaml").read_text()
    (collector,) = (one for where, _, one in CONTAINERS if where == "sagaspan-collector/collector")
    assert [one["name"] for one in collector["env"] if f"env:{one['name']}" not in configuration] == []
    folders = [one["value"] for one in collector["env"] if one["name"].endswith("_DIR")]
    assert [folder for folder in folders if not folder.startswith("/var/lib/sagaspan/")] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_reads_every_unit(tmp_path: Path) -> None:
    """``systemd-analyze verify`` has nothing to say about the units, but for programs that are not installed here."""
    for unit in UNITS:
        text = re.sub(r"^(ExecStart(?:Pre)?)=\S+", r"\1=/bin/true", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    names = [str(tmp_path / unit.name.replace("@.", "@1.")) for unit in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "sagaspan" in line]
    assert said == []
