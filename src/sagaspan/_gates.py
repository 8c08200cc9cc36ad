"""Whether somebody is asked about a call: the ``approve`` of a policy, compiled and checked when it is declared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sagaspan._checks import signature_of
from sagaspan._compensation import is_async_callable, name_of
from sagaspan.exceptions import ConfigurationError
from sagaspan.expressions import Expression
from sagaspan.policy import Policy, gates_of

_log = logging.getLogger("sagaspan")


@dataclass(frozen=True, slots=True)
class Gate:
    """One reason to ask; ``says`` names it. Without condition it always asks."""

    says: str
    condition: Callable[[Mapping[str, Any]], Any] | None = None

    def asks(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with ``arguments`` is asked about: only a plain False says no, an error asks."""
        if self.condition is None:
            return True
        try:
            return self.condition(arguments) is not False
        except Exception as error:  # noqa: BLE001 - what cannot be judged is for a person
            _log.warning("approve %s cannot be judged, so somebody is asked: %s", self.says, error)
            return True


def gates_for(policy: Policy, parameters: tuple[str, ...], where: str) -> tuple[Gate, ...]:
    """The gates of a tool; raises ``ConfigurationError``."""
    gates = tuple(_gate(gate, parameters, where) for gate in gates_of(policy.approve))
    if policy.approval is not None and not gates:
        raise ConfigurationError(f"{where} has approval= but no approve= that would ask; say approve=True, or when")
    return gates


def gates_said(policy: Policy, where: str) -> tuple[Gate, ...]:
    """The gates of a policy file, for a tool whose parameters nobody knows: what is not among the arguments asks."""
    return tuple(
        Gate("always") if gate is True else Gate(gate, Expression(gate, where=f"{where}, approve").evaluate)
        for gate in gates_of(policy.approve)
    )


def _gate(gate: Any, parameters: tuple[str, ...], where: str) -> Gate:
    if gate is True:
        return Gate("always")
    if isinstance(gate, str):
        expression = Expression(gate, where=f"{where}, approve")
        expression.check(parameters)
        return Gate(gate, expression.evaluate)
    if is_async_callable(gate):
        raise ConfigurationError(f"{where}: its approve function is async, but it is called without a loop; use def")
    names = tuple(signature_of(gate, f"{where}: its approve").parameters)
    unknown = [name for name in names if name not in parameters]
    if unknown:
        raise ConfigurationError(
            f"{where}: nothing can fill the parameter {unknown[0]!r} of its approve function; it can take "
            f"{', '.join(parameters) or 'nothing'}"
        )
    return Gate(name_of(gate), lambda arguments: gate(**{name: arguments[name] for name in names}))
