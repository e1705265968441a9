"""Tests for scanning streams of transcripts."""

import json
from collections.abc import Iterator

import pytest

from headgate.model.usage import Usage, UsageSource
from headgate.wire.sse import EVENT_BYTES_MAX
from headgate.wire.transcript_scanner import TranscriptScanner

DONE = b"data: [DONE]\n\n"
TOKENS = {"type": "tokens", "input_tokens": 14, "output_tokens": 2, "total_tokens": 16}
# Recorded from vLLM 0.32.
CHUNK = (
    b'data: {"id":"transcribe-b5a0","object":"transcription.chunk","created":1,"model":"whisper",'
    b'"choices":[{"delta":{"content":"!"}}]}\n\n'
)
USAGE_CHUNK = (
    b'data: {"id":"transcribe-b5a0","object":"transcription.chunk","created":1,"model":"whisper","choices":[],'
    b'"usage":{"prompt_tokens":304,"total_tokens":308,"completion_tokens":4}}\n\n'
)


def an_event(kind: str, *, name: bool = False, **fields: object) -> bytes:
    line = f"event: {kind}\n".encode() if name else b""
    return line + b"data: " + json.dumps({"type": kind, **fields}, separators=(",", ":")).encode() + b"\n\n"


DELTA = an_event("transcript.text.delta", delta="word")


def split_into(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("name", [False, True])
def test_last_event_ends_the_stream_with_its_usage(size: int, *, name: bool) -> None:
    last = an_event("transcript.text.done", name=name, text="word word", usage=TOKENS)
    scanner = TranscriptScanner(keep_usage_chunk=False)

    passed = b"".join(scanner.feed(read) for read in split_into(DELTA * 2 + last + DONE + DELTA, size))

    assert passed == DELTA * 2 + last
    assert (scanner.done, scanner.events) == (True, 2)
    assert scanner.usage == Usage(14, 2, 0, UsageSource.ENGINE)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, None),
        ({"usage": None}, None),
        ({"usage": {"type": "duration", "seconds": 3}}, Usage(150, 0, 0, UsageSource.ENGINE)),
    ],
)
def test_last_event_may_have_no_tokens(usage: dict[str, object], expected: Usage | None) -> None:
    scanner = TranscriptScanner(keep_usage_chunk=False)
    last = an_event("transcript.text.done", text="", **usage)

    assert scanner.feed(last) == last
    assert (scanner.done, scanner.usage) == (True, expected)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("size", [1, 10_000])
def test_stream_of_vllm_ends_like_a_chat(size: int, *, keeps: bool) -> None:
    scanner = TranscriptScanner(keep_usage_chunk=keeps)

    passed = b"".join(scanner.feed(read) for read in split_into(CHUNK * 3 + USAGE_CHUNK + DONE, size))

    assert passed == CHUNK * 3 + (USAGE_CHUNK if keeps else b"") + DONE
    assert scanner.done
    assert scanner.usage == Usage(304, 4, 0, UsageSource.ENGINE)


def test_text_that_names_the_last_event_does_not_end_the_stream() -> None:
    scanner = TranscriptScanner(keep_usage_chunk=False)
    delta = an_event("transcript.text.delta", delta='{"type":"transcript.text.done"}')

    assert scanner.feed(delta) == delta
    assert (scanner.done, scanner.closed, scanner.events) == (False, False, 1)


@pytest.mark.parametrize(
    "event",
    [b'data: {"error":{"message":"no"}}\n\n', an_event("transcript.text.done", error={"message": "no"})],
)
def test_error_ends_the_stream_and_is_not_forwarded(event: bytes) -> None:
    scanner = TranscriptScanner(keep_usage_chunk=False)

    assert scanner.feed(DELTA + event + DELTA) == DELTA
    assert (scanner.done, scanner.error) == (False, "no")


def test_invalid_json_is_forwarded() -> None:
    scanner = TranscriptScanner(keep_usage_chunk=False)
    event = b"data: transcript.text.done {\n\n"

    assert scanner.feed(event) == event
    assert (scanner.done, scanner.events) == (False, 1)


def test_overlong_event_ends_the_stream() -> None:
    scanner = TranscriptScanner(keep_usage_chunk=False)

    assert scanner.feed(an_event("transcript.text.done", text="x" * EVENT_BYTES_MAX)) == b""
    assert (scanner.overlong, scanner.done) == (True, False)
