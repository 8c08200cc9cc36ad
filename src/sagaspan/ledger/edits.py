"""What an edit may be: all arguments by their names, as the tool's own schema reads them; what is redacted stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sagaspan import codecs
from sagaspan._tool import Reads
from sagaspan.exceptions import ResolutionError
from sagaspan.keys import canonical
from sagaspan.ledger.approvals import exact


class NoEdit(ResolutionError):
    """What was given in the place of the arguments cannot be: whoever gave it has not agreed to anything."""


def changed(asked: Mapping[str, Any], edited: Mapping[str, Any]) -> list[str]:
    """The names of those of the arguments ``asked`` about that are others in ``edited``; both are JSON data."""
    return [name for name, value in asked.items() if canonical(exact(value)) != canonical(exact(edited[name]))]


def as_read(tool: str, reads: Reads | None, asked: Mapping[str, Any], edited: Mapping[str, Any]) -> dict[str, Any]:
    """``edited`` (JSON data) as the schema of ``tool`` reads what is changed in it; raises ``NoEdit``."""
    known = sorted(asked)
    if sorted(edited) != known:
        raise NoEdit(
            f"an edit gives all arguments of {tool!r}: {', '.join(known) or 'none'}; it has "
            f"{', '.join(sorted(edited)) or 'none'}",
            tool_ran="no",
        )
    names = changed(asked, edited)
    for name in names:
        if any(codecs.holds_redacted(codecs.dump(given[name])) for given in (asked, edited)):
            raise NoEdit(
                f"the argument {name!r} of {tool!r} is redacted, or has fields that are, so nobody can edit it: leave "
                "it as it was shown, and it stays what it is",
                tool_ran="no",
            )
    if reads is None or not names:
        return dict(edited)
    try:
        found = reads({name: codecs.decode(codecs.dump(edited[name])) for name in names}, whole=False)
        return {**edited, **{name: codecs.to_json(found[name], name) for name in names}}
    except Exception as error:
        raise NoEdit(f"the edit of {tool!r} does not fit its schema: {said(error)}", tool_ran="no") from error


def said(error: Exception) -> str:
    """What a schema says of arguments, in one line, without their values."""
    errors: Callable[[], Any] | None = getattr(error, "errors", None)
    if errors is None:
        return f"{type(error).__name__}: {error}"
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors())
