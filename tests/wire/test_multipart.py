"""Tests for splitting multipart/form-data bodies."""

import os
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.fields import BadRequest
from headgate.wire.multipart import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    NAME_CHARS_MAX,
    PARTS_MAX,
    STEP_BYTES,
    FormPart,
    MultipartParser,
    read_boundary,
)
from testing.forms import BOUNDARY, a_field, a_file, a_form, a_part

DELIMITER = f"--{BOUNDARY}".encode()


def parsed(raw: bytes | bytearray, boundary: str = BOUNDARY) -> list[tuple[FormPart, bytes]]:
    parser = MultipartParser(raw, boundary.encode())
    while not parser.parse_step():
        pass
    return [(part, bytes(raw[part.start : part.end])) for part in parser.parts]


def refusal(raw: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        parsed(raw)
    return caught.value.message


def test_parts_have_their_names_types_and_contents() -> None:
    raw = a_form(a_field("model", "whisper"), a_file(b"\0\r\n--\xff"), a_field("prompt", ""))

    [(model, name), (file, content), (prompt, empty)] = parsed(raw)

    assert (model.name, model.is_file, name) == ("model", False, b"whisper")
    assert (file.name, file.is_file, file.filename, file.content_type) == ("file", True, "speech.wav", "audio/wav")
    assert (content, prompt.name, empty) == (b"\0\r\n--\xff", "prompt", b"")
    assert parsed(bytearray(raw)) == parsed(raw)


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('form-data; name="file"; filename="a b.wav"', "a b.wav"),
        ("FORM-DATA;name=file;filename=a.wav", "a.wav"),
        ('form-data; filename="a.wav"; name="file";', "a.wav"),
        ('form-data; name="file"; filename=""', ""),
        ('form-data; name="file"; filename="a\\"b.wav"', 'a\\"b.wav'),
        ("form-data; name=\"file\"; filename*=UTF-8''%e2%82%ac.mp3", "UTF-8''%e2%82%ac.mp3"),
        ('form-data; name="file"; filename="e.mp3"; filename*=UTF-8\'\'x', "e.mp3"),
    ],
)
def test_names_of_files_are_read_as_clients_write_them(disposition: str, filename: str) -> None:
    [(part, _)] = parsed(a_form(a_part(disposition)))

    assert (part.name, part.is_file, part.filename) == ("file", True, filename)


@pytest.mark.parametrize(
    ("headers", "content_type"),
    [
        (["content-type: Audio/WAV; codecs=1"], "Audio/WAV"),
        (["Content-Type: audio/wav", "X-Other: 1", "Content-Transfer-Encoding: binary"], "audio/wav"),
        (["Content-Type: no type"], ""),
        (["Content-Type:"], ""),
        ([], ""),
    ],
)
def test_media_type_is_used_if_it_is_valid(headers: list[str], content_type: str) -> None:
    [(part, _)] = parsed(a_form(a_part('form-data; name="file"; filename="a"', b"x", *headers)))

    assert part.content_type == content_type


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "does not begin with its boundary"),
        (b"preamble" * 100_000 + a_form(a_file()), "does not begin with its boundary"),
        (b"\r\n" + a_form(a_file()), "does not begin with its boundary"),
        (DELIMITER, "part 1 has no valid headers"),
        (DELIMITER + b"x\r\n", "part 1 has no valid headers"),
        (DELIMITER + b" \r\n", "part 1 has no valid headers"),
        (DELIMITER + b"\r\n\r\nx\r\n" + DELIMITER + b"--", "part 1 are invalid"),
        (DELIMITER + b"\r\nA: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n", "at most 4096 bytes"),
        (a_form(a_file())[:-4], "part 2 has no valid headers"),
        (a_form(a_file())[: -len(DELIMITER) - 4], "ends before its last boundary"),
        (a_form(a_file()) + a_field("model", "other"), "continues after its last boundary"),
        (a_form(a_file()) + b"\n", "continues after its last boundary"),
        (a_form(*[a_field("a", "")] * 100_000), f"more than {PARTS_MAX} parts"),
        (a_form(a_part("form-data", b"x", *["A: b"] * HEADERS_MAX)), "part 1 are invalid"),
        (a_form(a_part("form-data; name=a", b"x", "Content-Disposition: form-data; name=b")), "part 1 are invalid"),
        (a_form(a_part("form-data; name=a", b"x", "A : b")), "part 1 are invalid"),
        (a_form(a_part("form-data; name=a", b"x", " folded")), "part 1 are invalid"),
        (a_form(a_part("form-data; name=a\n", b"x")), "part 1 are invalid"),
        (a_form(a_part("form-data; name=a", b"x", "Content-Transfer-Encoding: base64")), "transfer encoding"),
        (a_form(a_part("attachment; name=a")), "part 1 must have one name"),
        (a_form(a_part("form-datax; name=a")), "part 1 must have one name"),
        (a_form(a_part("form-data")), "part 1 must have one name"),
        (a_form(a_part('form-data; name=""')), "part 1 must have one name"),
        (a_form(a_part("form-data; name=a; name=b")), "part 1 must have one name"),
        (a_form(a_part("form-data; name=a; NAME=a")), "part 1 must have one name"),
        (a_form(a_part('form-data; name="é"')), "part 1 must have one name"),
        (a_form(a_part('form-data; name="a\\"b"')), "part 1 must have one name"),
        (a_form(a_field("x" * (NAME_CHARS_MAX + 1), "1")), "part 1 must have one name"),
        (a_form(a_part('form-data; name="a')), "invalid parameters"),
        (a_form(a_part("form-data; name=a b")), "invalid parameters"),
        (a_form(a_part('form-data; name="' + '\\"' * 2100)), "part 1 has no valid headers"),
        (a_form(a_part('form-data; name="' + '\\"' * 1500)), "invalid parameters"),
    ],
)
def test_malformed_body_is_rejected(raw: bytes, message: str) -> None:
    assert message in refusal(raw)


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data;charset=utf-8;BOUNDARY="a b:c"', b"a b:c"),
        (
            b"multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
            b"----WebKitFormBoundary7MA4YWxkTrZu0gW",
        ),
    ],
)
def test_boundary_is_read_from_the_content_type(header: bytes, boundary: bytes) -> None:
    assert read_boundary(header) == boundary


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"application/json",
        b"multipart/mixed; boundary=abc",
        b"multipart/form-datax; boundary=abc",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b'multipart/form-data; boundary="a "',
        b"multipart/form-data; boundary=" + b"x" * 71,
        b'multipart/form-data; boundary="\xe9"',
        b"multipart/form-data; boundary=a; boundary=b",
        b"multipart/form-data; boundary=a\rb",
    ],
)
def test_content_type_without_one_valid_boundary_is_rejected(header: bytes | None) -> None:
    with pytest.raises(BadRequest, match=r"content type|parameters"):
        read_boundary(header)


@pytest.mark.parametrize("before", range(len(DELIMITER) + 3))
def test_boundary_on_the_edge_of_a_step_is_found(before: int) -> None:
    head = len(a_file(b"")) - 2
    content = os.urandom(STEP_BYTES - head - before)
    raw = a_form(a_file(content), a_field("model", "m"))

    assert [content for _, content in parsed(raw)] == [content, b"m"]


def test_large_body_is_parsed_in_steps() -> None:
    parser = MultipartParser(a_form(a_file(bytes(10 * STEP_BYTES))), BOUNDARY.encode())

    assert [parser.parse_step() for _ in range(11)] == [*[False] * 10, True]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=40)), max_size=5))
def test_other_encoders_are_understood(fields: list[tuple[str, bytes]]) -> None:
    """Check against the encoder of the standard library."""
    message = EmailMessage()
    message["Content-Type"] = f'multipart/form-data; boundary="{BOUNDARY}"'
    message.set_payload([])
    for name, content in fields:
        part = EmailMessage()
        part["Content-Disposition"] = f'form-data; name="{name}"'
        part["Content-Type"] = "application/octet-stream"
        part.set_payload(content.hex())
        message.attach(part)
    raw = message.as_bytes(policy=message.policy.clone(linesep="\r\n")).partition(b"\r\n\r\n")[2]
    if not fields:
        return

    found: list[Any] = [(part.name, bytes.fromhex(content.decode())) for part, content in parsed(raw)]
    assert found == fields
