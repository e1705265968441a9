"""The gateway's key for an engine is removed from the engine's texts, whole or in part."""

import json

import pytest

from headgate.wire.openai_bodies import MESSAGE_CHARS_MAX, quoted_error, read_error
from headgate.wire.redaction import redacted, redacted_body

KEY = "sk-live-0123456789/abcdefghij"
LEAK_CHARS = 4
"""Length of a part of the key that counts as a leak."""


def parts_of_key(text: str) -> list[str]:
    return [part for at in range(len(KEY) - LEAK_CHARS) if (part := KEY[at : at + LEAK_CHARS]) in text]


def test_key_is_masked_wherever_it_is() -> None:
    assert redacted(f"{KEY} and {KEY}.", KEY) == "*** and ***."
    assert redacted("no key here", KEY) == "no key here"
    assert redacted(f"{KEY}", "") == KEY


@pytest.mark.parametrize("gap", [" ", "\n", "\r\n\t ", "\\n"])
@pytest.mark.parametrize("at", [1, 9, len(KEY) - 1])
def test_key_split_by_whitespace_is_masked(gap: str, at: int) -> None:
    assert redacted(f"key {KEY[:at]}{gap}{KEY[at:]} is wrong", KEY) == "key *** is wrong"


@pytest.mark.parametrize(
    "written", [KEY.replace("/", "\\/"), "".join(f"\\u{ord(each):04X}" for each in KEY), KEY.replace("k", "\\u006b")]
)
def test_key_escaped_in_json_is_masked(written: str) -> None:
    body = b'{"error":{"message":"wrong key %b"}}' % written.encode()
    assert KEY in json.loads(body)["error"]["message"]

    assert redacted_body(body, KEY) == b'{"error":{"message":"wrong key ***"}}'


@pytest.mark.parametrize("cut", range(LEAK_CHARS, len(KEY)))
def test_beginning_of_the_key_at_the_end_of_a_text_is_masked(cut: int) -> None:
    assert redacted(f"wrong key {KEY[:cut]}", KEY) == "wrong key ***"
    assert redacted(f"wrong key {KEY[:2]}\n{KEY[2:cut]}", KEY) == "wrong key ***"
    escaped = "".join(f"\\u{ord(each):04x}" for each in KEY[:cut])
    assert redacted_body(f"wrong key {escaped}".encode(), KEY) == b"wrong key ***"


def test_text_that_ends_like_the_key_begins_by_chance_stays() -> None:
    assert redacted("a desk", "sk-live") == "a desk"


@pytest.mark.parametrize("at", range(MESSAGE_CHARS_MAX - len(KEY) - 3, MESSAGE_CHARS_MAX + 3))
def test_key_at_the_end_of_a_shortened_message_does_not_show_in_part(at: int) -> None:
    said = "x" * at + KEY + "y" * 200
    for message in (read_error(json.dumps({"error": {"message": said}}).encode(), KEY), quoted_error(said, KEY)):
        assert len(message) <= MESSAGE_CHARS_MAX
        assert parts_of_key(message) == []


@pytest.mark.parametrize("size", range(1_960, 2_040, 3))
def test_key_at_the_end_of_the_part_that_is_read_of_a_page_does_not_show(size: int) -> None:
    """Most of the page disappears, because whitespace is joined, so that its end becomes part of the message."""
    page = b"Bad gateway:" + b" " * (size - 12) + KEY.encode() + b"<p>" * 1_000

    assert parts_of_key(read_error(page, KEY)) == []


def test_bytes_that_are_no_text_stay() -> None:
    body = bytes(range(256)) + KEY.encode() + bytes(range(255, -1, -1))

    assert redacted_body(body, KEY) == body.replace(KEY.encode(), b"***")
