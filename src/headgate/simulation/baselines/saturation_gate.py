"""Gate driven by the engines' own metrics.

It follows the flow control of the Gateway API inference extension and of llm-d. An endpoint is saturated if its last
scrape showed five waiting requests or 80 percent of the KV cache used, which are the defaults of both projects.
Requests wait in the gateway. The highest priority band goes first, each tenant is a flow, and the flows in a band take
turns. While at least one endpoint is not saturated, the next request goes to the endpoint with the shortest queue and
the lowest cache usage.

A scrape does not include requests sent after it; `counts_sent` adds them to the waiting requests. Without it, the gate
releases its entire queue as soon as one scrape shows free capacity. Neither variant considers the duration of engine
steps. As long as an engine starts all its requests immediately, it has no waiting ones, even if its batch is so large
that every request generates tokens slowly.
"""

from headgate.core.commands import Command
from headgate.model.units import EndpointId, Instant, PoolName, RequestId, TenantId
from headgate.simulation.baselines.baseline import Baseline, BaselineEndpoint, BaselineRequest
from headgate.simulation.engine.state import EngineState


class SaturationGate(Baseline):
    def __init__(self, *, waiting_max: int = 5, kv_used_max: float = 0.8, counts_sent: bool = True) -> None:
        super().__init__()
        self._waiting_max = waiting_max
        self._kv_used_max = kv_used_max
        self._counts_sent = counts_sent
        self._loads: dict[EndpointId, _EndpointLoad] = {}
        self._queues: dict[tuple[PoolName, ...], _Flows] = {}

    def on_scrape(self, endpoint_id: EndpointId, state: EngineState, now: Instant) -> None:
        self._loads[endpoint_id] = _EndpointLoad(state.waiting, state.kv_used_fraction)

    def _admit(self, held: BaselineRequest, now: Instant, out: list[Command]) -> None:
        self._queues.setdefault(held.pools, _Flows()).join(held)

    def _dequeue(self, held: BaselineRequest) -> None:
        self._queues[held.pools].remove(held)

    def _dispatch_waiting(self, now: Instant, out: list[Command]) -> None:
        for flows in self._queues.values():
            while (held := flows.first()) is not None and (target := self._choose(held)) is not None:
                flows.pop(held)
                view = self._loads[target.id]
                self._send(held, target, now, out, f"{view.waiting} waiting, {view.kv_used:.0%} of KV cache used")
                if self._counts_sent:
                    view.waiting += 1

    def _choose(self, held: BaselineRequest) -> BaselineEndpoint | None:
        """Returns the best endpoint for a request. An endpoint that has not been scraped counts as saturated."""
        seen = [(each, self._loads[each.id]) for each in self._ready_endpoints(held) if each.id in self._loads]
        free = [each for each in seen if self._has_room(each[1])]
        if not free:
            return None
        least, most = min(view.waiting for _, view in free), max(view.waiting for _, view in free)

        def score(each: tuple[BaselineEndpoint, _EndpointLoad]) -> tuple[float, int]:
            target, view = each
            queue = (most - view.waiting) / (most - least) if most > least else 1.0
            return queue + 1.0 - view.kv_used, -target.in_flight

        return max(free, key=score)[0]

    def _has_room(self, view: "_EndpointLoad") -> bool:
        return view.waiting < self._waiting_max and view.kv_used < self._kv_used_max


class _EndpointLoad:
    """The gate's current view of an endpoint."""

    __slots__ = ("kv_used", "waiting")

    def __init__(self, waiting: int, kv_used: float) -> None:
        self.waiting = waiting
        self.kv_used = kv_used


class _Flows:
    """Waiting requests: bands by priority, tenants in a band in turn, and a tenant's requests in arrival order."""

    __slots__ = ("_bands",)

    def __init__(self) -> None:
        self._bands: dict[int, dict[TenantId, dict[RequestId, BaselineRequest]]] = {}

    def join(self, held: BaselineRequest) -> None:
        band = held.service_class.band
        if band not in self._bands:
            self._bands = dict(sorted({**self._bands, band: {}}.items()))
        self._bands[band].setdefault(held.tenant, {})[held.id] = held

    def first(self) -> BaselineRequest | None:
        for flows in self._bands.values():
            for flow in flows.values():
                return next(iter(flow.values()))
        return None

    def pop(self, held: BaselineRequest) -> None:
        """Removes the first request and moves its flow to the end."""
        flows = self._bands[held.service_class.band]
        flow = flows.pop(held.tenant)
        del flow[held.id]
        if flow:
            flows[held.tenant] = flow

    def remove(self, held: BaselineRequest) -> None:
        flows = self._bands[held.service_class.band]
        flow = flows[held.tenant]
        del flow[held.id]
        if not flow:
            del flows[held.tenant]
