"""Builds `multipart/form-data` bodies byte by byte, valid or not."""

import struct

BOUNDARY = "limit"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
_WAV_HEADER = struct.pack(
    "<4sI8sIHHIIHH4sI", b"RIFF", 95_992, b"WAVEfmt ", 16, 1, 1, 16_000, 32_000, 2, 16, b"data", 95_956
)
SPEECH = _WAV_HEADER + bytes(96_000 - len(_WAV_HEADER))
"""Three seconds of silence as a WAV file with 16 kHz, 16 bits and one channel."""


def a_part(disposition: str, content: bytes = b"x", *headers: str) -> bytes:
    """One part with this `Content-Disposition` and further headers, after its boundary."""
    lines = "".join(f"{line}\r\n" for line in (f"Content-Disposition: {disposition}", *headers))
    return f"--{BOUNDARY}\r\n{lines}\r\n".encode() + content + b"\r\n"


def a_field(name: str, value: str | bytes) -> bytes:
    return a_part(f'form-data; name="{name}"', value if isinstance(value, bytes) else value.encode())


def a_file(content: bytes = SPEECH, *, name: str = "file", filename: str = "speech.wav") -> bytes:
    return a_part(f'form-data; name="{name}"; filename="{filename}"', content, "Content-Type: audio/wav")


def a_form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
