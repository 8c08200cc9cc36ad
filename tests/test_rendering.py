"""What people are shown: nothing in it is obeyed, nothing hides, and nothing can pretend to be something else."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan.codecs import to_json
from sagaspan.rendering import HEAD, TAIL, UNINSPECTABLE, cut, quoted, render, visible

HOSTILE = {
    "colours": "\x1b[31mred\x1b[0m", "cursor": "\x1b[2K\x1b[1Apaid 5", "window title": "\x1b]0;approved\x07",
    "link": "\x1b]8;;https://evil.example\x07good.example\x1b]8;;\x07", "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "overwrite": "pay 1000000\rpay 5      ", "backspace": "1000\b\b\b5", "bell": "\x07", "null": "a\0b",
    "delete": "\x7f",
    "8-bit CSI": "\x9b31m", "line": "a\nb\u2028c\u2029d\x85e\x0b\x0cf", "tab": "a\tb",
    "right to left": "invoice\u202etxt.exe", "isolate": "a\u2066b\u2069", "marks": "a\u200e\u200f\u061cb",
    "zero width": "pay\u200bpal\u200c\u200d\u2060\ufeff", "soft hyphen": "a\u00adb",
    "filler": "a\u3164\uffa0\u115f\u1160b",
    "blank braille": "a\u2800b", "joiner": "a\u034fb", "variation": "a\ufe0f\U000e0100b",
    "tags": "a\U000e0041\U000e007fb",
    "odd spaces": "a\u00a0\u2003\u3000b", "private": "\ue000", "unassigned": "\u0378",
    "interlinear": "\ufff9a\ufffab\ufffb",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_shown_and_not_obeyed(text: str) -> None:
    """In a value, in a name, in a nested key: only characters that are drawn as themselves are left."""
    shown = [
        visible(text),
        quoted(text),
        *(part for line in render({text: [text, {text: text}]}).lines for part in line),
    ]
    for part in shown:
        for one in part:
            assert unicodedata.category(one) not in ("Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn")
            assert one == " " or unicodedata.category(one) != "Zs"
        assert "\\u{" in part


@given(one=st.text(max_size=30), other=st.text(max_size=30))
def test_two_texts_are_shown_alike_only_if_they_are_the_same(one: str, other: str) -> None:
    """A text that spells an escape is not the escape."""
    assert (quoted(one) == quoted(other)) == (one == other)


@pytest.mark.parametrize(("one", "other"), [("\u202e", "\\u{202e}"), ("\\", "\\\\"), ('"', '\\"'), ("a", "a\u200b")])
def test_spelt_escapes_look_different(one: str, other: str) -> None:
    """As above, of the ones that somebody would try."""
    assert quoted(one) != quoted(other)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30))  # fmt: skip
def test_whatever_is_recorded_can_be_shown_in_one_line(value: Any) -> None:
    """It never fails, and a value cannot begin a line of its own."""
    ((name, shown),) = render({"value": to_json(value)}).lines
    assert name == "value"
    assert "\n" not in shown


def test_a_long_value_is_its_head_its_tail_its_length_and_its_hash() -> None:
    """So that two long values that differ in the middle are told apart."""
    one, other = "a" * 5000 + "b" + "c" * 5000, "a" * 5000 + "d" + "c" * 5000
    assert cut(one) != cut(other)
    assert "(10001 characters, sha256 " in cut(one)
    assert len(cut("\u202e" * 1_000_000)) < (HEAD + TAIL) * 12
    many = render({"items": list(range(1000))}).lines[0][1]
    assert "1000 items, sha256 " in many
    assert many != render({"items": [*range(500), 0, *range(501, 1000)]}).lines[0][1]
    assert len(render({"n": to_json(10**4000)}).lines[0][1]) < 1000


@pytest.mark.parametrize(
    "value",
    [to_json(b"\xff\xfe"), {"$type": "unrecorded", "value": "Socket"}, {"$type": "from the future", "value": 1},
     {"$type": ["x"], "value": 1}, {"$type": "bytes", "value": "%%"}, json.loads("[" * 40 + "]" * 40)],
)  # fmt: skip
def test_what_cannot_be_shown_says_so(value: Any) -> None:
    """It is marked, and named."""
    found = render({"amount": 5, "blob": value})
    assert UNINSPECTABLE in dict(found.lines)["blob"]
    assert all(path.startswith("blob") for path in found.uninspectable)
    assert found.uninspectable


def test_types_are_seen() -> None:
    """1, 1.0, "1" and true look different."""
    exact = {"$type": "float", "value": "1.0"}
    assert len({render({"v": value}).lines for value in (1, exact, "1", True, [1], to_json((1,)), to_json(b"1"))}) == 7


@pytest.mark.parametrize(
    ("text", "mixed"), [("p\u0430ypal", True), ("paypal", False), ("Привет мир", False), ("Ωmega", True)]
)
def test_mixed_scripts_are_named(text: str, mixed: bool) -> None:
    """A Cyrillic letter in a Latin word is how a payee is forged."""
    assert bool(render({"to": text}).mixed) == mixed
