"""Finding the adapter and the versions it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sagaspan import ConfigurationError
from sagaspan_langchain import _compat, _compat_tasks, adapter


def test_the_adapter_imports_no_framework() -> None:
    """Importing the library and its adapters, and asking one about foreign objects, imports no framework."""
    code = (
        "import sys, sagaspan, sagaspan_crewai, sagaspan_functions, sagaspan_langchain\n"
        "assert not sagaspan_crewai.adapter.knows(print)\n"
        "assert not sagaspan_langchain.adapter.knows(print)\n"
        "assert not sagaspan_langchain.adapter.knows([])\n"
        "found = [name for name in sys.modules if name.startswith(('crewai', 'langchain', 'langgraph'))]\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_knows_objects_by_where_their_classes_come_from() -> None:
    """A subclass of a LangChain class in the user's module is LangChain's; its look-alikes are not."""
    from tests.adapters.langchain.test_differential import Method

    assert adapter.knows(Method())
    assert adapter.knows((Method(), print))
    assert not adapter.knows(object())


@pytest.mark.parametrize(
    ("owner", "name"), [(_compat.BaseTool, "_filter_injected_args"), (_compat_tasks.PregelLoop, "_first")]
)
def test_missing_internals_are_named_with_the_versions_needed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """A LangChain or LangGraph that changed underneath is refused when something is wrapped, with what is needed."""
    monkeypatch.delattr(owner, name)
    _compat.check.cache_clear()
    with pytest.raises(ConfigurationError, match=r"langgraph>=1\.2\.12.*installed: langchain-core"):
        _compat.check()
    _compat.check.cache_clear()
