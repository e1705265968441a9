"""Splits `multipart/form-data` bodies into their parts.

The parser accepts what clients send and nothing else: no text before the first part or after the last one, no comments
and no transfer encodings. Engines read such bodies in different ways, so the gateway does not forward the parts as they
are. It encodes them again with a boundary of its own (`transcription.py`). The content of a file is never copied.

A body arrives complete, but searching many megabytes for the boundary would delay streams. The parser therefore works
in steps, between which its caller lets other tasks run.

A library would be another dependency of every installation, and would copy each part to memory or to a file.
"""

import re
from dataclasses import dataclass
from typing import Final

from headgate.wire.fields import BadRequest

PARTS_MAX: Final = 64
"""Maximum number of parts in a body. OpenAI's audio APIs have about a dozen fields."""
HEAD_BYTES_MAX: Final = 4 * 1024
"""Maximum size of the headers of one part."""
HEADERS_MAX: Final = 8
"""Maximum number of headers of one part. Clients send three."""
NAME_CHARS_MAX: Final = 128
STEP_BYTES: Final = 256 * 1024
"""Number of bytes to search in one step, which takes less than 1 ms whatever they are."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = rb'"(?:[^"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*+"'
_PARAMETER: Final = re.compile(rb"[ \t]*+;[ \t]*+(%b)=(%b|%b)" % (_TOKEN, _QUOTED, _TOKEN))
_FORM_DATA: Final = re.compile(rb"multipart/form-data(?=[ \t;]|\Z)", re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"form-data(?=[ \t;]|\Z)", re.IGNORECASE)
_END_OF_PARAMETERS: Final = re.compile(rb"[ \t]*+;?[ \t]*+\Z")
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")
_HEADER: Final = re.compile(rb"(%b):[ \t]*+([^\x00-\x08\x0a-\x1f\x7f]*)" % _TOKEN)
_NAME: Final = re.compile(rb"[\x20\x21\x23-\x5b\x5d-\x7e]{1,%d}" % NAME_CHARS_MAX)
_MEDIA_TYPE: Final = re.compile(rb"%b/%b" % (_TOKEN, _TOKEN))
_PLAIN_ENCODINGS: Final = (b"binary", b"8bit", b"7bit")
_EXAMPLE: Final = "send multipart/form-data, as `curl -F` and the OpenAI SDK do"


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a body. Its content is `raw[start:end]`."""

    name: str
    is_file: bool
    filename: str
    """Name of the file, as the client gave it. Empty if there is none."""
    content_type: str
    """Media type without parameters. Empty if there is none or it is not valid."""
    start: int
    end: int


def read_boundary(content_type: bytes | None) -> bytes:
    """Returns the boundary in a Content-Type header. Raises `BadRequest`."""
    start = None if content_type is None else _FORM_DATA.match(content_type)
    if content_type is None or start is None:
        raise BadRequest(f"the content type must be multipart/form-data; {_EXAMPLE}")
    values = [value for name, value in _parameters(content_type, start.end()) if name == b"boundary"]
    if len(values) != 1 or _BOUNDARY.fullmatch(values[0]) is None:
        raise BadRequest(f"the content type must have one boundary of 1 to 70 characters; {_EXAMPLE}")
    return values[0]


class MultipartParser:
    """Parses one complete body. Call `parse_step` until it returns True."""

    __slots__ = ("_at", "_boundary", "_ended", "_head", "_raw", "_searched", "parts")

    def __init__(self, raw: bytes | bytearray, boundary: bytes) -> None:
        self.parts: list[FormPart] = []
        self._raw = raw
        self._boundary = b"\r\n--" + boundary
        if not raw.startswith(self._boundary[2:]):
            raise BadRequest(f"the body does not begin with its boundary; {_EXAMPLE}")
        self._at = len(self._boundary) - 2
        """Position after the last boundary, or start of the content of a part whose head has been parsed."""
        self._searched = self._at
        """Position before which no further boundary starts."""
        self._head: FormPart | None = None
        """Part whose end has not been found yet."""
        self._ended = False

    def parse_step(self) -> bool:
        """Parses about `STEP_BYTES` more bytes. Returns whether the body is complete. Raises `BadRequest`."""
        stop = self._searched + STEP_BYTES
        while not self._ended and self._searched < stop:
            if self._head is None:
                self._begin_part()
            else:
                self._find_end(self._head, stop)
        return self._ended

    def _begin_part(self) -> None:
        raw, at = self._raw, self._at
        if raw.startswith(b"--", at):
            if bytes(raw[at + 2 : at + 5]) not in (b"", b"\r\n"):
                raise BadRequest("the body continues after its last boundary; remove the bytes after it")
            self._ended = True
            return
        # The line break after the boundary is also the one before the first header.
        end = raw.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX + 4) if raw.startswith(b"\r\n", at) else -1
        if end < 0:
            raise BadRequest(f"part {len(self.parts) + 1} has no valid headers of at most {HEAD_BYTES_MAX} bytes")
        if len(self.parts) >= PARTS_MAX:
            raise BadRequest(f"the body has more than {PARTS_MAX} parts; send fewer fields")
        self._at = self._searched = end + 4
        self._head = _read_head(bytes(raw[at + 2 : end]), len(self.parts) + 1, self._at)

    def _find_end(self, head: FormPart, stop: int) -> None:
        end = self._raw.find(self._boundary, self._searched, stop + len(self._boundary) - 1)
        if end >= 0:
            self.parts.append(FormPart(head.name, head.is_file, head.filename, head.content_type, head.start, end))
            self._head = None
            self._at = self._searched = end + len(self._boundary)
        elif stop >= len(self._raw):
            raise BadRequest("the body ends before its last boundary; send the complete body")
        else:
            self._searched = stop


def _read_head(head: bytes, number: int, start: int) -> FormPart:
    headers: dict[bytes, bytes] = {}
    lines = head.split(b"\r\n", HEADERS_MAX)
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None or len(lines) > HEADERS_MAX or found[1].lower() in headers:
            raise BadRequest(f"the headers of part {number} are invalid; {_EXAMPLE}")
        headers[found[1].lower()] = found[2].rstrip()
    if headers.get(b"content-transfer-encoding", b"binary").lower() not in _PLAIN_ENCODINGS:
        raise BadRequest(f"part {number} has a transfer encoding; send its bytes as they are")
    disposition = headers.get(b"content-disposition", b"")
    kind = _DISPOSITION.match(disposition)
    given = [] if kind is None else _parameters(disposition, kind.end())
    parameters = dict(given)
    name = parameters.get(b"name", b"")
    if len(parameters) != len(given) or _NAME.fullmatch(name) is None:
        raise BadRequest(
            f"part {number} must have one name of 1 to {NAME_CHARS_MAX} printable ASCII characters; {_EXAMPLE}"
        )
    filename = parameters.get(b"filename", parameters.get(b"filename*"))
    media_type = headers.get(b"content-type", b"").partition(b";")[0].rstrip()
    return FormPart(
        name=name.decode(),
        is_file=filename is not None,
        filename=(filename or b"").decode(errors="replace"),
        content_type=media_type.decode() if _MEDIA_TYPE.fullmatch(media_type) else "",
        start=start,
        end=start,
    )


def _parameters(header: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """Returns the parameters of a header from this position, with names in lower case. Raises `BadRequest`."""
    found: list[tuple[bytes, bytes]] = []
    while (parameter := _PARAMETER.match(header, at)) is not None:
        value = parameter[2]
        # A name with an escaped character is rejected later. In the name of a file, they do not matter.
        found.append((parameter[1].lower(), value[1:-1] if value.startswith(b'"') else value))
        at = parameter.end()
    if _END_OF_PARAMETERS.match(header, at) is None:
        raise BadRequest(f"a header has invalid parameters; {_EXAMPLE}")
    return found
