"""Fuzz target: a form is parsed or rejected, and the engine receives the fields and the file that were checked."""

from headgate.model.ticket import Api
from headgate.wire.fields import BadRequest
from headgate.wire.multipart import PARTS_MAX, MultipartParser, read_boundary
from headgate.wire.transcription import TranscriptionBody


def one_input(data: bytes) -> None:
    """The first line is the content type, and all others are the body."""
    content_type, _, raw = data.partition(b"\n")
    try:
        body = parse(raw, content_type)
    except BadRequest as bad:
        _check_refusal(bad)
        return
    sent = body.encode(served_model="served")
    again = parse(sent, body.content_type.encode())
    assert again.model == "served"
    assert again.raw[again.file.start : again.file.end] == raw[body.file.start : body.file.end]
    assert again.stream == body.stream
    assert again.format == body.format
    assert set(again.fields()) <= set(body.fields())
    assert again.encode(served_model="served").count(b"\r\n") == sent.count(b"\r\n")


def _check_refusal(bad: BadRequest) -> None:
    assert len(bad.message) < 1000


def parse(raw: bytes, content_type: bytes) -> TranscriptionBody:
    parser = MultipartParser(raw, read_boundary(content_type))
    while not parser.parse_step():
        pass
    assert len(parser.parts) <= PARTS_MAX
    return TranscriptionBody.of(raw, Api.TRANSCRIPTIONS, parser.parts)
