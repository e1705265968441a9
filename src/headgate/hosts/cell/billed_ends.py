"""When do those who keep books hear of the end of a request?

A gateway of a cell ends most requests by its own word, and only the scheduler knows what they cost. So the end is kept
back from whoever writes it down until the bills have come. They may never come, as when the scheduler dies: then the
end is told without them after a while, and the time that it took stays without a bill.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headgate.core.commands import Command, End
from headgate.core.events import Event, TimerFired
from headgate.hosts.cell.member.orders import Billed
from headgate.model.units import SECOND, Duration, Instant, RequestId
from headgate.ports.observer import Observer

WAIT_NS_MAX: Final = Duration(10 * SECOND)
KEPT_MAX: Final = 65_536


class BilledEnds:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._kept: dict[RequestId, tuple[End, Instant]] = {}
        """The oldest first."""

    def saw(self, event: Event | None, commands: Sequence[Command], billed: Sequence[Billed], now: Instant) -> None:
        if not self._observers:
            return
        told: list[Command] = []
        for command in commands:
            if isinstance(command, End) and command.attempts and not command.bills:
                self._kept[command.request_id] = (command, now)
            else:
                told.append(command)
        if event is not None or told:
            self._tell(event or TimerFired(), told, now)
        for each in billed:
            if (kept := self._kept.pop(each.request_id, None)) is not None:
                self._tell(TimerFired(), [replace(kept[0], bills=each.bills, reserved=each.reserved)], kept[1])
        while self._kept and (len(self._kept) > KEPT_MAX or now - next(iter(self._kept.values()))[1] >= WAIT_NS_MAX):
            self._let_go()

    def close(self) -> None:
        """No more bills will come."""
        while self._kept:
            self._let_go()

    def _let_go(self) -> None:
        end, ended_at = self._kept.pop(next(iter(self._kept)))
        self._tell(TimerFired(), [end], ended_at)

    def _tell(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        for observer in self._observers:
            observer.saw(event, commands, now)
