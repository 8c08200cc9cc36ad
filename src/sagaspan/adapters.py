"""For people who write adapters: what an entry point of the group ``sagaspan.adapters`` builds on.

An adapter is an object with ``knows(target)`` and
``wrap(guard, target, book, *, name, run_id, budget, on_interrupt)``. It defines its framework's tools with
``guard.define(...)`` under ``guard.policy_for(...)`` and sends their calls through ``guard.call_tool`` or
``guard.acall_tool``, and its calls of models through ``guard.llm_call``, an ``LlmCall``.
"""

from __future__ import annotations

from sagaspan._adapters import Adapter
from sagaspan._context import approver_here, execution_here, hearing, task_here
from sagaspan._foreign import is_from, keyword_signature, under_name
from sagaspan._guard import guard_function
from sagaspan._llm import LlmCall
from sagaspan._names import model_name
from sagaspan._question import Question
from sagaspan._reaper import finalize
from sagaspan._sameness import MadeWith
from sagaspan._spans import end as end_span
from sagaspan._spans import start as start_span
from sagaspan._told import beside, told, told_of_tool
from sagaspan._tool import Tool, tool_behind
from sagaspan._tracebacks import outside as traceback_outside
from sagaspan.policy import PolicyBook

__all__ = [
    "Adapter", "LlmCall", "MadeWith", "PolicyBook", "Question", "Tool", "approver_here", "beside", "end_span",
    "execution_here", "finalize", "guard_function", "hearing", "is_from", "keyword_signature", "model_name",
    "start_span", "task_here", "told", "told_of_tool", "tool_behind", "traceback_outside",
    "under_name",
]  # fmt: skip
