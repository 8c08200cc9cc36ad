"""Imports point one way: read from the source, compared with the table of the house (docs/contributing.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sagaspan"
ADAPTERS = ROOT / "adapters"

# Each room, and the rooms it may import from; "" is a module at the top of the package.
BASE = {
    "_checks", "_live", "_durations", "exceptions", "semconv", "codecs", "keys", "amounts", "budget", "scopes", "rate",
    "loops", "_clock", "_fork", "_reentry", "_frozen", "_owner", "_home", "rendering", "assurance",
    "_strict_json", "_characters", "_scripts", "_commands", "_names",
}  # fmt: skip
DATA = BASE | {
    "expressions", "policy", "_sameness", "_compensation", "_cost", "_probe", "_tool", "_backends", "_call", "_context",
    "_metrics", "_middleware", "_repeats", "_signals", "_spans", "redaction", "_gates", "approvers", "_console",
    "rules", "_observed", "_reading", "_waiting", "_call_content",
}  # fmt: skip
ALLOWED = {
    "exceptions": set(),
    "semconv": set(),
    "codecs": set(),
    "keys": set(),
    "_clock": set(),
    "_names": set(),
    "_unshown": set(),
    "_frozen": set(),
    "_tracebacks": {"exceptions"},
    "_live": {"_fork"},
    "_secret": {"exceptions", "_home"},
    "redaction": {"codecs", "exceptions"},
    "_durations": {"exceptions", "_checks"},
    "_fork": set(),
    "_reentry": {"exceptions"},
    "_owner": {"_fork"},
    "_home": {"exceptions"},
    "_checks": {"exceptions"},
    "expressions": {"exceptions"},
    "_threads": {"_fork"},
    "_backends": {"_clock", "_reaper", "_threads"},
    "policy": {"exceptions", "_checks", "_declared", "_names", "assurance", "expressions", "rate"},
    "rules": {"exceptions", "_checks", "_declared", "_names", "expressions", "policy"},
    "notify": {"exceptions", "_declared", "_post", "signing"},
    "_notifier": BASE | {"_metrics", "ledger", "_post", "notify", "signing"},
    "_policy_file": {"exceptions", "policy", "rules"},
    "_policy_watch": {"exceptions", "_clock", "_fork", "_policy_file", "policy"},
    "_explained": DATA | {"_defaults", "middleware", "_policy_file"},
    "_policy_check": DATA | {"_defaults", "notify", "_policy_file", "llm"},
    "_policy_schema": BASE | {"_defaults", "notify", "_policy_file", "policy", "rules"},
    "_observed": {"exceptions", "semconv", "_call", "_spans"},
    "_call_content": {"codecs", "semconv", "_live", "_spans", "redaction"},
    "_waiting": {"semconv", "_call", "_context", "_spans", "ledger.records"},
    "_run_spans": {"exceptions", "semconv", "_backends", "_clock", "_metrics", "_spans", "ledger.records"},
    "_repeats": {"_fork", "_context"},
    "_signals": {"loops", "_fork", "keys", "ledger.records", "ledger.store"},
    "_defaults": BASE,
    "_loops": BASE | {"_signals", "_engine", "_run", "middleware.loop", "ledger.records"},
    "_characters": set(),
    "_commands": {"_characters"},
    "_scripts": {"_characters"},
    "rendering": {"codecs", "_characters", "_scripts"},
    "assurance": set(),
    "_strict_json": set(),
    "signing": {"exceptions", "_strict_json"},
    "_post": {"exceptions", "_deadline"},
    "_deadline": set(),
    "webhooks": BASE | {"_post", "approvers", "signing", "ledger.grants"},
    "approvers": {"exceptions", "_checks", "_compensation", "_console", "assurance", "ledger.records", "rendering"},
    "_gates": {"exceptions", "_checks", "_compensation", "expressions", "policy"},
    "_console": BASE | {"approvers"},
    "_approvals": BASE | {"ledger", "_backends", "_tool", "approvers", "expressions", "webhooks"},
    "_cost": {"exceptions", "amounts", "_compensation"},
    "_declared": {"exceptions"},
    "amounts": {"exceptions"},
    "budget": {"exceptions", "_declared", "amounts"},
    "scopes": {"exceptions", "amounts", "budget"},
    "rate": {"exceptions", "_declared"},
    "loops": set(),
    "llm": {"exceptions", "_clock", "_declared", "amounts", "policy", "llm"},
    "_spans": {"exceptions", "semconv", "_live"},
    "_chains": set(),
    "_billed": {"exceptions", "_chains"},
    "_outcome": {"exceptions", "policy", "_chains"},
    "_sameness": set(),
    "_compensation": {"exceptions", "_checks", "_sameness"},
    "_probe": {"exceptions", "_compensation"},
    "_tool": {
        "exceptions",
        "_checks",
        "expressions",
        "policy",
        "redaction",
        "_compensation",
        "_cost",
        "_gates",
        "_sameness",
        "_probe",
    },
    "_call": {
        "exceptions",
        "amounts",
        "_frozen",
        "_repeats",
        "_signals",
        "_backends",
        "_compensation",
        "_tool",
        "keys",
        "ledger.records",
    },
    "_context": {"exceptions"},
    "_reading": {"_fork"},
    "_foreign": set(),
    "_middleware": {"_call", "_checks", "exceptions", "ledger.records"},
    "ledger": DATA | {"ledger", "_outcome", "_secret"},
    "middleware": DATA | {"_unshown", "ledger.records", "ledger.approvals", "ledger.edits"},
    "stores": BASE | {"stores", "ledger.records", "ledger.chain", "ledger.contents", "ledger.seal", "ledger.store"},
    "_endings": {"exceptions", "ledger.transitions"},
    "_steps": {"ledger"},
    "_undone": {"_commands", "ledger.records"},
    "_rollback": DATA | {"ledger", "_undone"},
    "_saga": DATA | {"ledger", "_endings", "_rollback", "_run_spans", "_steps", "_undone"},
    "_undo": DATA | {"ledger", "_saga", "_steps", "_undone"},
    "_retries": DATA | {"ledger", "_rollback"},
    "_alone": DATA | {"ledger", "_rollback", "_retries", "_saga"},
    "_told": {"exceptions", "_commands", "ledger.records"},
    "_question": DATA | {"ledger"},
    "_coverage": set(),
    "_spelling": DATA | {"ledger"},
    "_call_keys": DATA | {"_spelling", "ledger.records"},
    "_making": DATA | {"_call_keys", "_spelling"},
    "_session": DATA | {"ledger"},
    "_outside": DATA,
    "_policy_in_force": DATA | {"_policy_file", "_policy_watch"},
    "_known_tools": DATA | {"_policy_in_force", "ledger"},
    "_noted": DATA | {"_policy_file", "ledger"},
    "_onion": DATA | {"_noted", "_question", "ledger", "middleware"},
    "_engine": DATA
    | {"_defaults", "_known_tools", "_making", "_notifier", "_onion", "_outside", "_policy_file", "_policy_in_force"}
    | {"_question", "_session", "_spelling", "_told", "ledger", "notify"},
    "_completion": DATA | {"ledger", "_saga", "_steps"},
    "_in_flight": {"exceptions", "ledger.records"},
    "_orphans": DATA | {"ledger", "_steps"},
    "_numbers": DATA,
    "_leaving": DATA | {"ledger", "_completion", "_endings", "_orphans", "_saga", "_undo", "_undone"},
    "_run": DATA
    | {
        "ledger",
        "_completion",
        "_leaving",
        "_numbers",
        "_endings",
        "_in_flight",
        "_orphans",
        "_reaper",
        "_run_spans",
        "_saga",
        "_undo",
        "_undone",
        "_usage",
    },
    "_recovery": DATA
    | {"ledger", "_alone", "_completion", "_endings", "_retries", "_run", "_run_spans", "_saga", "_session"}
    | {"_steps", "_undone"},
    "_metrics": {"semconv", "_clock", "_spans"},
    "_usage": BASE | {"ledger"},
    "_carried": BASE | {"ledger"},
    "_accounts": BASE | {"ledger", "_backends", "_carried", "_usage"},
    "_reaper": {"exceptions", "_fork"},
    "_headroom": BASE | {"_call", "ledger", "llm"},
    "_said": {"semconv", "_spans", "_live", "llm"},
    "_llm_spans": DATA | {"ledger.records", "llm"},
    "_unmetered": DATA | {"_llm_spans"},
    "_llm_booked": DATA | {"ledger", "llm"},
    "_llm_growth": DATA | {"ledger", "llm", "_headroom"},
    "_llm": DATA
    | {"ledger", "llm", "_billed", "_headroom", "_llm_booked", "_llm_growth", "_llm_spans", "_making", "_reaper"}
    | {"_said", "_unmetered"},
    "_llm_function": {"exceptions", "_llm", "llm"},
    "_estimates": {"exceptions", "_checks", "llm"},
    "_freezes": BASE | {"ledger"},
    "_views": BASE | {"ledger", "_freezes", "_backends", "_probe", "_saga"},
    "_anchors": {"exceptions", "_clock", "ledger.chain", "ledger.records"},
    "_audit": BASE | {"ledger", "_backends", "_anchors"},
    "_adapters": {"exceptions", "_checks"},
    "_prune": BASE | {"ledger"},
    "_mirror": BASE | {"_spans", "index.ledger", "ledger"},
    "_guarded": DATA | {"_engine", "_tracebacks"},
    "_opening": DATA | {"_engine", "_run", "ledger"},
    "status": DATA
    | {
        "_alone",
        "_approvals",
        "_commands",
        "_completion",
        "_endings",
        "_freezes",
        "_recovery",
        "_saga",
        "_steps",
        "_views",
        "ledger",
        "status",
    },
    "_guard": DATA
    | {
        "status",
        "_guarded",
        "_opening",
        "_tracebacks",
        "ledger",
        "stores",
        "_engine",
        "_coverage",
        "_question",
        "_run",
        "_undo",
        "_undone",
        "_recovery",
        "_prune",
        "_adapters",
        "_views",
        "notify",
        "_approvals",
        "_audit",
        "_llm",
        "_llm_function",
        "_loops",
        "_making",
        "_noted",
        "_defaults",
        "_freezes",
        "_policy_file",
        "_policy_watch",
        "_usage",
        "_accounts",
        "llm",
    },
    "adapters": {
        "_adapters",
        "_context",
        "_foreign",
        "_guard",
        "_llm",
        "_names",
        "_question",
        "_reaper",
        "_sameness",
        "_spans",
        "_told",
        "_tool",
        "_tracebacks",
        "policy",
    },
    "telemetry": {"exceptions", "_checks", "semconv", "telemetry", "_fork", "_home", "_metrics"},
    "index": {"exceptions", "semconv", "index"},
    "testing": DATA | {"ledger", "stores", "testing", "_audit", "_engine", "_guard", "_run", "_views"},
    "cli": None,  # whatever it shows
    "__main__": {"cli"},
    "": {"cli"},
}


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


def _imports(path: Path) -> set[str]:
    """The modules of ours that a file imports when it runs; those for type checkers only do not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sagaspan":
            module = (node.module or "").removeprefix("sagaspan").removeprefix(".")
            submodules = {f"{module}.{name.name}".lstrip(".") for name in node.names}
            found |= submodules & KNOWN or {module}
        elif isinstance(node, ast.Import):
            found |= {name.name.removeprefix("sagaspan.") for name in node.names if name.name.startswith("sagaspan")}
    return found


KNOWN = {name for name, _ in _modules()}


@pytest.mark.parametrize(("module", "path"), [pytest.param(*found, id=found[0] or "top") for found in _modules()])
def test_a_module_imports_only_from_the_rooms_below_it(module: str, path: Path) -> None:
    """Layers know nothing of each other, and nobody imports the command line or an adapter."""
    allowed = ALLOWED[module.partition(".")[0]]
    if allowed is None:
        return
    for imported in _imports(path):
        room = imported.partition(".")[0]
        assert imported in allowed or room in allowed, f"{module or 'sagaspan'} imports {imported}"


def test_layers_of_the_onion_do_not_know_each_other() -> None:
    """A layer imports no other layer."""
    for path in (SOURCE / "middleware").glob("*.py"):
        assert not any(imported.startswith("middleware.") for imported in _imports(path)), path.name


def test_adapters_import_only_public_names() -> None:
    """An adapter builds on what everybody else's adapter could build on."""
    for path in ADAPTERS.rglob("*.py"):
        private = [name for name in _imports(path) if any(part.startswith("_") for part in name.split("."))]
        assert not private, f"{path.name} imports {private}"
