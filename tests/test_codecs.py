"""Values to text and back (``sagaspan.codecs``)."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import datetime as dt
import enum
import ipaddress
import math
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import sagaspan
from sagaspan import Guard, OutcomeUnknown, codecs, keys, rendering

SOURCE = Path(sagaspan.__file__).parent
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ZONES = st.none() | st.integers(-1439, 1439).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=8) | st.uuids()
    | st.decimals(allow_nan=False) | st.dates() | st.times().map(lambda time: time.replace(fold=0)) | st.timedeltas()
    | st.builds(lambda moment, zone: moment.replace(tzinfo=zone, fold=0), st.datetimes(), ZONES)
    | st.fractions() | st.ip_addresses() | st.ip_addresses().map(ipaddress.ip_interface)
    | st.ip_addresses().map(ipaddress.ip_network)
    | TEXT.map(Path) | TEXT.map(PurePosixPath) | TEXT.map(PureWindowsPath),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3) | st.binary(max_size=8).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(HASHABLE | st.just("$type"), inner, max_size=3)
    ),
    max_leaves=10,
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type all the way down; NaN is itself."""
    return _typed(one) == _typed(other)


def _typed(value: Any) -> Any:
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, repr(value)
    if isinstance(value, Mapping):
        return kind, sorted((repr(_typed(key)), _typed(item)) for key, item in value.items())
    if isinstance(value, list | tuple | deque):
        return kind, [_typed(item) for item in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(_typed(item)) for item in value)
    return kind, repr(value)


@given(VALUES)
def test_round_trip(value: Any) -> None:
    """Whatever can be encoded comes back equal, of the same types."""
    assert same(codecs.decode(codecs.encode(value)), value)


@given(VALUES)
def test_plain_data_is_canonical(value: Any) -> None:
    """What ``to_json`` makes has a canonical form, so that every recordable value has a fingerprint."""
    assert len(keys.fingerprint(codecs.to_json(value))) == 64


@given(st.dictionaries(st.sampled_from(["$type", "value", "x"]), VALUES | st.sampled_from(["bytes", "set", "x"])))
def test_tags_cannot_be_forged(value: dict[str, Any]) -> None:
    """A user's dict that looks like a tag comes back as that dict, never as what the tag names."""
    assert same(codecs.decode(codecs.encode(value)), value)


@pytest.mark.parametrize("value", [2**53 - 1, 2**53, 2**53 + 1, -(2**53), 2**70, 10**400])
def test_integers_at_the_edge_of_floats(value: int) -> None:
    """Integers at and beyond 2^53 are tagged: they come back exact and have a fingerprint."""
    assert codecs.decode(codecs.encode(value)) == value
    assert keys.fingerprint(codecs.to_json(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
def test_floats_that_json_lacks(value: float) -> None:
    """NaN, infinities and minus zero survive."""
    assert repr(codecs.decode(codecs.encode(value))) == repr(value)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


class Pair(NamedTuple):
    left: int
    right: int


@dataclasses.dataclass(frozen=True)
class Booking:
    id: int
    seats: tuple[str, ...] = ()


class Order(BaseModel):
    id: int
    lines: list[str] = []


@attrs.define
class Seat:
    row: int
    _number: str


class Plain:
    """A class that does not declare its data."""

    def __init__(self) -> None:
        self.id = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Word.YES, "yes"),
        (Pair(1, 2), (1, 2)),
        (Booking(1, ("a",)), {"id": 1, "seats": ("a",)}),
        (Order(id=1, lines=["x"]), {"id": 1, "lines": ["x"]}),
        (Seat(1, "a"), {"row": 1, "_number": "a"}),
        (SimpleNamespace(id=1), {"id": 1}),
        (type("Folder", (PurePosixPath,), {"__str__": lambda self: "elsewhere"})("a/b"), PurePosixPath("a/b")),
        (type("Queue", (deque,), {"__iter__": lambda self: iter(())})([1]), deque([1])),
        ({Word.YES: 1}, {"yes": 1}),
        (type("Text", (str,), {})("t"), "t"),
    ],
)
def test_rich_types_as_data(value: Any, plain: Any) -> None:
    """Enums, dataclasses, classes of attrs, pydantic models and subclasses come back as their plain data."""
    assert same(codecs.decode(codecs.encode(value)), plain)


class Broken(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise ConnectionError("the rows are gone")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        print,
        Booking,
        memoryview(b"x"),
        Path("\udcff"),
        Plain(),
        [{"deep": object()}],
        "\ud800",
        {"\ud800": 1},
        {1: "\udfff"},
        10**5000,
        _endless(),
        Broken(),
        {Booking(1)},
        {(1, Booking(1)): 2},
        {Booking(1): 2},
        (item for item in ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unencodable_is_one_error(value: Any) -> None:
    """Anything else is ``Unencodable``, and never an error of another type or a value that cannot come back."""
    with pytest.raises(codecs.Unencodable):
        codecs.to_json(value, "it")


def test_deep_nesting_up_to_the_limit() -> None:
    """100 levels go, thousands are refused instead of exhausting the stack."""
    value: Any = 1
    for _ in range(33):
        value = {"k": ([value],)}
    assert codecs.decode(codecs.encode(value)) == value
    for _ in range(5000):
        value = [value]
    with pytest.raises(codecs.Unencodable, match="nested deeper"):
        codecs.encode(value)


@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize(
    ("value", "is_kept"),
    [
        (Path("a/b.pdf"), True),
        (PureWindowsPath("a/b.pdf"), True),
        (deque([1, Path("x")]), True),
        (bytearray(b"x\xff"), True),
        (Fraction(1, 3), True),
        (ipaddress.ip_address("10.0.0.1"), True),
        (ipaddress.ip_network("10.0.0.0/8"), True),
        (ipaddress.ip_interface("::1/64"), True),
        (Seat(1, "a"), False),
        (SimpleNamespace(id=1), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arguments_with_an_obvious_form_stop_no_call(guard: Guard, value: Any, is_kept: bool, effect: str) -> None:
    """They reach the body as they are, and a resumed run knows the call again; they are shown as what they are."""
    seen: list[Any] = []

    @guard.tool(effect=effect)
    def send(what: Any) -> str:
        seen.append(what)
        return "sent"

    with pytest.raises(KeyboardInterrupt), guard.run(id="r", on_interrupt="hold"):
        send(value)
        raise KeyboardInterrupt
    with guard.run(id="r"):
        assert send(copy.deepcopy(value)) == "sent"
    assert len(seen) == 1
    assert seen[0] is value
    (call,) = guard.runs.get("r").calls
    assert not is_kept or same(call.args["what"], value)
    shown = rendering.render({"what": codecs.to_json(value)})
    assert not shown.uninspectable or isinstance(value, bytearray)


def test_an_undoing_function_gets_the_path_back(guard: Guard, store_url: str) -> None:
    """What is undone from its record has arguments of the types that its tool had."""
    undone: list[Any] = []
    save = guard.tool("save", compensate=lambda path, size: undone.append((path, size)))(lambda path, size: None)
    with guard.run(id="r"):
        save(Path("a/b"), Fraction(1, 3))
    guard.compensate("r")
    assert undone == [(Path("a/b"), Fraction(1, 3))]


@pytest.mark.parametrize("text", ['"1e999999999"', '"1/0"', '"x"', "1", "null", "[1]"])
@pytest.mark.parametrize("tag", ["fraction", "path", "ip_address", "ip_network", "bytearray", "deque"])
def test_damaged_values_are_one_error(tag: str, text: str) -> None:
    """A recorded value that does not fit its tag is ``Undecodable``, or reads as something small."""
    with contextlib.suppress(codecs.Undecodable):
        assert len(repr(codecs.decode(f'{{"$type":"{tag}","value":{text}}}'))) < 100


@pytest.mark.parametrize(
    "text", ['{"$type":"os.system","value":"x"}', '{"$type":["set"],"value":[]}', '{"$type":null}']
)
def test_unknown_tags_are_refused(text: str) -> None:
    """A tag outside the closed list is an error; nothing is looked up or imported by it."""
    with pytest.raises(codecs.Undecodable, match="type tag that this version does not know"):
        codecs.decode(text)


def test_sets_encode_in_one_order() -> None:
    """The same set has the same text, however it was built."""
    one, other = {str(n) for n in range(50)}, {str(n) for n in reversed(range(50))}
    assert codecs.encode(one) == codecs.encode(other)


def test_an_unencodable_result_is_done_and_lost(guard: Guard, caller: Any) -> None:
    """A result that cannot be recorded reaches its caller; the call is done, and never runs again."""
    ran = []

    @caller.tool(guard, effect="write")
    def connect() -> object:
        ran.append(1)
        return object()

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            assert type(await caller.call(connect)) is object
            (call,) = run.calls
            assert call.state == "done"
            assert "object" in call.result_lost
            with pytest.raises(OutcomeUnknown, match="not recorded") as caught:
                await caller.call(connect)
            assert caught.value.tool_ran == "yes"

    caller.play(job)
    assert ran == [1]


@pytest.mark.parametrize("value", [Broken(), "\ud800", 10**5000, {Booking(1)}], ids=["mapping", "text", "int", "set"])
def test_no_result_breaks_the_settle(guard: Guard, value: Any) -> None:
    """Whatever goes wrong while a result is encoded, the call is done."""
    fetch = guard.tool("fetch")(lambda: value)
    with guard.run() as run:
        assert fetch() is value
    (call,) = run.calls
    assert (call.state, call.result) == ("done", None)
    assert call.result_lost


def _calls_and_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield f"{node.func.id}()"


def test_the_source_cannot_run_what_is_stored() -> None:
    """No pickle, marshal, shelve, eval or exec anywhere; modules are imported by constant names only.

    The one exception is the pipe between ``sagaspan sql`` and its own child process: it carries no bytes of the ledger.
    """
    for path in set(SOURCE.rglob("*.py")) - {SOURCE / "cli" / "_child.py"}:
        tree = ast.parse(path.read_text())
        found = set(_calls_and_imports(tree))
        forbidden = {
            "pickle",
            "marshal",
            "shelve",
            "dill",
            "cloudpickle",
            "eval()",
            "exec()",
            "compile()",
            "__import__()",
        }
        assert not found & forbidden, path
        if "import_module()" in found:  # the lazy names of the package, and a user's --app
            assert path.relative_to(SOURCE).parts[0] in ("__init__.py", "cli"), path


def test_values_that_should_come_back_do() -> None:
    """A few values of every kind, spelt out."""
    for value in (
        dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), dt.date(1, 1, 1), dt.timedelta(-1, 1, 1), Decimal("NaN"),
        Decimal("1E+400"), uuid.UUID(int=1), b"\x00", {1: {2: 3}}, {(1, 2): {3}}, {None: 1}, {True: 1, "1": 2}, (), {},
    ):  # fmt: skip
        assert same(codecs.decode(codecs.encode(value)), value)
