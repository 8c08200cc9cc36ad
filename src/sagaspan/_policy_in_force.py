"""Which content of the policy file holds, and the tools as it has them now."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from sagaspan._backends import Backend
from sagaspan._policy_file import PolicyFile
from sagaspan._policy_watch import PolicyWatch
from sagaspan._tool import Tool
from sagaspan.exceptions import ConfigurationError


class PolicyInForce:
    """The policy file of one guard, if it has any, and who looks whether it has changed (``watch``)."""

    def __init__(self, file: PolicyFile | None) -> None:
        self.file = file
        self.watch: PolicyWatch | None = None
        self._before: PolicyFile | None = None
        self._redefined: weakref.WeakKeyDictionary[Tool, Tool] = weakref.WeakKeyDictionary()

    @property
    def version(self) -> str | None:
        """The version of the file."""
        return None if self.file is None else self.file.version

    def of(self, version: str | None) -> PolicyFile | None:
        """The policy file of this version, for a call that began while another was put in force; else the newest."""
        before = self._before
        return before if before is not None and before.version == version else self.file

    def is_stale(self) -> bool:
        """Whether a newer content of the file could not be put in force."""
        return self.watch is not None and self.watch.problem is not None

    def look(self) -> None:
        """Go by what the policy file says now, if it is time to look."""
        if self.watch is not None and self.watch.is_due:
            self.watch.look()

    async def as_now(self, tool: Tool, backend: Backend) -> Tool:
        """``tool`` as the policy file has it now."""
        if self.watch is not None and self.watch.is_due:
            await backend.io(self.watch.look)
        return self.redefined(tool)

    def check(self, tool: Tool) -> None:
        """Refuse a tool that the rules of the file do not fit; raises ``ConfigurationError``."""
        if self.file is not None:
            self.file.rules.check(tool.known_as, tool.parameters, tool.policy.approval)

    def redefined(self, tool: Tool) -> Tool:
        """``tool`` as the file has it."""
        return self._redefined.get(tool, tool)

    def take(self, file: PolicyFile, tools: Mapping[Tool, Tool]) -> None:
        """Go by ``file``, and by ``tools`` as it has them."""
        self._redefined = weakref.WeakKeyDictionary(
            {before: tool for before, tool in tools.items() if tool is not before}
        )
        self._before, self.file = self.file, file


def check_adoptable(tools: Mapping[str, Tool], before: Tool, tool: Tool, file: PolicyFile) -> None:
    """Refuse ``tool``, which is ``before`` as ``file`` has it, where it does not fit what is declared here."""
    file.rules.check(tool.known_as, tool.parameters, tool.policy.approval)
    undo = tool.policy.compensate
    if isinstance(undo, str) and undo != before.policy.compensate and undo not in tools:
        raise ConfigurationError(f"{file.path}: tool {tool.name!r}: there is no tool {undo!r} to compensate it")
    if tool.policy.defer != before.policy.defer:
        raise ConfigurationError(
            f"{file.path}: tool {tool.name!r}: defer= is not changed while agents run; start this process again"
        )
