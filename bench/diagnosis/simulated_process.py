"""Process metrics for a simulated gateway.

The metrics are those that a real process can measure. Connect time is known only when a connection is opened. A
connection stays open for reuse for three seconds after its response, and the median over the last half minute is
reported. Loop lag is the maximum since the last report. Decision time comes from the scenario. Other CPU time is
random, and so are the short disturbances seen on a healthy machine: a blocked event loop, a lost first packet, or a
store that is slow while it writes to disk.
"""

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median_high

from bench.diagnosis.world import Case
from headgate.core.commands import Command, Dispatch
from headgate.core.events import AttemptEnded, AttemptEnding, Event
from headgate.engines.connect_times import SAMPLES_MAX, SAMPLES_MIN, WINDOW_NS
from headgate.engines.http_engine import IDLE_S_MAX
from headgate.model.units import MILLISECOND, SECOND, Duration, EndpointId, Instant, PoolName, RequestId
from headgate.model.verdict import HostReport
from headgate.simulation.virtual.link_latencies import LinkLatencies

IDLE_NS = round(IDLE_S_MAX * SECOND)
LOST_PACKET_NS = 1_030 * MILLISECOND
"""Connect time when the first packet is lost: it is resent after one second."""
LOST_PACKETS = 1 / 150
STORE_SPIKES = 1 / 100
PAUSES = 1 / 80


class Connections:
    """Idle connections and connect times."""

    def __init__(self) -> None:
        self._idle: dict[EndpointId, list[Instant]] = {}
        self._busy: dict[tuple[RequestId, int], EndpointId] = {}
        self._took: dict[PoolName, deque[tuple[int, Duration]]] = {}

    def sent(self, order: Dispatch, now: Instant, connect_ns: Callable[[], Duration]) -> None:
        self._busy[order.request_id, order.attempt] = order.endpoint_id
        idle = self._idle.setdefault(order.endpoint_id, [])
        if idle and idle.pop() > now - IDLE_NS:
            return
        # The most recent connection has expired, and so have all older ones.
        idle.clear()
        length = connect_ns()
        self._took.setdefault(order.pool, deque(maxlen=SAMPLES_MAX)).append((now + length, length))

    def ended(self, event: AttemptEnded, now: Instant) -> None:
        endpoint = self._busy.pop((event.request_id, event.attempt), None)
        if endpoint is not None and event.ending is AttemptEnding.COMPLETED:
            self._idle.setdefault(endpoint, []).append(now)

    def medians(self, now: Instant) -> tuple[tuple[PoolName, Duration], ...]:
        late = {
            pool: [length for at, length in took if now - WINDOW_NS <= at <= now] for pool, took in self._took.items()
        }
        return tuple(
            (pool, median_high(lengths)) for pool, lengths in sorted(late.items()) if len(lengths) >= SAMPLES_MIN
        )


class SimulatedProcess:
    """Scheduler observer that creates one process report per second."""

    def __init__(self, case: Case) -> None:
        self._ways = case.scenario.link_latencies or LinkLatencies()
        self._chance = chance = case.world.rng("host")
        self._connections = Connections()
        self._decided_ns = self._lag_ns = 0
        self.behind_ns: Callable[[], Duration] = lambda: Duration(0)
        """Returns the current delay of the scheduler."""
        self._network_ns = chance.uniform(0.2, 3) * MILLISECOND
        far = chance.random() < 0.2
        self._store_ns = chance.uniform(15, 40) * MILLISECOND if far else chance.uniform(0.3, 2) * MILLISECOND
        hot = chance.random() < 0.3
        self._cpu = (80, 97) if hot else (5, 60)
        self._paused = 0
        """Number of remaining reports for which the process is blocked."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self._decided_ns += self._ways.decide_ns(now)
        self._lag_ns = max(self._lag_ns, self.behind_ns())
        if isinstance(event, AttemptEnded):
            self._connections.ended(event, now)
        for command in commands:
            if isinstance(command, Dispatch):
                self._connections.sent(command, now, lambda: self._connect_ns(now))

    def _connect_ns(self, now: Instant) -> Duration:
        chance = self._chance
        length = max(self._ways.network_ns(now), self._network_ns) * chance.uniform(0.8, 1.4)
        return Duration(round(length) + LOST_PACKET_NS * (chance.random() < LOST_PACKETS))

    def report(self, now: Instant) -> HostReport:
        chance = self._chance
        lag_ns = max(self._lag_ns, self.behind_ns(), self._own_lag_ns())
        decided = min(100, round(100 * self._decided_ns / SECOND))
        self._decided_ns = self._lag_ns = 0
        return HostReport(
            "gateway",
            Duration(lag_ns),
            min(100, max(decided, chance.randint(*self._cpu))),
            min(100, decided + chance.randint(1, 5)),
            self._connections.medians(now),
            self._store(now),
        )

    def _own_lag_ns(self) -> int:
        chance = self._chance
        if not self._paused and chance.random() < PAUSES:
            self._paused = chance.choice((1, 1, 2))
        if not self._paused:
            return round(chance.expovariate(0.3) * MILLISECOND)
        self._paused -= 1
        return round(chance.uniform(300, 800) * MILLISECOND)

    def _store(self, now: Instant) -> Duration:
        chance = self._chance
        length = max(self._ways.store_ns(now), self._store_ns) * chance.uniform(0.7, 1.6)
        if chance.random() < STORE_SPIKES:
            length += chance.uniform(50, 500) * MILLISECOND
        return Duration(round(length))
