"""The public names of ``sagaspan.testing``, and what they cost who does not ask for them."""

from __future__ import annotations

import subprocess
import sys

from sagaspan import testing


def test_every_public_name_is_there_and_documented() -> None:
    """``__all__`` is exactly what is public."""
    public = {name for name in vars(testing) if not name.startswith("_")}
    assert sorted(testing.__all__) == sorted(public - {"annotations"})
    for name in testing.__all__:
        assert getattr(testing, name).__doc__


def test_it_costs_nothing_and_needs_no_pytest() -> None:
    """Neither ``import sagaspan`` nor a guard brings it; it itself imports no test framework."""
    code = (
        "import sys, sagaspan; sagaspan.Guard('sqlite:///x.db').tool('x')(lambda: 1);"
        "print([name for name in sys.modules if name.startswith('sagaspan.testing')]);"
        "import sagaspan.testing; print([name for name in ('pytest', 'hypothesis', 'unittest') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]
