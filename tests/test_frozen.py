"""A changed copy is what ``dataclasses.replace`` makes of frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from sagaspan._frozen import replaced


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    x: int

    def __post_init__(self) -> None:
        assert self.x >= 0


def test_the_copy_is_changed_and_the_original_is_not() -> None:
    """As with ``dataclasses.replace``."""
    point = Point(1, 2)
    assert replaced(point, y=3) == replace(point, y=3) == Point(1, 3)
    assert point == Point(1, 2)


def test_a_name_that_is_no_field_is_refused() -> None:
    """A typing error must not vanish."""
    with pytest.raises(TypeError, match="Point has no field 'z'"):
        replaced(Point(1), z=3)


@pytest.mark.parametrize("other", [Checked(1), object(), 5])
def test_what_checks_itself_or_has_no_slots_is_refused(other: object) -> None:
    """A copy of it would go round its check."""
    with pytest.raises(TypeError, match="no dataclass with slots"):
        replaced(other, x=-1)
