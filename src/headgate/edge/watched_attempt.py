"""Reports the tokens of a whole answer that the engine streams to the gateway.

The scheduler receives its first token and its progress as for a stream, and the sweep detects silence by tokens.
Nothing is delivered before the answer is complete; until then another attempt may be made.
"""

import time
from collections.abc import Callable

from headgate.edge.open_attempts import OpenAttempt


class WatchedAttempt:
    """The `GenerationWatch` of one attempt."""

    __slots__ = ("_attempt", "_first_token")

    def __init__(self, attempt: OpenAttempt, first_token: Callable[[], None]) -> None:
        self._attempt = attempt
        self._first_token = first_token

    def begin(self) -> None:
        self._attempt.reports_tokens = True

    def end(self) -> None:
        self._attempt.reports_tokens = False

    def heard(self, events: int) -> None:
        attempt, record = self._attempt, self._attempt.record
        if attempt.stopped is not None:
            # The attempt was stopped in this turn of the event loop.

            return
        attempt.events = events
        if not attempt.first_seen:
            attempt.first_seen = record.held_back = True
            record.first_byte_at = time.monotonic_ns()
            self._first_token()
