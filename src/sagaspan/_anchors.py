"""Anchors: where every chain of the audit trail was at some moment, in a file that is kept elsewhere.

One JSON document a line: a head, then ``[namespace, run, number, hash]`` for each chain, and their count at the end, so
that a file that lost its end is not taken for one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from sagaspan._clock import now_us
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.chain import Link
from sagaspan.ledger.records import moment

Name = tuple[str, str]
"""The namespace and the run of a chain."""

_WHAT: Final = "sagaspan audit anchor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What a file of heads says; ``namespace`` None is of all."""

    chained_from: int
    namespace: str | None
    heads: dict[Name, Link] = field(default_factory=dict)


class AnchorWriter:
    """Writes the heads of chains as they come."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._count = 0

    def add(self, name: Name, head: Link) -> None:
        """One more chain."""
        self._count += 1
        self._file.write(json.dumps([*name, head[0], head[1].hex()]) + "\n")

    def end(self) -> None:
        """All chains are there."""
        self._file.write(json.dumps({"chains": self._count}) + "\n")


@contextmanager
def writing_anchor(path: Path, *, chained_from: int, namespace: str | None) -> Iterator[AnchorWriter]:
    """Write an anchor (0600), whole or not at all: what raises in it leaves the file as it was; a link is followed.

    Raises ``ConfigurationError`` if it cannot be written.
    """
    path = Path(os.path.realpath(path))
    if os.path.lexists(path) and not path.is_file():  # a device or a pipe would be gone, and nothing kept
        raise ConfigurationError(f"the anchor {path} cannot be written (it is no regular file)")
    head = {
        "what": _WHAT, "version": 1, "namespace": namespace, "chained_from": chained_from,
        "at": moment(now_us()).isoformat(),
    }  # fmt: skip
    beside: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        beside = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(head) + "\n")
            writer = AnchorWriter(file)
            yield writer
            writer.end()
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigurationError(f"the anchor {path} cannot be written ({error.strerror})") from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def read_anchor(path: Path) -> Anchor:
    """The anchor in a file; raises ``ConfigurationError`` if it is none, or not whole."""
    try:
        first, *lines, last = path.read_text(encoding="utf-8").splitlines()
        head = json.loads(first)
        heads = [json.loads(line) for line in lines]
        if head["what"] != _WHAT or head["version"] != 1 or json.loads(last) != {"chains": len(heads)}:
            raise ValueError("it is of another kind, or not whole")
        return Anchor(
            chained_from=int(head["chained_from"]), namespace=head["namespace"],
            heads={(str(space), str(run)): (int(number), bytes.fromhex(text)) for space, run, number, text in heads},
        )  # fmt: skip
    except OSError as error:
        raise ConfigurationError(f"the anchor {path} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"{path} is no anchor of an audit trail ({error}); write one: sagaspan audit verify --write-anchor FILE"
        ) from error
