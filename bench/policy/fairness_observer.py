"""Observer that measures how unequally two tenants are served while both are waiting.

Two tenants form a pair from the moment both have queued requests until one of them has none. During that time, the
difference between the engine time each received, divided by its weight, may grow by at most

    2 · (largest cost + largest engine time one of them had in flight) / smaller weight

because the scheduler serves the tenant that has received less, and the actual cost of a request is known only when it
ends. The observer uses actual costs, which the scheduler does not know.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, Event, RequestArrived
from headgate.model.units import Instant, RequestId, TenantId


@dataclass(slots=True)
class _WaitingPair:
    """State of two tenants that are waiting at the same time."""

    least: float
    most: float
    in_flight_max: int
    turns: int = 0


@dataclass(frozen=True, slots=True)
class ServiceGap:
    """Growth of the difference between two tenants, and its bound, in seconds of engine time per weight."""

    grew_s: float
    allowed_s: float

    @property
    def ratio(self) -> float:
        return self.grew_s / self.allowed_s


class FairnessObserver:
    """`Observer` for runs with one priority band."""

    def __init__(self, costs: Mapping[RequestId, int], weights: Mapping[TenantId, int], *, turns_min: int = 4) -> None:
        self._costs = costs
        """Actual cost of each request, in nanoseconds of engine time."""
        self._weights = weights
        self._turns_min = turns_min
        self._tenant_of: dict[RequestId, TenantId] = {}
        self._queued: Counter[TenantId] = Counter()
        self._in_flight: Counter[TenantId] = Counter()
        self._served: Counter[TenantId] = Counter()
        self._together: dict[tuple[TenantId, TenantId], _WaitingPair] = {}
        self._cost_max = 0
        self.worst = ServiceGap(0.0, 1.0)

    @property
    def served_s(self) -> dict[TenantId, float]:
        return {tenant: self._served[tenant] / 1e9 for tenant in sorted(self._served)}

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if isinstance(event, RequestArrived):
            self._tenant_of[event.ticket.request_id] = event.ticket.tenant
            self._wait(event.ticket.tenant, 1)
        elif isinstance(event, AttemptEnded):
            self._in_flight[self._tenant_of[event.request_id]] -= self._costs[event.request_id]
        sent: set[RequestId] = set()
        for command in commands:
            if isinstance(command, Dispatch):
                sent.add(command.request_id)
                self._serve(command.request_id)
            elif isinstance(command, End) and not command.attempts:
                self._wait(self._tenant_of[command.request_id], -1)

    def _serve(self, request_id: RequestId) -> None:
        tenant, cost = self._tenant_of[request_id], self._costs[request_id]
        self._cost_max = max(self._cost_max, cost)
        self._served[tenant] += cost
        self._in_flight[tenant] += cost
        for pair, together in self._together.items():
            if tenant in pair:
                difference = self._level(pair[0]) - self._level(pair[1])
                together.least, together.most = min(together.least, difference), max(together.most, difference)
                together.in_flight_max = max(together.in_flight_max, self._in_flight[tenant])
                together.turns += 1
        self._wait(tenant, -1)

    def _wait(self, tenant: TenantId, change: int) -> None:
        before = self._queued[tenant]
        self._queued[tenant] = before + change
        if not before:
            for other, queued in self._queued.items():
                if queued and other != tenant:
                    pair = (min(tenant, other), max(tenant, other))
                    difference = self._level(pair[0]) - self._level(pair[1])
                    most = max(self._in_flight[tenant], self._in_flight[other])
                    self._together[pair] = _WaitingPair(difference, difference, most)
        elif not self._queued[tenant]:
            for pair in [each for each in self._together if tenant in each]:
                self._judge(pair, self._together.pop(pair))

    def finish(self) -> None:
        for pair, together in self._together.items():
            self._judge(pair, together)

    def _judge(self, pair: tuple[TenantId, TenantId], together: _WaitingPair) -> None:
        if together.turns < self._turns_min:
            return
        weight = min(self._weights.get(each, 100) for each in pair)
        allowed = 2 * (self._cost_max + together.in_flight_max) * 100 / weight
        apart = ServiceGap((together.most - together.least) / 1e9, allowed / 1e9)
        if apart.ratio > self.worst.ratio:
            self.worst = apart

    def _level(self, tenant: TenantId) -> float:
        return self._served[tenant] * 100 / self._weights.get(tenant, 100)
