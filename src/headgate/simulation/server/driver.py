"""Runs the engine model in real time.

The engine has one timer, set to the end of the current step. When it fires, the engine is advanced to the current time.
All responses in the step receive their tokens, and each is woken once. A late timer does not affect the results,
because the engine computes all steps that should have ended by then.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from headgate.model.units import Duration, Instant, RequestId
from headgate.ports.clock import Clock
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import (
    EngineEvent,
    EngineRequest,
    FirstTokenGenerated,
    SequenceFinished,
    StepFinished,
)
from headgate.simulation.engine.state import EngineState
from headgate.simulation.options import NOMINAL_SPEED
from headgate.simulation.server.metrics import EngineMetrics
from headgate.simulation.server.options import EngineOptions

_TIMER_RESOLUTION_NS = 1_000_000
"""Timer resolution in nanoseconds. uvloop fires shorter timers immediately, so waits are rounded up."""


class TokenListener(Protocol):
    """Receiver for sequence events. It gets all events for an instant and is then woken once."""

    def on_token(self, request_id: RequestId, at: Instant) -> bool:
        """Returns whether this is the sequence's first token."""
        ...

    def on_finished(self, happening: SequenceFinished) -> None: ...

    def wake(self) -> None: ...


class EngineDriver:
    def __init__(self, options: EngineOptions, clock: Clock, metrics: EngineMetrics) -> None:
        self._engine = SimulatedEngine(options.profile, by_step=True)
        self._clock = clock
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[RequestId, TokenListener] = {}
        self._arrived: dict[RequestId, Instant] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_at: Instant | None = None
        self._last_step_at = Instant(0)
        self._faults = options.faults
        self._stall_timer: asyncio.TimerHandle | None = None
        self._engine.change_speed(clock.now(), max(1, round(options.speed_up * NOMINAL_SPEED)))
        self._schedule_stall()

    @property
    def now(self) -> Instant:
        return self._clock.now()

    def state(self) -> EngineState:
        self._advance()
        return self._engine.state()

    def submit(self, requests: Sequence[EngineRequest], listener: TokenListener) -> Instant:
        """Submits the sequences of one response and returns their arrival time."""
        self._advance()
        now = self._clock.now()
        for request in requests:
            self._listeners[request.request_id] = listener
            self._arrived[request.request_id] = now
            self._engine.add(request, now)
        self._set_timer()
        return now

    def cancel(self, request_ids: Sequence[RequestId]) -> None:
        """Cancels the sequences that have not ended, without notifying their listener."""
        now = self._clock.now()
        for request_id in request_ids:
            if self._listeners.pop(request_id, None) is not None:
                del self._arrived[request_id]
                self._engine.cancel(request_id, now)
                self._metrics.finish_reasons["abort"] += 1
        self._set_timer()

    def stop(self) -> None:
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    def stall(self, duration: Duration) -> None:
        self._advance()
        now = self._clock.now()
        self._engine.stall(now, Instant(now + duration))
        self._set_timer()

    # -------------------------------------------------------------------------------------------------------- timers

    def _schedule_stall(self) -> None:
        if self._faults.stall_every_s > 0:
            self._stall_timer = self._loop.call_later(self._faults.stall_every_s, self._stall_and_reschedule)

    def _stall_and_reschedule(self) -> None:
        self.stall(Duration(round(self._faults.stall_for_s * 1e9)))
        self._schedule_stall()

    def _set_timer(self) -> None:
        due = self._engine.next_instant()
        if due == self._timer_due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_at, self._timer = due, None
        if due is not None:
            wait_ms = math.ceil(max(0, due - self._clock.now()) / _TIMER_RESOLUTION_NS)
            self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_due_at = self._timer = None
        self._advance()
        self._set_timer()

    # -------------------------------------------------------------------------------------------------- engine events

    def _advance(self) -> None:
        woken: dict[TokenListener, None] = {}
        for happening in self._engine.advance(self._clock.now()):
            self._handle_event(happening, woken)
        for listener in woken:
            listener.wake()

    def _handle_event(self, happening: EngineEvent, woken: dict[TokenListener, None]) -> None:
        match happening:
            case StepFinished(at, _, request_ids):
                firsts = 0
                for request_id in request_ids:
                    listener = self._listeners.get(request_id)
                    if listener is not None:
                        firsts += listener.on_token(request_id, at)
                        woken[listener] = None
                gaps = len(request_ids) - firsts
                if gaps:
                    self._metrics.inter_token_latency.observe(at - self._last_step_at, gaps)
                self._last_step_at = at
            case FirstTokenGenerated(request_id, at):
                if (arrived := self._arrived.get(request_id)) is not None:
                    self._metrics.time_to_first_token.observe(at - arrived)
            case SequenceFinished():
                self._finish(happening, woken)
            case _:
                pass

    def _finish(self, happening: SequenceFinished, woken: dict[TokenListener, None]) -> None:
        listener = self._listeners.pop(happening.request_id, None)
        if listener is None:
            return
        arrived = self._arrived.pop(happening.request_id)
        self._metrics.queue_time.observe(happening.started_at - arrived)
        self._metrics.e2e_latency.observe(happening.at - arrived)
        listener.on_finished(happening)
        woken[listener] = None
