"""Delays telling billing observers that a request has ended until its bills have arrived.

A gateway in a cell ends most requests itself, but only the scheduler knows their cost. If the bills do not arrive in
time, for example because the scheduler died, the request is reported as ended without them and its engine time remains
unbilled.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headgate.core.commands import Command, End
from headgate.core.events import Event, TimerFired
from headgate.hosts.cell.member.commands import BillsReceived
from headgate.model.units import SECOND, Duration, Instant, RequestId
from headgate.ports.observer import Observer

BILL_WAIT_NS_MAX: Final = Duration(10 * SECOND)
PENDING_ENDS_MAX: Final = 65_536


class BilledEnds:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._pending: dict[RequestId, tuple[End, Instant]] = {}
        """Delayed ends and their times, oldest first."""

    def observe(
        self, event: Event | None, commands: Sequence[Command], billed: Sequence[BillsReceived], now: Instant
    ) -> None:
        if not self._observers:
            return
        told: list[Command] = []
        for command in commands:
            if isinstance(command, End) and command.attempts and not command.bills:
                self._pending[command.request_id] = (command, now)
            else:
                told.append(command)
        if event is not None or told:
            self._notify(event or TimerFired(), told, now)
        for each in billed:
            if (kept := self._pending.pop(each.request_id, None)) is not None:
                self._notify(TimerFired(), [replace(kept[0], bills=each.bills, reserved=each.reserved)], kept[1])
        while self._pending and (
            len(self._pending) > PENDING_ENDS_MAX or now - next(iter(self._pending.values()))[1] >= BILL_WAIT_NS_MAX
        ):
            self._release_oldest()

    def close(self) -> None:
        """Reports all delayed ends, because no more bills will arrive."""
        while self._pending:
            self._release_oldest()

    def _release_oldest(self) -> None:
        end, ended_at = self._pending.pop(next(iter(self._pending)))
        self._notify(TimerFired(), [end], ended_at)

    def _notify(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        for observer in self._observers:
            observer.observe(event, commands, now)
