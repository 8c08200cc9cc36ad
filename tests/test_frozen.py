"""Frozen data that is made quickly is what ``dataclasses`` makes, and a changed copy what its ``replace`` does."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from sagaspan._frozen import quick, replaced


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@quick
@dataclass(frozen=True, slots=True)
class Place:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)
    name: str = field(kw_only=True)
    note: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class PlainPlace:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)
    name: str = field(kw_only=True)
    note: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Checked:
    x: int

    def __post_init__(self) -> None:
        assert self.x >= 0


@dataclass(frozen=True, slots=True)
class Derived(Point):
    z: int = 0


def test_it_is_made_of_the_same_arguments() -> None:
    """In place and by name, with defaults, and with a new one of what is made for each."""
    place, other = Place(1, 2, name="here"), Place(1, name="there", note="far", y=2)
    assert (place.x, place.y, place.tags, place.name, place.note) == (1, 2, [], "here", None)
    assert place == Place(1, 2, [], name="here") == replace(other, name="here", note=None)
    assert place.tags is not other.tags
    made, plain = inspect.signature(Place), inspect.signature(PlainPlace)
    assert [(one.name, one.kind) for one in made.parameters.values()] == [
        (one.name, one.kind) for one in plain.parameters.values()
    ]


@pytest.mark.parametrize("wrong", [{}, {"name": "here"}, {"x": 1}, {"x": 1, "name": "here", "z": 3}])
def test_it_is_not_made_of_other_arguments(wrong: dict[str, object]) -> None:
    """What is missing or unknown is a ``TypeError``."""
    with pytest.raises(TypeError):
        Place(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "one", [Place(1, name="here"), replaced(Place(1, name="here"), y=3), replaced(Point(1), y=3)], ids=repr
)
def test_it_is_frozen(one: Place | Point) -> None:
    """Made or copied: nobody can change it, and it goes where data goes."""
    with pytest.raises(FrozenInstanceError):
        one.x = 5  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.y
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one


def test_nothing_derives_from_it() -> None:
    """What is made of a class that does would be none of it."""
    with pytest.raises(TypeError, match="Here would be made"):

        class Here(Place):
            pass


def test_the_copy_is_changed_and_the_original_is_not() -> None:
    """As with ``dataclasses.replace``."""
    point = Point(1, 2)
    assert replaced(point, y=3) == replace(point, y=3) == Point(1, 3)
    assert point == Point(1, 2)


def test_a_name_that_is_no_field_is_refused() -> None:
    """A typing error must not vanish."""
    with pytest.raises(TypeError, match="Point has no field 'z'"):
        replaced(Point(1), z=3)


@pytest.mark.parametrize("other", [Checked(1), Derived(1), object(), 5], ids=lambda other: type(other).__name__)
def test_what_checks_itself_or_has_no_slots_is_refused(other: object) -> None:
    """A copy of it would go round its check."""
    with pytest.raises(TypeError, match=r"no dataclass with slots|derives from another class"):
        replaced(other, x=-1)
    with pytest.raises(TypeError, match=r"no dataclass with slots|derives from another class"):
        quick(type(other))
