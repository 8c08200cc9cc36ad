"""What runs is what somebody was shown: no argument has state beside it, or another face than its data."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr

from sagaspan import ApprovalDenied, ApprovalPending, Guard
from sagaspan.codecs import decode, encode
from tests.conftest import Caller


class _Private(BaseModel):
    amount: int
    _to: str = PrivateAttr(default="bob")


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    amount: int
    pin: SecretStr = SecretStr("1")


@dataclasses.dataclass
class _Order:
    amount: int


@dataclasses.dataclass(slots=True)
class _Slotted:
    amount: int


class _Text(str):
    def __str__(self) -> str:
        return "bob"


class _SlottedText(_Text):
    __slots__ = ("to",)


class _Number(int):
    def __int__(self) -> int:
        return 1

    __str__ = __repr__ = lambda self: "1"  # type: ignore[assignment]


class _Items(list[Any]):
    def __iter__(self) -> Any:
        return iter(["bob"])


class _Pair(tuple[Any, ...]):
    __slots__ = ()

    def __iter__(self) -> Any:
        return iter(["bob"])


class _Table(dict[str, Any]):
    def items(self) -> Any:
        return {"to": "bob"}.items()


class _Amount(Decimal):
    def __str__(self) -> str:
        return "1"


class _Own(collections.UserDict[str, Any]):
    """A mapping that says itself what it has."""


@dataclasses.dataclass
class _Both(dict[str, Any]):
    amount: int


class _Colour(enum.Enum):
    RED = "red"


class _Point(NamedTuple):
    x: int


def _with(value: Any, **attributes: Any) -> Any:
    for name, content in attributes.items():
        setattr(value, name, content)
    return value


@pytest.mark.parametrize(
    ("value", "recorded"),
    [(_Text("mallory"), "mallory"), (_Number(9), 9), (_Items(["mallory"]), ["mallory"]),
     (_Pair(["mallory"]), ("mallory",)), (_Table(to="mallory"), {"to": "mallory"}), (_Amount("9.5"), Decimal("9.5")),
     (collections.OrderedDict(a=1), {"a": 1}), (collections.Counter("aa"), {"a": 2}), ({_Text("k"): 1}, {"k": 1})],
)  # fmt: skip
def test_a_subclass_is_recorded_by_its_data(value: Any, recorded: Any) -> None:
    """Whatever its methods say: its data is what is sent."""
    assert decode(encode(value)) == recorded


def _asked(guard: Guard, caller: Caller, value: Any) -> None:
    pay = caller.tool(guard, "pay", approve=True)(lambda order: order)
    caller.play(lambda: caller.call(pay, value))


@pytest.mark.parametrize(
    "value",
    [lambda: _Private(amount=1), lambda: _with(_Order(1), to="mallory"), lambda: _with(_Text("bob"), to="mallory"),
     lambda: _with(_SlottedText("bob"), to="mallory"), lambda: _with(_Number(1), to="mallory"),
     lambda: _with(_Items(), to="mallory"), lambda: _with(_Table(to="bob"), real="mallory"), lambda: _Own(to="bob"),
     lambda: _with(collections.OrderedDict(a=1), to="mallory"), lambda: _with(collections.UserDict(a=1), to="mallory"),
     lambda: _with(collections.ChainMap({"a": 1}), to="mallory"), lambda: collections.defaultdict(lambda: 9, a=1),
     lambda: _Both(1),
     lambda: [{"orders": (_with(_Order(1), to="mallory"),)}], lambda: _Open(amount=1, more=[_with(_Text("a"), b=1)])],
)  # fmt: skip
def test_state_that_nobody_is_shown_is_refused(store_url: str, caller: Caller, value: Callable[[], Any]) -> None:
    """Two calls that differ only in it would have one approval."""
    guard = Guard(store_url, approver=lambda _: True)
    with pytest.raises(ApprovalDenied, match="state that nobody would be shown"):
        _asked(guard, caller, value())
    assert guard.approvals.list(status=[]) == []


@pytest.mark.parametrize(
    "value",
    [_Open(amount=1, to="bob"), _Order(1), _Slotted(1), _Text("bob"), _Items([1]), _Table(a=1), _Point(1), _Colour.RED,
     collections.defaultdict(None, a=[1]), collections.OrderedDict(a=1), collections.UserDict(a=1), {1, 2},
     uuid.UUID(int=1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), Decimal(1), b"x"],
)  # fmt: skip
def test_what_is_all_in_the_record_is_asked_about(store_url: str, caller: Caller, value: Any) -> None:
    """Fields, items and members are shown."""
    guard = Guard(store_url, approver="inbox")
    with pytest.raises(ApprovalPending):
        _asked(guard, caller, value)
    assert not guard.approvals.list()[0].uninspectable
