"""How do events reach the scheduler, and its commands the door, inside one process?

By a plain call: everything here runs on one event loop, so an event is decided the moment it
is told, in order, and no queue between can grow or delay. The only thing that waits is the
timer, which is set to the moment that the scheduler names.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from headgate.core.admission.limits import Shortage
from headgate.core.commands import Abort, BudgetCrossed, Command, Dispatch, Eject, End, Hold, Readmit
from headgate.core.counters import LearnedSpeed
from headgate.core.events import Event, RequestArrived, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.core.summary import Summary
from headgate.hosts.decide_time import DecideTime
from headgate.hosts.line import Line, Lines
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetLeft, EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Instant, TenantId
from headgate.ports.clock import Clock
from headgate.ports.host import Aside
from headgate.ports.observer import Observer


class LocalHost:
    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        observers: Sequence[Observer],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._observers = tuple(observers)
        self._on_fault = on_fault
        self._lines = Lines()
        self.decide_time = DecideTime()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant | None = None
        self._deciding = False

    def open(self, ticket: Ticket, aside: Aside) -> Line:
        line = self._lines.open(ticket.request_id, aside)
        self.tell(RequestArrived(ticket))
        return line

    def tell(self, event: Event) -> None:
        assert not self._deciding, "an observer or a line told the host something while it was deciding"
        self._deciding = True
        try:
            now = self._clock.now()
            began = self.decide_time.begin()
            commands = self._scheduler.handle(event, now)
            self.decide_time.end(began)
            for observer in self._observers:
                observer.saw(event, commands, now)
            for command in commands:
                self._perform(command)
        except Exception as mistake:
            # What the scheduler believes can no longer be trusted, so this process must not go on.
            self._on_fault(mistake)
            raise
        finally:
            self._deciding = False
        self._set_timer()

    def summary(self) -> Summary:
        return self._scheduler.summary()

    def limits_left(self, tenant: TenantId) -> LimitsLeft | None:
        return self._scheduler.limits_left(tenant, self._clock.now())

    def limit_reached(self, tenant: TenantId) -> Shortage | None:
        return self._scheduler.limit_reached(tenant, self._clock.now())

    def budgets_left(self, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        return self._scheduler.budgets_left(self._clock.now(), tenant)

    def take_endpoint_times(self) -> tuple[EndpointTime, ...]:
        return self._scheduler.take_endpoint_times(self._clock.now())

    def learned_speeds(self) -> tuple[LearnedSpeed, ...]:
        return self._scheduler.learned_speeds()

    def recall_speeds(self, speeds: Iterable[LearnedSpeed]) -> None:
        """Goes on from speeds that were kept, before any endpoint joins."""
        self._scheduler.recall_speeds(speeds)

    def open_lines(self) -> int:
        return len(self._lines)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_at = None

    def _perform(self, command: Command) -> None:
        match command:
            case Dispatch() | Abort() | End():
                self._lines.carry(command)
            case Hold() | Eject() | Readmit() | BudgetCrossed():
                pass

    def _set_timer(self) -> None:
        """A timer that rings too early only asks again, so it is moved forward but never back."""
        wakeup = self._scheduler.next_wakeup()
        if wakeup is None or (self._timer_at is not None and self._timer_at <= wakeup):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, wakeup - self._clock.now()) / SECOND
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)
        self._timer_at = wakeup

    def _ring(self) -> None:
        self._timer = self._timer_at = None
        wakeup = self._scheduler.next_wakeup()
        if wakeup is not None and wakeup <= self._clock.now():
            self.tell(TimerFired())
        else:
            self._set_timer()
