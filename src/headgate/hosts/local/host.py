"""Host for a single process.

Everything runs on one event loop, and the scheduler is called directly. Each event is handled as soon as it is
reported, in order and without a queue. The only timer fires at the time that the scheduler requests.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from headgate.core.admission.limits import QuotaShortage
from headgate.core.commands import Abort, Dispatch, End
from headgate.core.counters import LearnedSpeed
from headgate.core.events import Event, RequestArrived, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.core.summary import Summary
from headgate.hosts.command_channel import CommandChannels, HostCommandChannel
from headgate.hosts.decision_time import DecisionTime
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetStatus, EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Instant, TenantId
from headgate.ports.clock import Clock
from headgate.ports.host import InterruptHandler
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
        # Bound once: looking up the same method on objects of different classes is not cached by the interpreter.
        self._observe = tuple(observer.observe for observer in observers)
        self._on_fault = on_fault
        self._channels = CommandChannels()
        self.decision_time = DecisionTime()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant | None = None
        self._deciding = False

    def open(self, ticket: Ticket, on_interrupt: InterruptHandler) -> HostCommandChannel:
        line = self._channels.open(ticket.request_id, on_interrupt)
        self.report(RequestArrived(ticket))
        return line

    def report(self, event: Event) -> None:
        assert not self._deciding, "an observer or a command channel reported an event during a decision"
        self._deciding = True
        try:
            now = self._clock.now()
            began = self.decision_time.begin()
            commands = self._scheduler.handle(event, now)
            if began:
                self.decision_time.end(began)
            for observe in self._observe:
                observe(event, commands, now)
            for command in commands:
                # `isinstance` takes several times as long for each type that does not match.
                if type(command) is Dispatch or type(command) is End or type(command) is Abort:
                    self._channels.deliver(command)
        except Exception as mistake:
            # The scheduler's state may be inconsistent, so the process must stop.
            self._on_fault(mistake)
            raise
        finally:
            self._deciding = False
        self._set_timer()

    def add_observer(self, observer: Observer) -> Callable[[], None]:
        """Adds an observer. Returns a function that removes it."""
        observe = observer.observe
        self._observe = (*self._observe, observe)

        def remove() -> None:
            self._observe = tuple(each for each in self._observe if each is not observe)

        return remove

    def summary(self) -> Summary:
        return self._scheduler.summary()

    def limits_left(self, tenant: TenantId) -> LimitsLeft | None:
        return self._scheduler.limits_left(tenant, self._clock.now())

    def limit_reached(self, tenant: TenantId) -> QuotaShortage | None:
        return self._scheduler.limit_reached(tenant, self._clock.now())

    def budgets_left(self, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...]:
        return self._scheduler.budget_status(self._clock.now(), tenant)

    def collect_endpoint_times(self) -> tuple[EndpointTime, ...]:
        return self._scheduler.pop_endpoint_times(self._clock.now())

    def learned_speeds(self) -> tuple[LearnedSpeed, ...]:
        return self._scheduler.learned_speeds()

    def restore_speeds(self, speeds: Iterable[LearnedSpeed]) -> None:
        """Restores learned speeds. Must be called before endpoints join."""
        self._scheduler.restore_speeds(speeds)

    def open_channels(self) -> int:
        return len(self._channels)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_at = None

    def _set_timer(self) -> None:
        """Schedules the next wakeup.

        A timer that fires too early is harmless, so it is only ever moved to an earlier time.
        """
        wakeup = self._scheduler.next_wakeup()
        if wakeup is None or (self._timer_at is not None and self._timer_at <= wakeup):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, wakeup - self._clock.now()) / SECOND
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
        self._timer_at = wakeup

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        wakeup = self._scheduler.next_wakeup()
        if wakeup is not None and wakeup <= self._clock.now():
            self.report(TimerFired())
        else:
            self._set_timer()
