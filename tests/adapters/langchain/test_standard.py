"""LangChain's own suites for tools, run on guarded ones."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool, tool

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_tests.integration_tests import ToolsIntegrationTests
    from langchain_tests.unit_tests import ToolsUnitTests

from sagaspan import Guard


@tool
def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


async def _multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


@tool(response_format="content_and_artifact")
def with_artifact(a: int, b: int) -> tuple[str, Any]:
    """Multiply, and show how."""
    return str(a * b), {"a": a, "b": b}


class Product(BaseTool):
    """A class of a user."""

    name: str = "product"
    description: str = "Multiply."

    def _run(self, a: int, b: int) -> int:
        return a * b


TOOLS = {
    "function": multiply,
    "coroutine": StructuredTool.from_function(coroutine=_multiply, func=multiply.func, name="both"),
    "artifact": with_artifact,
    "class": Product(),
}


class _Guarded:
    """The properties that both suites ask for."""

    shape = "function"

    @pytest.fixture(autouse=True)
    def guarded(self, tmp_path: Any) -> Any:
        with Guard(f"sqlite:///{tmp_path}/ledger.db") as guard:
            self._tool = guard.wrap(TOOLS[self.shape], {"*": {"effect": "write"}})
            yield

    @property
    def tool_constructor(self) -> BaseTool:
        return self._tool

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return {}

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"a": 2, "b": 3}

    @pytest.fixture
    def tool(self, guarded: Any) -> BaseTool:
        return self._tool


class TestFunctionUnit(_Guarded, ToolsUnitTests):
    """A function, guarded."""


class TestFunction(_Guarded, ToolsIntegrationTests):
    """A function, guarded and called."""


class TestCoroutineUnit(_Guarded, ToolsUnitTests):
    """A function and a coroutine, guarded."""

    shape = "coroutine"


class TestCoroutine(_Guarded, ToolsIntegrationTests):
    """A function and a coroutine, guarded and called."""

    shape = "coroutine"


class TestArtifactUnit(_Guarded, ToolsUnitTests):
    """Content and artifact, guarded."""

    shape = "artifact"


class TestArtifact(_Guarded, ToolsIntegrationTests):
    """Content and artifact, guarded and called."""

    shape = "artifact"


class TestClassUnit(_Guarded, ToolsUnitTests):
    """A class of a user, guarded."""

    shape = "class"


class TestClass(_Guarded, ToolsIntegrationTests):
    """A class of a user, guarded and called."""

    shape = "class"
