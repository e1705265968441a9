"""How does a process of a cell carry out what its node decides?

One decision at a time: each order goes to the line of its request, to the log or to the owner of the policy, and the
observers see it. A mistake in here is a fault of the whole process.
"""

import logging
from collections.abc import Callable, Sequence

from headgate.core.events import Event, TimerFired
from headgate.hosts.cell.billed_ends import BilledEnds
from headgate.hosts.cell.member.orders import Billed, ModeChanged, Order, PolicyAgreed
from headgate.hosts.cell.protocol.views import Mode
from headgate.hosts.decide_time import DecideTime
from headgate.hosts.line import Lines
from headgate.model.units import Instant
from headgate.ports.clock import Clock
from headgate.ports.observer import Observer

log = logging.getLogger("headgate")


class Decisions:
    def __init__(
        self,
        lines: Lines,
        clock: Clock,
        observers: Sequence[Observer],
        billed: BilledEnds,
        *,
        on_fault: Callable[[BaseException], None],
        on_agreed: Callable[[str], None],
    ) -> None:
        self._lines, self._clock = lines, clock
        self._observers, self._billed = tuple(observers), billed
        self._on_fault, self._on_agreed = on_fault, on_agreed
        self._deciding = False
        self.time = DecideTime()

    def hear(self, told: Callable[..., None], *what: object) -> None:
        """What gives no orders here."""
        try:
            began = self.time.begin()
            told(*what, self._clock.now())
            self.time.end(began)
        except Exception as mistake:
            self._on_fault(mistake)
            raise

    def decide(self, event: Event | None, ask: Callable[[Instant], list[Order]]) -> None:
        """Ask the node, and carry out its orders."""
        assert not self._deciding, "an observer or a line told the host something while it was deciding"
        self._deciding = True
        agreed: list[str] = []
        try:
            now = self._clock.now()
            began = self.time.begin()
            orders = ask(now)
            self.time.end(began)
            self._observe(event, orders, now)
            for order in orders:
                match order:
                    case ModeChanged():
                        log.log(_level(order.mode), "this gateway is %s: %s", order.mode.value, order.reason)
                    case PolicyAgreed():
                        agreed.append(order.hash)
                    case Billed():
                        pass
                    case _:
                        self._lines.carry(order)
        except Exception as mistake:
            # What the node believes can no longer be trusted, so this process must not go on.
            self._on_fault(mistake)
            raise
        finally:
            self._deciding = False
        for policy_hash in agreed:
            self._on_agreed(policy_hash)

    def _observe(self, event: Event | None, orders: Sequence[Order], now: Instant) -> None:
        commands = [order for order in orders if not isinstance(order, ModeChanged | PolicyAgreed | Billed)]
        if event is not None or commands:
            for observer in self._observers:
                observer.saw(event or TimerFired(), commands, now)
        self._billed.saw(event, commands, [order for order in orders if isinstance(order, Billed)], now)


def _level(mode: Mode) -> int:
    return logging.WARNING if mode is Mode.ISLAND else logging.INFO
