"""Text written to deceive a terminal or its reader."""

from __future__ import annotations

import json
import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.model.terminal import escaped_json, printable, shortened

SPECIAL = "\x1b[]0;?mHJ\x07\\\x90\x9b\x9c\x9d\x7f\r\n\t\u202e\u2066\u2069\ud800\ufeff\U000e0041 a1é"
TEXTS = st.text() | st.text(alphabet=SPECIAL, max_size=30)


@given(TEXTS)
def test_no_control_sequence_remains(text: str) -> None:
    shown = printable(text)
    controls = {char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")}
    assert controls <= {"\t", "\n"}
    assert not re.search("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown)
    shown.encode()


@given(TEXTS)
def test_sanitizing_is_idempotent(text: str) -> None:
    assert printable(printable(text)) == printable(text)


@given(st.text(st.characters(categories=("L", "M", "N", "P", "S")) | st.sampled_from(" \t\n")))
def test_ordinary_text_of_any_script_is_unchanged(text: str) -> None:
    assert printable(text) == text


@given(TEXTS, st.integers(0, 40))
def test_a_limit_bounds_what_is_shown(text: str, limit: int) -> None:
    shown = printable(text, limit=limit)
    assert len(shown) <= limit + len(f"... ({len(text)} characters)")
    assert printable(shown) == shown
    if len(text) <= limit and len(printable(text)) <= limit:
        assert shown == printable(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[32mINFO\x1b[0m ready", "INFO ready"),
        ("\x1b[2J\x1b[1;1Hroot#", "root#"),
        ("a\x1b]52;c;cm0gLXJm\x07b", r"a\x1b]52;c;cm0gLXJm\x07b"),
        ("\x1b]0;title\x1b\\", r"\x1b]0;title\x1b" + "\\"),
        ("\x9b2J", r"\x9b2J"),
        ("\x1b\x1b[m[2J", r"\x1b[2J"),
        ("10%\r20%", r"10%\r20%"),
        ("user\u202enimda", r"user\u202enimda"),
        ("a\ud800b", r"a\ud800b"),
        ("tab\tand\nnewline, 日本語, 👩\u200d🚀", "tab\tand\nnewline, 日本語, 👩\u200d🚀"),
    ],
)
def test_what_is_removed_and_what_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_truncated_with_its_length() -> None:
    assert printable("A" * 1_000_000, limit=20) == "A" * 20 + "... (1000000 characters)"
    assert printable("short", limit=20) == "short"


def test_hostile_texts_take_linear_time() -> None:
    begun = time.perf_counter()
    for text in ("\x1b[" * 500_000, "\x1b[" + "0" * 1_000_000, "\x1b[" + "0;" * 250_000 + " " * 500_000):
        printable(text)
    assert time.perf_counter() - begun < 5


@given(st.recursive(st.none() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=5))
def test_json_keeps_its_value(value: object) -> None:
    written = escaped_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(written) == value and printable(written) == written


@given(TEXTS, st.integers(3, 40))
def test_a_shortened_text_keeps_both_ends(text: str, limit: int) -> None:
    result = shortened(text, limit)
    assert result == text or (result[:1], result[-1:]) == (text[:1], text[-1:])
    assert len(result) <= limit + 50
