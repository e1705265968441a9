"""A gateway's running attempts, swept a few times a second.

Each sweep reports the tokens that have arrived and stops attempts that have been silent for too long. This is much
cheaper than one timer per attempt, and it combines progress into one report instead of one message per chunk.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.core.commands import Dispatch
from headgate.core.events import (
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    Event,
    FirstToken,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.edge.client import Client
from headgate.model.fault import Fault
from headgate.model.provider_limits import ProviderLimits
from headgate.model.units import SECOND, Duration, RequestId, format_seconds
from headgate.ports.records import AttemptRecord

SWEEP_EVERY_S = 0.25
_SWEEP_BATCH = 1_000
"""Number of attempts swept before the event loop runs other tasks."""
_FIRST_TOKEN_DELAY_S: Final = 0.002
"""Delay before the first token of a non-streaming response is reported. Most responses are complete by then, and their
end reports both, which saves the scheduler and all observers one event.
"""
LATE_SHARE_MAX: Final = 0.2
"""Maximum event loop lag as a fraction of the report interval. Reports with a longer lag are marked as late."""


class OpenAttempt:
    """State of a running attempt."""

    __slots__ = (
        "_task",
        "client",
        "dispatch",
        "events",
        "events_reported",
        "first_token_due",
        "first_token_seen",
        "first_token_timer",
        "key",
        "last_progress_at",
        "limits",
        "limits_at",
        "record",
        "reports_tokens",
        "response_arrived",
        "started_at",
        "stop_cause",
    )

    def __init__(  # noqa: PLR0917 (keyword arguments make the call slower)
        self,
        dispatch: Dispatch,
        client: Client,
        task: asyncio.Task[None],
        record: AttemptRecord,
        reports_tokens: bool,  # noqa: FBT001 (as above)
        now: float,
    ) -> None:
        self.dispatch = dispatch
        self.record = record
        self.key = (dispatch.request_id, dispatch.attempt)
        self.client = client
        self.reports_tokens = reports_tokens
        """Whether the gateway sees each token and can therefore detect silence.

        True for a stream, and for a non-streaming response that the engine streams to the gateway.
        """
        self._task = task
        self.started_at = now
        self.last_progress_at = now
        """Time of the last sweep that found progress, in seconds of the event loop clock."""
        self.first_token_seen = False
        """Whether the first token has arrived."""
        self.response_arrived = False
        """Whether the response arrived completely, before any part of it was relayed."""
        self.first_token_due = False
        """Whether the report of the first token is delayed."""
        self.first_token_timer: asyncio.TimerHandle | None = None
        """Timer for the delayed report. None if the attempt ends at once, because its response has arrived."""
        self.events = 0
        """Number of events so far. Each counts as one token. Keep-alive comments are excluded."""
        self.events_reported = 0
        """Number of events that have been reported to the scheduler."""
        self.stop_cause: tuple[AttemptEnding, str, Fault | None] | None = None
        """Ending, reason and fault if the attempt was stopped. None if it was not."""
        self.limits: ProviderLimits | None = None
        """Rate limits that a hosted provider reported with the response. None once the scheduler knows them."""
        self.limits_at = now
        """Time at which they were reported."""

    def record_limits(self, limits: ProviderLimits) -> None:
        self.limits, self.limits_at = limits, asyncio.get_running_loop().time()

    def pop_limits(self) -> ProviderLimits | None:
        """Returns the rate limits that the scheduler does not know yet, as of now."""
        limits, self.limits = self.limits, None
        if limits is None:
            return None
        return limits.aged(Duration(int((asyncio.get_running_loop().time() - self.limits_at) * SECOND)))

    def first_token_event(self) -> FirstToken:
        """Returns the report of the first token, which is no longer due."""
        self.first_token_due, self.first_token_timer = False, None
        dispatch = self.dispatch
        if self.limits is None:
            return FirstToken(dispatch.request_id, dispatch.attempt)
        return FirstToken(dispatch.request_id, dispatch.attempt, limits=self.pop_limits())

    def delay_first_token_report(self, report: "Callable[[OpenAttempt], None]") -> None:
        """Calls `report` a little later, unless it is cancelled first. A response that has arrived ends at once."""
        self.first_token_due = True
        if not self.response_arrived:
            self.first_token_timer = asyncio.get_running_loop().call_later(_FIRST_TOKEN_DELAY_S, report, self)

    def cancel_first_token_report(self) -> bool:
        """Cancels the delayed report of the first token. Returns whether there was one."""
        if self.first_token_timer is not None:
            self.first_token_timer.cancel()
            self.first_token_timer = None
        was_due, self.first_token_due = self.first_token_due, False
        return was_due

    def stop(self, ending: AttemptEnding, why: str, fault: Fault | None = None) -> None:
        """Cancels the attempt, unless its response is complete."""
        if self.stop_cause is None and not self.client.finished:
            self.stop_cause = (ending, why, fault)
            self._task.cancel()


class SweepLateness:
    """Measures how late sweeps are. If the event loop is lagging, unread tokens make an engine look slow."""

    __slots__ = ("_before_s", "_last_s", "_now_s", "_skipped_last", "_swept_at", "late")

    def __init__(self) -> None:
        self._swept_at = 0.0
        self._before_s = self._now_s = self._last_s = 0.0
        """Delay of the last sweep, of all wake-ups since then, and of the last wake-up, in seconds."""
        self._skipped_last = False
        self.late = False
        """Whether the event loop was late by more than `LATE_SHARE_MAX` of the time between the last two sweeps."""

    def record_wakeup(self, *, due: float, now: float) -> bool:
        """Records a wake-up that was due at `due`. Returns whether to sweep now."""
        self._last_s = max(0.0, now - due)
        self._now_s += self._last_s
        # This report is missing the tokens that the event loop has not read yet. It also includes tokens left unread at
        # the last sweep, which make the engine look too fast.
        self.late = max(self._before_s, self._now_s) > LATE_SHARE_MAX * (now - self._swept_at)
        # After a stall in this process, skip one sweep: data that arrived during the stall is still unread and would
        # look like silence.
        self._skipped_last = not self._skipped_last and self._last_s > SWEEP_EVERY_S
        return not self._skipped_last

    def record_sweep(self, now: float) -> None:
        self._swept_at, self._before_s, self._now_s = now, self._last_s, 0.0


class OpenAttempts:
    def __init__(self, report: Callable[[Event], None]) -> None:
        self._report = report
        self.lateness = SweepLateness()
        self._open: dict[tuple[RequestId, int], OpenAttempt] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, attempt: OpenAttempt) -> None:
        self._open[attempt.key] = attempt

    def remove(self, attempt: OpenAttempt) -> None:
        del self._open[attempt.key]

    async def sweep_forever(self) -> None:
        time = asyncio.get_running_loop().time
        self.lateness.record_sweep(time())
        while True:
            due = time() + SWEEP_EVERY_S
            await asyncio.sleep(SWEEP_EVERY_S)
            woke_at = time()
            if not self.lateness.record_wakeup(due=due, now=woke_at):
                continue
            attempts = list(self._open.values())
            for start in range(0, len(attempts), _SWEEP_BATCH):
                self.sweep(attempts[start : start + _SWEEP_BATCH], asyncio.get_running_loop().time())
                await asyncio.sleep(0)
            self.lateness.record_sweep(woke_at)

    def sweep(self, attempts: list[OpenAttempt], now: float) -> None:
        progress: list[AttemptProgress] = []
        for attempt in attempts:
            if attempt.key not in self._open:
                # The attempt ended during this sweep. Its task may be doing something else by now.
                continue
            blocked = attempt.client.blocked
            if blocked or attempt.events > attempt.events_reported:
                # Report even without tokens: the client is blocking the stream, so the engine is not silent.
                dispatch, tokens = attempt.dispatch, attempt.events - attempt.events_reported
                progress.append(AttemptProgress(dispatch.request_id, dispatch.attempt, tokens))
                attempt.events_reported, attempt.last_progress_at = attempt.events, now
            if blocked:
                self._check_client(attempt, now)
            else:
                self._check_engine(attempt, now)
        if progress:
            self._report(AttemptsProgressed(tuple(progress), self.lateness.late))

    def _check_client(self, attempt: OpenAttempt, now: float) -> None:
        """Treats a client that reads too slowly to finish in time as disconnected."""
        if _exceeds_total_time(attempt, now):
            self._report(RequestWithdrawn(attempt.dispatch.request_id, WithdrawalCause.CLIENT_DISCONNECTED))

    def _check_engine(self, attempt: OpenAttempt, now: float) -> None:
        dispatch = attempt.dispatch
        if _exceeds_total_time(attempt, now):
            # A stream without a first token is silent. The progress of a non-streaming response is unknown.
            silent = attempt.reports_tokens and not attempt.first_token_seen
            why = f"not complete within {format_seconds(dispatch.total_ns_max)}"
            attempt.stop(AttemptEnding.TIMEOUT, why, None if silent else Fault.TIME_LIMIT)
        elif attempt.first_token_seen:
            self._check_silence(attempt, dispatch.idle_ns_max, "no token for", now)
        else:
            self._check_silence(attempt, dispatch.first_token_ns_max, "no first token within", now)

    def _check_silence(self, attempt: OpenAttempt, limit: Duration, what: str, now: float) -> None:
        if attempt.reports_tokens and now - attempt.last_progress_at > limit / SECOND:
            attempt.stop(AttemptEnding.TIMEOUT, f"{what} {format_seconds(limit)}")


def _exceeds_total_time(attempt: OpenAttempt, now: float) -> bool:
    return now - attempt.started_at > attempt.dispatch.total_ns_max / SECOND
