"""What is every open attempt doing?

Looking at each attempt a few times a second is far cheaper than a timer for each of them, and
it is also how progress becomes one report instead of one message per chunk. A sweep finds what
has come, and what has been silent for too long.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.core.commands import Dispatch
from headgate.core.events import (
    AttemptEnding,
    AttemptProgress,
    Event,
    Progressed,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.edge.client import Client
from headgate.model.fault import Fault
from headgate.model.units import SECOND, Duration, RequestId, seconds
from headgate.ports.records import AttemptRecord

SWEEP_EVERY_S = 0.25
# So many attempts are looked at before others get the loop again.
_AT_A_TIME = 1_000
LATE_SHARE_MAX: Final = 0.2
"""Share of the time between two reports by which the event loop may be late. Beyond it the report is marked as late."""


class OpenAttempt:
    """One attempt under way, as the sweep sees it."""

    __slots__ = (
        "_task",
        "client",
        "dispatch",
        "events",
        "first_seen",
        "heard_at",
        "key",
        "record",
        "reported",
        "reports_tokens",
        "started_at",
        "stopped",
    )

    def __init__(
        self,
        dispatch: Dispatch,
        client: Client,
        task: asyncio.Task[None],
        record: AttemptRecord,
        *,
        reports_tokens: bool,
        now: float,
    ) -> None:
        self.dispatch = dispatch
        self.record = record
        self.key = (dispatch.request_id, dispatch.attempt)
        self.client = client
        self.reports_tokens = reports_tokens
        """Whether the gateway sees each token, so that it can detect silence. True for a stream, and for a whole answer
        that the engine streams to the gateway."""
        self._task = task
        self.started_at = now
        self.heard_at = now
        """When a sweep last found that something had come."""
        self.first_seen = False
        """Whether the first token has come."""
        self.events = 0
        """Events so far; each is taken for one token. A comment that keeps a connection alive is none."""
        self.reported = 0
        self.stopped: tuple[AttemptEnding, str, Fault | None] | None = None
        """Why it was stopped from outside, if it was."""

    def stop(self, ending: AttemptEnding, why: str, fault: Fault | None = None) -> None:
        """Interrupts whatever the attempt is waiting for, unless its caller has everything already."""
        if self.stopped is None and not self.client.finished:
            self.stopped = (ending, why, fault)
            self._task.cancel()


class SweepPace:
    """Measures how late sweeps are: tokens that have come and that the loop has yet to read look like a slow engine."""

    __slots__ = ("_before_s", "_excused", "_last_s", "_now_s", "_swept_at", "late")

    def __init__(self) -> None:
        self._swept_at = 0.0
        self._before_s = self._now_s = self._last_s = 0.0
        """Lateness of the last sweep, of all wake-ups since then, and of the last wake-up."""
        self._excused = False
        self.late = False
        """Whether the loop was late by more than `LATE_SHARE_MAX` of the time between the last two sweeps."""

    def woke(self, *, due: float, now: float) -> bool:
        """Notes a wake-up that was due at that time; true if attempts are to be swept."""
        self._last_s = max(0.0, now - due)
        self._now_s += self._last_s
        # Tokens that the loop has yet to read are missing in this report. Those that it had yet to read at the last
        # sweep are in this report, and make the engine look too fast.
        self.late = max(self._before_s, self._now_s) > LATE_SHARE_MAX * (now - self._swept_at)
        # After a pause of our own what came meanwhile has yet to be read; nobody is called silent for that.
        self._excused = not self._excused and self._last_s > SWEEP_EVERY_S
        return not self._excused

    def swept(self, now: float) -> None:
        self._swept_at, self._before_s, self._now_s = now, self._last_s, 0.0


class OpenAttempts:
    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self.pace = SweepPace()
        self._open: dict[tuple[RequestId, int], OpenAttempt] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, attempt: OpenAttempt) -> None:
        self._open[attempt.key] = attempt

    def remove(self, attempt: OpenAttempt) -> None:
        del self._open[attempt.key]

    async def sweep_for_ever(self) -> None:
        time = asyncio.get_running_loop().time
        self.pace.swept(time())
        while True:
            due = time() + SWEEP_EVERY_S
            await asyncio.sleep(SWEEP_EVERY_S)
            woke_at = time()
            if not self.pace.woke(due=due, now=woke_at):
                continue
            attempts = list(self._open.values())
            for start in range(0, len(attempts), _AT_A_TIME):
                self.sweep(attempts[start : start + _AT_A_TIME], asyncio.get_running_loop().time())
                await asyncio.sleep(0)
            self.pace.swept(woke_at)

    def sweep(self, attempts: list[OpenAttempt], now: float) -> None:
        progress: list[AttemptProgress] = []
        for attempt in attempts:
            if attempt.key not in self._open:
                # It ended while others were looked at; what its task does now is not ours to stop.
                continue
            blocked = attempt.client.blocked
            if blocked or attempt.events > attempt.reported:
                # Without tokens it still says that the silence is the caller's, not the engine's.
                dispatch, tokens = attempt.dispatch, attempt.events - attempt.reported
                progress.append(AttemptProgress(dispatch.request_id, dispatch.attempt, tokens))
                attempt.reported, attempt.heard_at = attempt.events, now
            if blocked:
                self._check_client(attempt, now)
            else:
                self._check_engine(attempt, now)
        if progress:
            self._tell(Progressed(tuple(progress), self.pace.late))

    def _check_client(self, attempt: OpenAttempt, now: float) -> None:
        """A caller that reads, but too slowly to have it all in time, is taken to have left."""
        if _is_over(attempt, now):
            self._tell(RequestWithdrawn(attempt.dispatch.request_id, WithdrawalCause.CLIENT_LEFT))

    def _check_engine(self, attempt: OpenAttempt, now: float) -> None:
        dispatch = attempt.dispatch
        if _is_over(attempt, now):
            # A stream without a first token is silent. The progress of a whole answer is not known.
            silent = attempt.reports_tokens and not attempt.first_seen
            why = f"not complete within {seconds(dispatch.total_ns_max)}"
            attempt.stop(AttemptEnding.SILENT, why, None if silent else Fault.LIMIT)
        elif attempt.first_seen:
            self._check_silence(attempt, dispatch.idle_ns_max, "no token for", now)
        else:
            self._check_silence(attempt, dispatch.first_token_ns_max, "no first token within", now)

    def _check_silence(self, attempt: OpenAttempt, limit: Duration, what: str, now: float) -> None:
        if attempt.reports_tokens and now - attempt.heard_at > limit / SECOND:
            attempt.stop(AttemptEnding.SILENT, f"{what} {seconds(limit)}")


def _is_over(attempt: OpenAttempt, now: float) -> bool:
    return now - attempt.started_at > attempt.dispatch.total_ns_max / SECOND
