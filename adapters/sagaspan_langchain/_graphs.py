"""A compiled graph whose tools are guarded and whose invocations are runs; the original graph is left as it is.

The copy is of a subclass of the graph's own class that overrides ``stream`` and ``astream``, through which LangGraph
sends ``invoke``, ``batch`` and the event streams too. What the class holds survives ``with_config`` and ``copy``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables.base import RunnableBindingBase, RunnableSequence
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from sagaspan import ConfigurationError, Guard
from sagaspan.adapters import PolicyBook
from sagaspan_langchain import _compat
from sagaspan_langchain._finding import found_in
from sagaspan_langchain._invocations import Invocations
from sagaspan_langchain._marks import guard_of, subclass
from sagaspan_langchain._reach import Scope, install
from sagaspan_langchain._steps import arun_step, run_step
from sagaspan_langchain._turns import Opening

__all__ = ["Opening", "wrap_graph"]
Graph = Pregel[Any, Any, Any, Any]


def wrap_graph(guard: Guard, graph: Graph, book: PolicyBook, opening: Opening) -> Graph:
    """``graph`` guarded; raises ``ConfigurationError`` for a policy of a tool it does not have."""
    if guard_of(graph) is not None:
        # Not silently the same object: policies given to a second wrap would do nothing.
        raise ConfigurationError(
            f"the agent {graph.get_name()!r} is guarded already; wrap it once, with all its policies"
        )
    found = found_in(graph)
    book.check_names(list(found.tools), where=f"the agent {graph.get_name()!r}")
    install()
    scope = Scope(guard=guard, book=book, peers=found.tools, bypassed=found.bypassed)
    scope.prepare()
    opening = opening.named(graph.get_name())
    return _of_class(_guarded_class(scope, type(graph), opening), graph, _Surgery(scope=scope, seen={}).nodes(graph))


def _of_class(kind: type[Graph], graph: Graph, nodes: dict[str, Any]) -> Graph:
    """The same graph with other nodes, as an object of ``kind``: no constructor runs, so nothing of it is lost."""
    copied = object.__new__(kind)
    copied.__dict__.update(graph.__dict__, nodes=nodes)
    return copied


# -- the tools inside ------------------------------------------------------------------------------------------


def _tool_nodes(graph: Graph) -> Iterator[ToolNode]:
    for node in graph.nodes.values():
        yield from _tool_nodes_in(node.bound)


def _tool_nodes_in(step: Any) -> Iterator[ToolNode]:
    if isinstance(step, ToolNode):
        yield step
    elif isinstance(step, Pregel):
        yield from _tool_nodes(step)
    elif isinstance(step, RunnableBindingBase):
        yield from _tool_nodes_in(step.bound)
    elif isinstance(step, RunnableSequence):
        for part in step.steps:
            yield from _tool_nodes_in(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surgery:
    """Copies of nodes whose tools are guarded; what holds no tool is shared with the original."""

    scope: Scope
    seen: dict[tuple[int, int], Any]

    def nodes(self, graph: Graph) -> dict[str, Any]:
        return {name: self._node(node, graph) for name, node in graph.nodes.items()}

    def _node(self, node: Any, graph: Graph) -> Any:
        bound = self._step(node.bound, graph)
        if bound is node.bound:
            return node
        update = {"bound": bound}
        if node.subgraphs:
            update["subgraphs"] = [self._step(inner, graph) for inner in node.subgraphs]
        return node.copy(update)

    def _step(self, step: Any, graph: Graph) -> Any:
        """``step`` of ``graph`` with guarded tools, or itself; one object has one copy wherever it stands in that."""
        key = (id(step), id(graph))
        if key not in self.seen:
            self.seen[key] = self._copied(step, graph)
        return self.seen[key]

    def _copied(self, step: Any, graph: Graph) -> Any:
        if isinstance(step, ToolNode):
            tools = {name: self.scope.tool(tool) for name, tool in _compat.tools_of(step).items()}
            merges = _compat.merges_by_id(graph, step)
            run, arun = (
                functools.partial(each, merges=merges, guarded=self.scope.tool) for each in (run_step, arun_step)
            )
            return _compat.with_tools(step, tools, run, arun)
        if not any(True for _ in _tool_nodes_in(step)):
            return step
        if isinstance(step, Pregel) and guard_of(step) is not None:
            return self._guarded_before(step)
        if isinstance(step, Pregel):
            return _of_class(type(step), step, self.nodes(step))
        if isinstance(step, RunnableBindingBase):
            return step.model_copy(update={"bound": self._step(step.bound, graph)})
        first, *middle, last = (self._step(part, graph) for part in step.steps)
        return step.model_copy(update={"first": first, "middle": middle, "last": last})

    def _guarded_before(self, graph: Graph) -> Graph:
        """A graph within that its owner guarded: it stays as it is, and its steps belong to the run it is in."""
        if guard_of(graph) is not self.scope.guard:
            raise ConfigurationError(
                f"the agent {graph.get_name()!r} is guarded by another guard; wrap the one around it with that one"
            )
        return graph


# -- the class that is made for one graph ----------------------------------------------------------------------


def _guarded_class(scope: Scope, base: type[Graph], opening: Opening) -> type[Graph]:
    ways = Invocations(scope=scope, opening=opening, through_others=False)
    made: type[Graph] = subclass(
        scope.guard, base, {"stream": ways.pieces(base.stream), "astream": ways.apieces(base.astream)}
    )
    return made
