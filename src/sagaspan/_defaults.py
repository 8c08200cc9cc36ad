"""What a guard does where its code does not say: the environment, else the policy file's ``[guard]``, else the default.

An operator who must overrule the code sets a limit instead (``sagaspan budgets set``), which is above all of them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from sagaspan import loops
from sagaspan._checks import check_flag, check_variables
from sagaspan.budget import Budget, Budgets, budgets_of
from sagaspan.exceptions import ConfigurationError

T = TypeVar("T")
Mode = Literal["enforce", "observe"]
ENV_BUDGET: Final = "SAGASPAN_BUDGET"
ENV_LOOP: Final = "SAGASPAN_LOOP"
ENV_FAIL_OPEN: Final = "SAGASPAN_FAIL_OPEN"
ENV_MODE: Final = "SAGASPAN_MODE"
FIELDS: Final = ("budget", "loop", "fail_open", "mode")
MODES: Final[tuple[Mode, ...]] = ("enforce", "observe")
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """``budget`` of each run, equal calls that a run may make where no policy says so, and what an outage lets by.

    ``mode`` says whether calls are refused, or only what would have refused them is noted.
    """

    budget: tuple[Budget, ...]
    loop: int | Literal[False]
    fail_open: bool
    mode: Mode


def defaults_of(
    file: Mapping[str, Any],
    source: str,
    *,
    budget: Budgets | None = None,
    fail_open: bool | None = None,
    mode: Mode | None = None,
    environment: Mapping[str, str] | None = None,
) -> Defaults:
    """What holds for a guard of these arguments (None: not given), whose policy file ``source`` has these tables.

    ``environment`` None is that of this process. Raises ``ConfigurationError`` for what is no such thing, by the name
    of where it is written.
    """
    table = _table(file.get("guard", {}), source)
    variables = os.environ if environment is None else environment
    check_variables(variables)

    def said(variable: str, field: str, read: Callable[[Any, str], T], default: T) -> T:
        text = variables.get(variable, "").strip()
        if text:
            return read(text, variable)
        return read(table[field], f"{source}, [guard] {field}") if field in table else default

    return Defaults(
        budget=budgets_of(budget) if budget is not None else said(ENV_BUDGET, "budget", _budgets, ()),
        loop=said(ENV_LOOP, "loop", _loop, loops.ALLOWED),
        fail_open=fail_open if fail_open is not None else said(ENV_FAIL_OPEN, "fail_open", _flag, False),
        mode=mode if mode is not None else said(ENV_MODE, "mode", _mode, "enforce"),
    )


def _table(table: object, source: str) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{source}: [guard] is a table of {', '.join(FIELDS)}")
    for name in table:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(FIELDS)}"
            raise ConfigurationError(f"{source}: [guard] has no field {name!r}; {hint}")
    return table


def _budgets(value: Any, where: str) -> tuple[Budget, ...]:
    return budgets_of(value, where=where)


def _loop(value: Any, where: str) -> int | Literal[False]:
    if isinstance(value, str):
        value = False if value.lower() in _NO else int(value) if value.isdecimal() else value
    if value is False or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ConfigurationError(f"{where} takes a whole number from 1 on, or false for any number of calls, not {value!r}")


def _mode(value: Any, where: str) -> Mode:
    for mode in MODES:
        if value == mode:
            return mode
    raise ConfigurationError(f"{where} takes 'enforce' or 'observe', not {value!r}")


def _flag(value: Any, where: str) -> bool:
    if isinstance(value, str):
        value = True if value.lower() in _YES else False if value.lower() in _NO else value
    check_flag(where, value)
    return bool(value)
