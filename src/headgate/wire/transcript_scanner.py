"""Scans the event streams of /v1/audio/transcriptions and /v1/audio/translations.

Engines send one of two formats:

- In OpenAI's format, each event has a type. `transcript.text.done` ends the stream and contains the usage. Nothing
  after it is forwarded.
- vLLM sends chunks like those of chats. Usage comes in a chunk of its own, and `[DONE]` ends the stream.
"""

from typing import Final

from headgate.wire.event_objects import read_transcript_event
from headgate.wire.sse import StreamScanner
from headgate.wire.usage import read_usage

_LAST_EVENT: Final = b"transcript.text.done"


class TranscriptScanner(StreamScanner):
    """Scans one stream of a transcript."""

    __slots__ = ()

    def _search(self, data: bytes) -> bytes:
        return self._split(data) if data.find(_LAST_EVENT) >= 0 else super()._search(data)

    def _needs_parsing(self, payload: bytes) -> bool:
        return payload.find(_LAST_EVENT) >= 0 or super()._needs_parsing(payload)

    def _forwards_chunk(self, payload: bytes) -> bool:
        said = read_transcript_event(payload)
        if bytes(said.type).strip(b'"') != _LAST_EVENT or bytes(said.error) != b"null":
            return super()._forwards_chunk(payload)
        self.usage = read_usage(said.usage) or self.usage
        self.done = self.closed = True
        return True
