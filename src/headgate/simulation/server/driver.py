"""How does the pure loop run in real time?

One timer for the whole engine, set to the end of its present step. When it goes off the engine is advanced to the
clock's time, the tokens of the step are handed to all answers in it, and each is woken once. A timer that goes off late
loses nothing: the engine goes by instants, and makes up for the steps that should have ended.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from headgate.model.units import Duration, Instant, RequestId
from headgate.ports.clock import Clock
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.pace import NOMINAL
from headgate.simulation.engine.sequence import EngineRequest, Finished, FirstToken, Happening, Stepped
from headgate.simulation.engine.state import EngineState
from headgate.simulation.server.metrics import EngineMetrics
from headgate.simulation.server.options import EngineOptions

_WORTH_NS = 1_000_000
"""Timers of uvloop count milliseconds, and one that is due in less is due at once. Rounding up spares the spinning."""


class Listener(Protocol):
    """Whoever waits for sequences. Told of all that a moment brings, then woken once."""

    def got_token(self, request_id: RequestId, at: Instant) -> bool:
        """Whether it was the sequence's first."""
        ...

    def finished(self, happening: Finished) -> None: ...

    def wake(self) -> None: ...


class EngineDriver:
    def __init__(self, options: EngineOptions, clock: Clock, metrics: EngineMetrics) -> None:
        self._engine = SimulatedEngine(options.profile, by_step=True)
        self._clock = clock
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[RequestId, Listener] = {}
        self._arrived: dict[RequestId, Instant] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for: Instant | None = None
        self._last_step_at = Instant(0)
        self._faults = options.faults
        self._stalls: asyncio.TimerHandle | None = None
        self._engine.change_speed(clock.now(), max(1, round(options.speed_up * NOMINAL)))
        self._expect_stall()

    @property
    def now(self) -> Instant:
        return self._clock.now()

    def state(self) -> EngineState:
        self._advance()
        return self._engine.state()

    def submit(self, requests: Sequence[EngineRequest], listener: Listener) -> Instant:
        """Starts sequences of one answer; when they arrived."""
        self._advance()
        now = self._clock.now()
        for request in requests:
            self._listeners[request.request_id] = listener
            self._arrived[request.request_id] = now
            self._engine.add(request, now)
        self._set_timer()
        return now

    def cancel(self, request_ids: Sequence[RequestId]) -> None:
        """Ends what has not ended; nobody is told."""
        now = self._clock.now()
        for request_id in request_ids:
            if self._listeners.pop(request_id, None) is not None:
                del self._arrived[request_id]
                self._engine.cancel(request_id, now)
                self._metrics.ended["abort"] += 1
        self._set_timer()

    def stop(self) -> None:
        for timer in (self._timer, self._stalls):
            if timer is not None:
                timer.cancel()

    def stall(self, duration: Duration) -> None:
        self._advance()
        now = self._clock.now()
        self._engine.stall(now, Instant(now + duration))
        self._set_timer()

    # -------------------------------------------------------------------------------------------------------- timers

    def _expect_stall(self) -> None:
        if self._faults.stall_every_s > 0:
            self._stalls = self._loop.call_later(self._faults.stall_every_s, self._stall_and_expect_another)

    def _stall_and_expect_another(self) -> None:
        self.stall(Duration(round(self._faults.stall_for_s * 1e9)))
        self._expect_stall()

    def _set_timer(self) -> None:
        due = self._engine.next_instant()
        if due == self._timer_for:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_for, self._timer = due, None
        if due is not None:
            wait_ms = math.ceil(max(0, due - self._clock.now()) / _WORTH_NS)
            self._timer = self._loop.call_later(wait_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer_for = self._timer = None
        self._advance()
        self._set_timer()

    # ----------------------------------------------------------------------------------------------- what has happened

    def _advance(self) -> None:
        woken: dict[Listener, None] = {}
        for happening in self._engine.advance(self._clock.now()):
            self._tell(happening, woken)
        for listener in woken:
            listener.wake()

    def _tell(self, happening: Happening, woken: dict[Listener, None]) -> None:
        match happening:
            case Stepped(at, _, request_ids):
                firsts = 0
                for request_id in request_ids:
                    listener = self._listeners.get(request_id)
                    if listener is not None:
                        firsts += listener.got_token(request_id, at)
                        woken[listener] = None
                gaps = len(request_ids) - firsts
                if gaps:
                    self._metrics.inter_token_latency.saw(at - self._last_step_at, gaps)
                self._last_step_at = at
            case FirstToken(request_id, at):
                if (arrived := self._arrived.get(request_id)) is not None:
                    self._metrics.time_to_first_token.saw(at - arrived)
            case Finished():
                self._finished(happening, woken)
            case _:
                pass

    def _finished(self, happening: Finished, woken: dict[Listener, None]) -> None:
        listener = self._listeners.pop(happening.request_id, None)
        if listener is None:
            return
        arrived = self._arrived.pop(happening.request_id)
        self._metrics.queue_time.saw(happening.begun_at - arrived)
        self._metrics.e2e_latency.saw(happening.at - arrived)
        listener.finished(happening)
        woken[listener] = None
