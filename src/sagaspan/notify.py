"""Who is told of what needs a person: a signed message to a service of yours, at least once (docs/notifications.md)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field

from sagaspan._declared import DeclaredModel
from sagaspan._post import check_url
from sagaspan.exceptions import ConfigurationError
from sagaspan.signing import key_of

Event = Literal["run.failed", "compensation.failed", "call.unknown", "approval.waiting", "budget.soft_limit"]
EVENTS: Final[tuple[str, ...]] = get_args(Event)


class Notify(DeclaredModel):
    """Tell the service at ``url`` of ``events`` (all of them), signed with ``secret`` as Standard Webhooks has it.

    ``secret_env`` names the variable of the environment that has the secret, for files. ``trust_env=True`` uses the
    proxies and the ``.netrc`` of the environment, but never for this machine. Raises ``ConfigurationError``.
    """

    url: Annotated[str, Field(description="a URL")]
    secret: Annotated[str | None, Field(repr=False, description="a text of 24 bytes or more")] = None
    secret_env: Annotated[str | None, Field(description="the name of a variable of the environment")] = None
    events: Annotated[
        tuple[Event, ...],
        BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
        Field(min_length=1, description=f"a list of some of {', '.join(EVENTS)}"),
    ] = get_args(Event)
    trust_env: Annotated[bool, Field(description="true or false")] = False

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        super().__init__(*values, **fields)
        check_url(self.url, "Notify(url)")
        if (self.secret is None) == (self.secret_env is None):
            raise ConfigurationError(f"Notify({self.url!r}) takes one of secret= and secret_env=")
        self.key()

    def key(self) -> bytes:
        """What messages are signed with."""
        if self.secret is not None:
            return key_of(self.secret)
        found = os.environ.get(self.secret_env or "")
        if found is None:
            raise ConfigurationError(f"the variable {self.secret_env} with the secret of {self.url!r} is not set")
        return key_of(found)

    @property
    def name(self) -> str:
        """How the ledger knows its receiver: the URL may hold a token, so only a hash of that is written."""
        return f"hook-{hashlib.sha256(self.url.encode()).hexdigest()[:12]}"


Notifies: TypeAlias = Notify | Sequence[Notify]


def hooks_of(given: Notifies | None, tables: object, source: str) -> tuple[Notify, ...]:
    """The hooks that a guard and the ``[[notify]]`` tables of its file name; raises ``ConfigurationError``."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigurationError(f"{source}: hooks are tables [[notify]] with url, secret_env and events")
    own = [given] if isinstance(given, Notify) else list(given or ())
    if not all(isinstance(hook, Notify) for hook in own):
        raise ConfigurationError("notify takes a Notify(url, secret=...), or a list of them")
    hooks = (*own, *(Notify(**table) for table in tables))
    if len({hook.name for hook in hooks}) < len(hooks):
        raise ConfigurationError("notify names one URL twice; give it all of its events at once")
    return hooks
