"""What asking the index can end in, beside ``StoreUnavailable`` (cannot be opened) and ``SchemaOutdated``."""

from __future__ import annotations

from sagaspan.exceptions import SagaspanError


class QueryError(SagaspanError):
    """The SQL is wrong, does what the index does not allow, or took too long."""


class TraceNotFound(SagaspanError):
    """No trace has this id, or several begin with it: then ``matches`` holds some of their ids."""

    def __init__(self, message: str, *, matches: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.matches = matches
