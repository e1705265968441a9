"""Tests for escaping text from clients and engines for logs and terminals."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.escape import escaped, printable


def test_control_characters_and_line_separators_are_escaped() -> None:
    assert printable("a\nb\x1b[2J\u2028\u202e\x85\x00é", 200) == "a\\x0ab\\x1b[2J\\u2028\\u202e\\x85\\x00é"


def test_long_text_is_truncated() -> None:
    assert printable("x" * 300, 200) == "x" * 199 + "…"


def test_escaping_does_not_truncate() -> None:
    assert escaped("x" * 300 + "\r") == "x" * 300 + "\\x0d"


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_escaped_text_is_one_encodable_line(text: str) -> None:
    line = escaped(text)

    assert len(line.splitlines()) <= 1
    line.encode()
    assert "\x1b" not in line
