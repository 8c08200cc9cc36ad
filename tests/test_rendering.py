"""What people are shown: nothing in it is obeyed, nothing hides, and nothing can pretend to be something else."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sagaspan._characters import MARK, WIDTH, cells, fold, folded, is_hidden, quoted, visible, word
from sagaspan.codecs import to_json
from sagaspan.rendering import ARGUMENTS, HEAD, TAIL, UNINSPECTABLE, cut, render

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
    "interlinear": "\ufff9a\ufffab\ufffb", "run of blanks": f"a{' ' * 48}b", "two blanks": "a  b",
    "strokes": "pa\u0336y\u0338", "null notehead": "a\U0001d159b", "mark on nothing": "\u0301a",
    "mark on a quote": '"\u0301',
    "stack of marks": "a" + "\u0301" * 9, "mark of another script": "a\u0941", "empty hieroglyph": "a\U00013441b",
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


_TEXT = st.text(max_size=30) | st.text(' 02a\\"{}*u\u0301\u202e', max_size=12)


@given(one=_TEXT, other=_TEXT)
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


def test_no_character_is_drawn_as_nothing() -> None:
    """Whatever Unicode calls a blank, a filler or invisible, in the Unicode of this Python."""
    words = re.compile(r"BLANK|FILLER|INVISIBLE|NULL NOTEHEAD|JOINER|ZERO WIDTH|VARIATION SELECTOR|SPACE$")
    drawn = {unicodedata.name(one) for one in map(chr, range(0x80, 0x20000))
             if words.search(unicodedata.name(one, "")) and one == visible(one)}  # fmt: skip
    assert sorted(drawn - _PICTURES) == []


_PICTURES: Final = {
    "ETHIOPIC WORDSPACE", "SYMBOL FOR BACKSPACE", "SYMBOL FOR SPACE", "BLANK SYMBOL", "IDEOGRAPHIC HALF FILL SPACE",
    "DEVANAGARI GAP FILLER", "MANICHAEAN PUNCTUATION LINE FILLER", "NEWA GAP FILLER", "DIVES AKURU GAP FILLER",
    "BHAIKSUKI GAP FILLER-1", "BHAIKSUKI GAP FILLER-2", "SIGNWRITING LOCATION-WALLPLANE SPACE",
    "SIGNWRITING LOCATION-FLOORPLANE SPACE",
}  # fmt: skip
"""Those that are drawn as something."""


def test_the_languages_of_people_are_read_as_they_are_written() -> None:
    """Marks on letters of their own are drawn."""
    for text in ("e\u0301te\u0301", "हिन्दुस्तान", "ที่นี่", "שָׁלוֹם", "Việt", "支付宝", "한국어", "Ünïcödé"):
        assert visible(text) == text


# -- letters that are not what they look like ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [("p\u0430ypal", "to mixes Cyrillic and Latin"), ("Ωmega", "to mixes Greek and Latin"), ("Привет мир", None),
     ("paypal", None), ("Tシャツ", None), ("中文LaTeX한국", None), ("5 µm", None), ("café", None),
     ("Straße Łódź", None),
     ("\uff50aypal", "to has fullwidth latin small letter p"), ("x²", None),
     ("\U0001d5c9aypal", "to has mathematical sans-serif small p"), ("p\u0251ypal", "to has latin small letter alpha"),
     ("\u217cike", "to has small roman numeral fifty"), ("10 \u212a", "to has kelvin sign"),
     ("1\u09ea0", "to mixes ASCII and Bengali"), ("\uff11\uff10", "to has fullwidth digit zero, fullwidth digit one"),
     ("bob@x.com\uff02, \uff02eve@x.com", "to has fullwidth quotation mark"),
     ("\u02ba", "to has modifier letter double prime"),
     ("https://bank.com\u2215.evil.com", "to has division slash"), ("1\u201a000", "to has single low-9 quotation mark"),
     ("1\u066b000", "to has arabic decimal separator"), ("bank\u2010x.com", "to has hyphen"),
     ("a\u2024b", "to has one dot leader"), ("\u037e", "to has greek question mark"),
     ("5 \uff1a 6", "to has fullwidth colon"),
     ("“Don\u2019t” \u2013 he said — etc… «oui»", None), ("你好\uff0c世界\uff08二\uff09\uff1a好\uff01", None),
     ("یہ ٹھیک ہے\u06d4", None)],
)  # fmt: skip
def test_letters_that_are_not_what_they_look_like_are_named(text: str, said: str | None) -> None:
    """A Cyrillic letter in a Latin word is how a payee is forged, and a wide quote how one looks like two."""
    assert render({"to": text}).mixed == (() if said is None else (said,))
    assert bool(render({"to": {"in": [text]}}).mixed) == (said is not None)
    assert bool(render({"to": {text: 1}}).mixed) == (said is not None)
    assert bool(render({text: 1}).mixed) == (said is not None)


def test_scripts_are_named_where_a_whole_word_could_be_a_forgery() -> None:
    """``сосо`` is wholly Cyrillic; and what has letters beyond the part that is shown is named too."""
    assert render({"to": "\u0441\u043e\u0441\u043e", "n": "5"}).scripts == ("to Cyrillic",)
    assert render({"n": "a" * 500 + " p\u0430ypal " + "a" * 500}).mixed == ("n mixes Cyrillic and Latin",)
    assert render({"n": [0] * 500 + ["\u0430"] + [0] * 500}).scripts == ("n[] Cyrillic",)


# -- lines ---------------------------------------------------------------------------------------------------------


@given(line=st.text(max_size=300).map(visible), width=st.integers(20, 100))
@example(line="\\u{1f}\\u{1093a}\\u{1f}0 \\u{16b90}", width=20)  # a blank early in a row, and at its end
def test_a_folded_line_is_the_line(line: str, width: int) -> None:
    """Each row but the first has the mark and none is too wide; without the marks nothing is lost or added."""
    first, *rest = fold(line, width)
    assert all(row.startswith(MARK) for row in rest)
    assert first + "".join(row[len(MARK) :] for row in rest) == line
    assert all(cells(row) <= width for row in (first, *rest))
    assert not any(row.endswith(" ") for row in (first, *rest)[:-1])


def test_a_row_ends_at_a_blank_and_never_in_an_escape() -> None:
    """The blank stands on the next row, where it is seen."""
    assert fold("one two three four five", 16) == ["one two three", "  |  four five"]
    rows = fold(quoted("\u202e" * 50), 20)
    assert all(row.count("\\u{") == row.count("}") for row in rows)


def test_no_terminal_needs_more_columns_than_are_counted() -> None:
    """Of all characters that are drawn: a row that is wider than it says would be wrapped without its mark."""
    wcwidth = pytest.importorskip("wcwidth").wcwidth
    wider = [one for one in map(chr, range(0x80, 0x110000)) if not is_hidden(one) and wcwidth(one) > cells(one)]
    assert [hex(ord(one)) for one in wider] == []


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("filler", [" ", " -", "a ", "\u00a0", "\u3000", "\u2800", "支", "\t", "\u0336", "\u0430"])
def test_no_value_begins_a_line(filler: str, columns: int) -> None:
    """However it is padded to the edge of the screen: what would stand there has the mark before it."""
    forged = ' to      "bob"' if filler.isspace() else ' to "bob"'
    for edge in range(columns - 30, columns + 1):
        padding = (filler * edge)[: max(edge - 11, 0)]
        shown = render({"amount": 9000, "note": f"rent{padding}{forged}", "to": "mallory"})
        lines = folded(shown.text, columns).split("\n")
        assert [line for line in lines if line.lstrip().startswith("to ")] == ['  to      "mallory"']
        assert max(map(cells, lines)) <= min(columns, WIDTH)


def test_a_name_is_one_word() -> None:
    """Two names in one would be a person more."""
    assert [word(name) for name in ("ada@x.com", "ada, bob", "", 'a"b', "a\u200bb")] == [
        "ada@x.com", '"ada, bob"', '""', '"a\\"b"', '"a\\u{200b}b"',
    ]  # fmt: skip


# -- what is not shown is said -------------------------------------------------------------------------------------


def test_what_is_shortened_is_named_and_can_be_seen_whole() -> None:
    """A long text, the middle of a list or a mapping, a long name, a big number, many arguments."""
    values = {
        "text": "a" * 500 + "needle" + "a" * 500, "items": [*range(30), "needle", *range(30)],
        "number": to_json(7**2000),
        "fields": {f"k{at:02}": "needle" if at == 20 else 0 for at in range(40)}, "key": {"n" * 300: 1},
        "deep": {"a": [{"b": ["a" * 200 for _ in range(20)]}]}, "fine": 5,
    }  # fmt: skip
    shown, whole = render(values), render(values, whole=True)
    assert set(shown.cut) == {"text", "items", "number", "fields", f"key[{cut('n' * 300)}]", "deep"}
    assert "needle" not in shown.text
    assert whole.cut == ()
    for name, value in whole.lines:
        assert name in values
        assert "…" not in value
    assert whole.text.replace(MARK, "").replace("\n", "").count("needle") == 3
    many = render({f"a{at}": at for at in range(ARGUMENTS + 1)})
    assert (many.cut, len(many.lines)) == (("the arguments",), ARGUMENTS + 1)


def test_what_cannot_be_shown_is_found_where_it_is_not_shown() -> None:
    """In the middle of a long list too: it asks for more assurance."""
    hidden = [0] * 50 + [to_json(b"\xff")] + [0] * 50
    assert render({"items": hidden}).uninspectable == ("items[]",)
    assert render({"items": {f"k{at}": one for at, one in enumerate(hidden)}}).uninspectable == ("items.k50",)
    assert "ff" in render({"items": hidden}, whole=True).lines[0][1]


def test_what_is_redacted_is_named() -> None:
    """Who agrees has not seen it; that is its tool's declaration, not a value that cannot be shown."""
    shown = render({"card": {"$type": "redacted", "value": "ab12cd34ef"}, "amount": 5})
    assert (shown.redacted, shown.uninspectable) == (("card",), ())
    assert dict(shown.lines)["card"] == "<redacted ab12cd34>"


def test_a_path_is_no_sentence() -> None:
    """A name that somebody chose cannot speak for the library in a warning."""
    (path,) = render({"d": {"x is fine; amount": to_json(b"\xff")}}).uninspectable
    assert path == 'd["x is fine; amount"]'
    (long,) = render({"d": {"x" * 10_000: to_json(b"\xff")}}).uninspectable
    assert len(long) < 500
