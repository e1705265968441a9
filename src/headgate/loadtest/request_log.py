"""Load test request log, with one JSON object per line.

Times are seconds since the start of the run. `scheduled_unix_s` relates them to other logs.
"""

from collections.abc import Sequence
from typing import IO

import msgspec

from headgate.loadtest.request import LoadTestRequest
from headgate.loadtest.senders import Sender


class RequestLog:
    def __init__(self, file: IO[bytes], senders: Sequence[Sender], *, start_unix_s: float) -> None:
        self._file = file
        self._senders = senders
        self._start_unix_s = start_unix_s
        self._encoder = msgspec.json.Encoder()

    def write(self, story: LoadTestRequest, *, good: bool) -> None:
        self._file.write(self._encoder.encode(self._line(story, good=good)) + b"\n")

    def _line(self, story: LoadTestRequest, *, good: bool) -> dict[str, object]:
        sender = self._senders[story.sender]
        return {
            "number": story.number,
            "session": story.number if story.conversation is None else story.conversation.session,
            "turn": 0 if story.conversation is None else len(story.conversation.turns),
            "api": sender.api,
            "class": sender.class_label,
            "tenant": sender.tenant_label,
            "scheduled_unix_s": round(self._start_unix_s + story.scheduled_ns / 1e9, 6),
            "scheduled_s": _seconds(story.scheduled_ns),
            "started_s": _seconds(story.started_ns),
            "sent_s": _seconds(story.sent_ns),
            "first_token_s": _seconds(story.first_token_ns),
            "end_s": _seconds(story.end_ns),
            "outcome": story.outcome,
            "good": good,
            "status": story.status,
            "code": story.code or None,
            "retries": story.retries,
            "prompt_tokens_requested": story.prompt_tokens_requested,
            "output_tokens_requested": story.output_tokens_requested,
            "prompt_tokens": story.prompt_tokens,
            "output_tokens": story.output_tokens,
            "usage_reported": story.usage_reported,
            "request_id": story.request_id or None,
        }


def _seconds(moment_ns: int | None) -> float | None:
    return None if moment_ns is None else round(moment_ns / 1e9, 6)
