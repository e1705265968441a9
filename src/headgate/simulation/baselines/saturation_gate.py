"""What does a gate give that opens by the engines' own metrics?

As the flow control of the Gateway API inference extension and of llm-d does it. An endpoint is saturated when its last
scrape showed five requests waiting or four fifths of its KV cache used (their defaults). Requests wait in the gateway:
the highest band goes first, inside a band each tenant is a flow, and flows take turns. While some endpoint is not
saturated the next request goes to the one with the shortest queue and the emptiest cache.

What is sent between two scrapes shows in none of them. `counts_sent` adds it to what waits; without it everything that
waits goes out as soon as one scrape looks good. Neither looks at how long an engine's steps take, and an engine whose
batch is full has nothing waiting for as long as it keeps starting everything: so tokens come slowly for everybody.
"""

from headgate.core.commands import Command
from headgate.model.units import EndpointId, Instant, PoolName, RequestId, TenantId
from headgate.simulation.baselines.stand_in import Held, StandIn, Target
from headgate.simulation.engine.state import EngineState


class SaturationGate(StandIn):
    def __init__(self, *, waiting_max: int = 5, kv_used_max: float = 0.8, counts_sent: bool = True) -> None:
        super().__init__()
        self._waiting_max = waiting_max
        self._kv_used_max = kv_used_max
        self._counts_sent = counts_sent
        self._views: dict[EndpointId, _View] = {}
        self._lines: dict[tuple[PoolName, ...], _Flows] = {}

    def scraped(self, endpoint_id: EndpointId, state: EngineState, now: Instant) -> None:
        self._views[endpoint_id] = _View(state.waiting, state.kv_used_fraction)

    def _take(self, held: Held, now: Instant, out: list[Command]) -> None:
        self._lines.setdefault(held.pools, _Flows()).join(held)

    def _leave_line(self, held: Held) -> None:
        self._lines[held.pools].leave(held)

    def _fill(self, now: Instant, out: list[Command]) -> None:
        for flows in self._lines.values():
            while (held := flows.first()) is not None and (target := self._choose(held)) is not None:
                flows.take(held)
                view = self._views[target.id]
                self._send(held, target, now, out, f"{view.waiting} waiting, {view.kv_used:.0%} of KV used")
                if self._counts_sent:
                    view.waiting += 1

    def _choose(self, held: Held) -> Target | None:
        """One that was never scraped counts as saturated."""
        seen = [(each, self._views[each.id]) for each in self._open_to(held) if each.id in self._views]
        free = [each for each in seen if self._has_room(each[1])]
        if not free:
            return None
        least, most = min(view.waiting for _, view in free), max(view.waiting for _, view in free)

        def score(each: tuple[Target, _View]) -> tuple[float, int]:
            target, view = each
            queue = (most - view.waiting) / (most - least) if most > least else 1.0
            return queue + 1.0 - view.kv_used, -target.in_flight

        return max(free, key=score)[0]

    def _has_room(self, view: "_View") -> bool:
        return view.waiting < self._waiting_max and view.kv_used < self._kv_used_max


class _View:
    """What the gate takes an endpoint to be like."""

    __slots__ = ("kv_used", "waiting")

    def __init__(self, waiting: int, kv_used: float) -> None:
        self.waiting = waiting
        self.kv_used = kv_used


class _Flows:
    """Who waits: bands in their order, in a band the tenants by turns, of a tenant the first to come."""

    __slots__ = ("_bands",)

    def __init__(self) -> None:
        self._bands: dict[int, dict[TenantId, dict[RequestId, Held]]] = {}

    def join(self, held: Held) -> None:
        band = held.service_class.band
        if band not in self._bands:
            self._bands = dict(sorted({**self._bands, band: {}}.items()))
        self._bands[band].setdefault(held.tenant, {})[held.id] = held

    def first(self) -> Held | None:
        for flows in self._bands.values():
            for flow in flows.values():
                return next(iter(flow.values()))
        return None

    def take(self, held: Held) -> None:
        """Takes out the first; its flow has had its turn."""
        flows = self._bands[held.service_class.band]
        flow = flows.pop(held.tenant)
        del flow[held.id]
        if flow:
            flows[held.tenant] = flow

    def leave(self, held: Held) -> None:
        flows = self._bands[held.service_class.band]
        flow = flows[held.tenant]
        del flow[held.id]
        if not flow:
            del flows[held.tenant]
