"""``python -m sagaspan`` is the ``sagaspan`` command."""

from __future__ import annotations

from sagaspan.cli import main

main()
