"""``sagaspan doctor``: what is installed, where everything is, and whether it is well."""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, Final

import click

from sagaspan._checks import check_variables, masked
from sagaspan._home import NAME as HOME_NAME
from sagaspan.cli._index import sampled, synced_index
from sagaspan.cli._options import NEEDS_PERSON, Settings, common_options, pass_settings
from sagaspan.cli._render import emit_json, emit_table
from sagaspan.exceptions import SagaspanError

_SQLITE: Final = "sqlite:///"
_PACKAGES: Final = (
    "sagaspan", "opentelemetry-sdk", "opentelemetry-exporter-otlp", "duckdb", "pydantic",
    "common-expression-language", "langchain-core", "langchain", "langgraph", "crewai", "openai", "anthropic",
    "psycopg", "pymysql",
)  # fmt: skip


_SECRETS: Final = ("SECRET", "KEY", "TOKEN", "PASS", "CREDENTIAL", "HEADERS")
"""What the name of a variable has in it whose value is for nobody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at: ``state`` is ok, note or problem."""

    what: str
    state: str
    found: str


@click.command()
@common_options
@pass_settings
@click.pass_context
def doctor(context: click.Context, settings: Settings) -> None:
    """What is installed, where everything is, and whether it is well; exit 4 on a problem."""
    findings = [*_installed(), *_adapters(), *_ledger(settings), *_traces(settings), *_environment(), *_app(settings)]
    if settings.as_json:
        emit_json(findings)
    else:
        emit_table(("what", "state", "found"), [(finding.what, finding.state, finding.found) for finding in findings])
    context.exit(NEEDS_PERSON if any(finding.state == "problem" for finding in findings) else 0)


def _installed() -> Iterator[Finding]:
    yield Finding(what="python", state="ok", found=f"{platform.python_version()} ({sys.executable})")
    for package in _PACKAGES:
        try:
            yield Finding(what=package, state="ok", found=version(package))
        except PackageNotFoundError:
            yield Finding(what=package, state="note", found="not installed")


def _adapters() -> Iterator[Finding]:
    from sagaspan._adapters import GROUP

    for point in entry_points(group=GROUP):
        yield _checked(f"adapter {point.name}", lambda point=point: _loads(point))  # type: ignore[misc] # bound now


def _loads(point: Any) -> str:
    point.load()
    return str(point.value)


def _ledger(settings: Settings) -> Iterator[Finding]:
    def look() -> str:
        facts = settings.open_store().describe()
        if facts["quick_check"] != "ok":
            raise ValueError(f"{facts['url']} is damaged ({facts['quick_check']}); restore a backup")
        if "wrong" in facts:
            raise ValueError(f"{facts['url']} {facts['wrong']}")
        return ", ".join(f"{name} {value}" for name, value in facts.items() if name != "quick_check")

    try:
        found = look()
    except SagaspanError as error:
        missing = "there is no ledger" in str(error)
        yield Finding(what="ledger", state="note" if missing else "problem", found=str(error))
    except ValueError as error:
        yield Finding(what="ledger", state="problem", found=str(error))
    else:
        yield Finding(what="ledger", state="ok", found=found)
        store = settings.open_store()
        if str(store.url).startswith(_SQLITE):
            yield from _readable_by_others(Path(str(store.url).removeprefix(_SQLITE)))
        else:
            yield from _secret(store)


def _secret(store: Any) -> Iterator[Finding]:
    """The key of the keyed hashes of a ledger on a server: all hosts must have the same."""
    for namespace in store.namespaces():
        try:
            where, is_known = store.seal.where_key_is(namespace)
        except SagaspanError as error:
            yield Finding(what="secret", state="problem", found=f"of the namespace {namespace}: {error}")
            continue
        found = f"{where}; the ledger was written with it" if is_known else f"{where}; nothing is written with it yet"
        yield Finding(what="secret", state="ok", found=f"of the namespace {namespace}: {found}")


def _readable_by_others(path: Path) -> Iterator[Finding]:
    """The files of a SQLite ledger that not only their owner can read, and its folder; the ledger made them so."""
    for file in sorted(path.parent.glob(f"{path.name}*")):
        if (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
            yield _exposed(file, f"others can read {file}" if mode & 0o044 else f"others can change {file}", 600)
    folder, mode = path.parent, stat.S_IMODE(path.parent.stat().st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        yield _exposed(folder, f"others can put another ledger into {folder}", 700)
    elif mode & 0o077 and folder.name == HOME_NAME:
        yield _exposed(folder, f"others can look into {folder}", 700)


def _exposed(path: Path, what: str, mode: int) -> Finding:
    return Finding(what="ledger", state="problem", found=f"{what}; chmod {mode} {path}")


def _traces(settings: Settings) -> Iterator[Finding]:
    folder = settings.traces
    if not folder.is_dir():
        yield Finding(what="traces", state="note", found=f"none at {folder}; call sagaspan.configure_tracing()")
        return
    from sagaspan.index.files import trace_files

    files = trace_files(folder)  # those of a Collector too, and compressed ones
    size = sum(file.stat().st_size for file in files)
    yield Finding(what="traces", state="ok", found=f"{folder}: {len(files)} files, {size / 1e6:.1f} MB")
    exposed = [path for path in (folder, *files) if path.stat().st_mode & 0o077]
    if exposed:
        yield Finding(what="traces", state="problem", found=f"others can read {exposed[0]}; chmod -R go= {folder}")
    elif files and (share := sampled(synced_index(settings), settings)):
        yield Finding(what="traces", state="note", found=share)


def _app(settings: Settings) -> Iterator[Finding]:
    """The user's guard, if one is named: whether it loads, and policies that are for nothing."""
    guard = settings.load_guard()
    if guard is None:
        return
    named = guard.unused_policies()
    yield Finding(what="app", state="ok", found=f"{settings.app_named}, {len(guard.tool_names)} tools")
    yield from (Finding(what="policy", state="note", found=sentence) for sentence in named)


def _environment() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name.startswith(("SAGASPAN_", "OTEL_")):
            yield _checked(name, lambda name=name: _variable(name))  # type: ignore[misc] # bound now


def _variable(name: str) -> str:
    """What a variable of the environment says, if that is for everybody; raises for the name of none."""
    check_variables({name: ""})
    return "(set, not shown)" if any(word in name for word in _SECRETS) else masked(os.environ[name])


def _checked(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what=what, state="ok", found=look())
    except Exception as error:  # noqa: BLE001 - whatever an adapter of somebody else raises is the finding
        return Finding(what=what, state="problem", found=f"{type(error).__name__}: {error}")
