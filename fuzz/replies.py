"""Fuzz target: an error reported by an engine becomes a short text."""

import json

from headgate.wire.openai_bodies import MESSAGE_CHARS_MAX, error_body, read_error, reported_error
from headgate.wire.sse import error_event


def one_input(data: bytes) -> None:
    said = read_error(data)
    assert len(said) <= MESSAGE_CHARS_MAX
    assert not {"\n", "\r"} & set(said)
    reported = reported_error(data)
    assert reported is None or len(reported) <= MESSAGE_CHARS_MAX + 100
    event = error_event(error_body(message=said, type="server_error", code="engine_error"))
    assert event.count(b"\n\n") == 1
    assert json.loads(event[6:])["error"]["message"] == said
