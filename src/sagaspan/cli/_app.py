"""``--app MODULE:GUARD``: the user's own guard, with the tools that only their code has."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sagaspan.exceptions import SagaspanError

if TYPE_CHECKING:
    from sagaspan import Guard


def load_guard(named: str, *, store: str | None = None) -> Guard:
    """The guard ``MODULE:GUARD`` (``GUARD`` alone may be left out if it is called ``guard``); raises ``UsageError``.

    The module is looked up in the current folder first. ``store`` is a ``--store`` that was given too.
    """
    from sagaspan import Guard
    from sagaspan.stores import connect

    module_name, _, attribute = named.partition(":")
    attribute = attribute or "guard"
    if sys.path[:1] != [str(Path.cwd())]:
        sys.path.insert(0, str(Path.cwd()))
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise click.UsageError(f"--app {named}: {module_name!r} is no module name; write MODULE:GUARD")
    found = _import(module_name, named)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(
                f"--app {named}: {module_name} has no {attribute!r}; write MODULE:NAME_OF_YOUR_GUARD"
            )
        found = getattr(found, part)
    if not isinstance(found, Guard):
        raise click.UsageError(f"--app {named}: {attribute!r} is a {type(found).__name__}, not a sagaspan.Guard")
    if store is not None and connect(store).url != found._store.url:  # noqa: SLF001 - the same house
        raise click.UsageError(f"--app {named}: this guard has another ledger than --store {store}; leave --store out")
    return found


def _import(module_name: str, named: str) -> object:
    from sagaspan._context import only_declaring

    try:
        with only_declaring(module_name):
            return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise click.UsageError(
                f"--app {named}: there is no module {module_name!r} in {Path.cwd()} or among the installed ones"
            ) from error
        raise click.UsageError(f"--app {named}: importing {module_name!r} failed: {error}") from error
    except SagaspanError as error:
        raise click.UsageError(f"--app {named}: importing {module_name!r} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise click.UsageError(
            f"--app {named}: importing {module_name!r} failed: {type(error).__name__}: {error}"
        ) from error
