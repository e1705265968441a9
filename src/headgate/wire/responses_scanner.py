"""Scans /v1/responses event streams and decides which events to forward.

The events in such a stream have names and types. The stream differs from others (`sse.py`) as follows:

- `response.completed` or `response.incomplete` ends the stream and contains the usage. Nothing after it is forwarded,
  including `[DONE]`. `[DONE]` without such an event is an error.
- `response.failed`, an event of type `error`, and any object with a top-level `error` are engine errors.
- Engines announce a response (`response.created`, `response.in_progress`) before they have generated anything. These
  events are held back until the first event with content (`holding_scanner.py`).
"""

import re
from typing import Final

from headgate.model.ticket import FORM_APIS, Api
from headgate.wire.event_objects import ResponsesEvent, read_response_usage, read_responses_event
from headgate.wire.holding_scanner import HoldingScanner, event_name
from headgate.wire.messages_scanner import MessagesScanner
from headgate.wire.openai_bodies import whole_error
from headgate.wire.sse import StreamScanner
from headgate.wire.transcript_scanner import TranscriptScanner

RESPONSES_EVENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum size of an event, and of all held-back events.

The last event repeats the instructions and the full response.
"""

_WHOLE_EVENTS: Final = re.compile(rb"(?:(?:event:[^\n]*\n)?data:[^\n]*\n\n)+")
_ANNOUNCEMENTS: Final = frozenset({b"response.created", b"response.in_progress", b"response.queued"})
_CANDIDATE_BYTES_MIN: Final = len(b"data:[DONE]")
"""Size of the shortest event that needs parsing."""
_END_EVENTS: Final = frozenset({b"response.completed", b"response.incomplete"})
_ERROR_EVENTS: Final = frozenset({b"response.failed", b"error"})


def scanner_for(api: Api, *, keep_usage_chunk: bool, drop_progress: bool = False) -> StreamScanner:
    if api is Api.RESPONSES:
        return ResponsesScanner()
    if api is Api.MESSAGES:
        return MessagesScanner()
    if api in FORM_APIS:
        return TranscriptScanner(keep_usage_chunk=keep_usage_chunk)
    return StreamScanner(keep_usage_chunk=keep_usage_chunk, drop_progress=drop_progress)


class ResponsesScanner(HoldingScanner):
    """Scans one /v1/responses stream. `events` includes held-back events once they have been forwarded."""

    __slots__ = ()

    def __init__(self, *, event_bytes_max: int = RESPONSES_EVENT_BYTES_MAX) -> None:
        super().__init__(event_bytes_max=event_bytes_max, last_event="response.completed")

    def feed(self, data: bytes) -> bytes:
        if self.closed:
            return b""
        if (
            self.events
            and not self._tail
            and len(data) <= self._event_bytes_max
            and _WHOLE_EVENTS.fullmatch(data)
            and not _is_candidate(data)
        ):
            self.events += data.count(b"\n\n")
            return data
        return self._split(data)

    def _forward_data(self, event: bytes, payload: bytes) -> bytes:
        self._comments = 0
        if self.events and not _is_candidate(event):
            self.events += 1
            return event
        said = read_responses_event(payload)
        name = event_name(event, said.type)
        if name in _ERROR_EVENTS or bytes(said.error) != b"null" or bytes(said.object) == b'"error"':
            self._fail(_failure(said, payload))
            return b""
        if name in _ANNOUNCEMENTS and not self.events:
            return self._hold(event)
        if name in _END_EVENTS:
            self.usage = read_response_usage(said.response)
            self.done = self.closed = True
        self.events += len(self._held_events) + 1
        return self._release(event)


def _is_candidate(data: bytes) -> bool:
    if len(data) < _CANDIDATE_BYTES_MIN:
        return False
    # `find` is twice as fast as `in`.
    find = data.find
    return (
        find(b'"error"') >= 0
        or find(b"response.completed") >= 0
        or find(b"response.incomplete") >= 0
        or find(b"response.failed") >= 0
        or find(b"event: error") >= 0
        or find(b"event:error") >= 0
        or find(b"[DONE]") >= 0
    )


def _failure(said: ResponsesEvent, payload: bytes) -> str:
    inside = whole_error(said.response) if bytes(said.response).startswith(b"{") else ""
    return inside or whole_error(payload)
