"""Reports the tokens of a non-streaming response that the engine streams to the gateway.

The scheduler receives the first token and progress reports as it does for a stream, and the sweep detects a stall.
Nothing is delivered until the response is complete, so another attempt may still be made before then.
"""

import time
from collections.abc import Callable

from headgate.core.commands import Dispatch
from headgate.edge.open_attempts import OpenAttempt


class GenerationReporter:
    """`GenerationWatch` of one attempt."""

    __slots__ = ("_attempt", "_first_token")

    def __init__(self, attempt: OpenAttempt, first_token: Callable[[Dispatch], None]) -> None:
        self._attempt = attempt
        self._first_token = first_token

    def begin(self) -> None:
        self._attempt.reports_tokens = True

    def end(self) -> None:
        self._attempt.reports_tokens = False

    def record_progress(self, events: int) -> None:
        attempt, record = self._attempt, self._attempt.record
        if attempt.stop_cause is not None:
            return  # The attempt was stopped during this iteration of the event loop.
        attempt.events = events
        if not attempt.first_token_seen:
            attempt.first_token_seen = record.buffered = True
            record.first_byte_at = time.monotonic_ns()
            self._first_token(attempt.dispatch)
