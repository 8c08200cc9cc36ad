"""The names of a namespace's tools, recorded at their first call: the command line has no other way to know them.

Only a tool with more than one name is recorded, as a fact of the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from sagaspan._names import is_glob, matches
from sagaspan.exceptions import StoreError
from sagaspan.ledger.pages import page_of
from sagaspan.ledger.records import ApprovalRecord, CallRecord
from sagaspan.ledger.store import Store

_FACT: Final = "tool names:"
_TOOL: Final = "tool:"


def record_names(store: Store, namespace: str, known_as: tuple[str, ...], title: str) -> None:
    """Record the names of a tool, the canonical one first; raises ``StoreError``."""
    name, said = f"{_FACT}{known_as[0]}", json.dumps({"names": list(known_as), "title": title})
    while (known := store.facts(namespace).get(name)) != said:
        if store.put_fact(namespace, name, said, expected=known):
            return


class ToolNames:
    """The names of the tools of one namespace, as far as they are on record; raises ``StoreError``."""

    def __init__(self, store: Store, namespace: str) -> None:
        facts = store.facts(namespace)
        said: list[dict[str, Any]] = [json.loads(value) for name, value in facts.items() if name.startswith(_FACT)]
        self._names = {one["names"][0]: tuple(one["names"]) for one in said}
        self.titles = {one["names"][0]: str(one["title"]) for one in said if one["title"]}

    def of(self, tool: str) -> tuple[str, ...]:
        """Return all names of ``tool``, given its canonical one."""
        return self._names.get(tool, (tool,))

    def tools(self, pattern: str) -> set[str]:
        """Return the canonical names of the tools that a name or glob fits."""
        return {tool for tool, names in self._names.items() if matches(pattern, names)}

    def scopes(self, scope: str) -> tuple[str, ...]:
        """Return ``scope`` under each name of its tool, if it is that of a tool."""
        return tuple(map(_TOOL.__add__, self.of(scope.removeprefix(_TOOL)))) if scope.startswith(_TOOL) else (scope,)

    def canonical(self, scope: str) -> str:
        """Return ``scope`` under the canonical name of its tool, if exactly one tool has that name."""
        name = scope.removeprefix(_TOOL)
        tools = self.tools(name) if scope.startswith(_TOOL) and name not in self._names and not is_glob(name) else ()
        return f"{_TOOL}{next(iter(tools))}" if len(tools) == 1 else scope

    def spelt_in(self, scope: str, others: Collection[str]) -> str:
        """Return which of ``others`` is ``scope``, maybe under another name of its tool; if none is, ``scope``."""
        if scope in others:
            return scope
        wanted = self.canonical(scope)
        return next((other for other in others if self.canonical(other) == wanted), scope)


T = TypeVar("T", CallRecord, ApprovalRecord)


def only_of_tool(
    store: Store, pattern: str | None, read: Callable[..., list[T]], *, limit: int, offset: int
) -> list[T]:
    """Return a page of what ``read(limit=, offset=)`` lists, of all tools (None) or of those that ``pattern`` fits."""
    if pattern is None:
        return read(limit=limit, offset=offset)
    known: dict[str, ToolNames] = {}

    def fits(record: T) -> bool:
        if record.namespace not in known:
            known[record.namespace] = ToolNames(store, record.namespace)
        return matches(pattern, known[record.namespace].of(record.tool))

    return page_of(read, fits, limit=limit, offset=offset)


def titles(store: Store) -> dict[str, str]:
    """Return what people are shown instead of the names of tools, of all namespaces; nothing if it cannot be read."""
    try:
        spaces = {"default", *store.namespaces()}
        return {tool: title for space in spaces for tool, title in ToolNames(store, space).titles.items()}
    except StoreError:  # an error about this store is being shown: it must not be replaced by another one
        return {}
