"""Does any packet at all end in records or in a word about what is wrong with it?"""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.fleets.dns_packets import Address, Kind, Malformed, Refused, Truncated, question, records

HEAD = struct.pack("!6H", 7, 0x8180, 1, 1, 0, 0)
ASKED = b"\x01a\x04test\x00" + struct.pack("!2H", 1, 1)
FOUND = b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 5, 4) + bytes([10, 0, 0, 1])


def test_an_answer_is_read() -> None:
    assert records(HEAD + ASKED + FOUND, "A.Test.", Kind.A, number=7) == ([Address("a.test", "10.0.0.1")], [])


@pytest.mark.parametrize(
    ("packet", "name", "number"),
    [
        (HEAD + ASKED + FOUND, "a.test", 8),
        (HEAD + ASKED + FOUND, "b.test", 7),
        (HEAD[:2] + b"\x01\x00" + HEAD[4:] + ASKED + FOUND, "a.test", 7),
        (HEAD + ASKED + FOUND[:-1], "a.test", 7),
        (HEAD + ASKED + b"\xc0\x18" + FOUND[2:], "a.test", 7),
        (HEAD + ASKED, "a.test", 7),
        (b"", "a.test", 7),
    ],
    ids=["other number", "other name", "a question", "cut", "a name in circles", "record missing", "empty"],
)
def test_what_is_no_answer_to_the_question_is_refused(packet: bytes, name: str, number: int) -> None:
    with pytest.raises(Malformed):
        records(packet, name, Kind.A, number=number)


@given(st.binary(max_size=200), st.integers(0, 6))
@example(FOUND, 1)
def test_any_bytes_end_in_records_or_in_a_word(rest: bytes, answers: int) -> None:
    packet = struct.pack("!6H", 7, 0x8180, 1, answers, 0, 1) + ASKED + rest
    try:
        told, beside = records(packet, "a.test", Kind.A, number=7)
    except (Malformed, Refused, Truncated):
        return
    assert len(told) <= answers
    assert len(beside) <= 1


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64 + ".test", ".".join(["abc"] * 80)])
def test_a_name_that_cannot_be_asked_for_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        question(name, Kind.A, number=1)
