"""What a doubter should be able to run: bounded in the normal suite, in full with ``SAGASPAN_PROOFS=full``."""

import os

FULL = os.environ.get("SAGASPAN_PROOFS") == "full"


def sides(step: int, *, other: bool = False) -> tuple[str, ...]:
    """Where a process dies: before and after a durable step; in the normal suite the one or, in turn, the other."""
    both = ("before", "after")
    return both if FULL else (both[(step + other) % 2],)
