"""Schedule and senders of a workload.

Arrivals come from the simulator's generators. With the same seed, a source
therefore sends the same requests at the same times as in a simulated scenario.
"""

from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from itertools import islice, takewhile
from typing import Final

from headgate.loadtest.options import UNNAMED, LoadTestWorkload
from headgate.loadtest.schedule import Schedule
from headgate.loadtest.senders import SENDERS_MAX, TOKENS_MAX, Sender, TokenRange
from headgate.model.units import ClassName, TenantId
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.scenario_traffic import limited_span_ns, scaled_traffic, with_tenants
from headgate.simulation.workload.traffic import source_arrivals

OTHER_TENANTS: Final = TenantId("other")
"""Label for tenants beyond the maximum number of senders."""


class WorkloadSenders:
    """Senders of a workload, one for each source, class and tenant."""

    def __init__(self, workload: LoadTestWorkload, *, default_key: str | None, senders_max: int = SENDERS_MAX) -> None:
        self._workload = workload
        self._default_key = default_key
        self._senders_max = senders_max
        self._index: dict[tuple[int, ClassName, TenantId], int] = {}
        self.senders: list[Sender] = []

    def index_for(self, source: int, arrival: Arrival) -> int:
        name = (source, arrival.service_class, arrival.tenant)
        known = self._index.get(name)
        if known is None and len(self._index) >= self._senders_max:
            name = (source, arrival.service_class, OTHER_TENANTS)
            known = self._index.get(name)
        if known is None:
            known = self._index[name] = len(self.senders)
            self.senders.append(self._sender(*name))
        return known

    def _sender(self, number: int, service_class: ClassName, tenant: TenantId) -> Sender:
        source, caller = self._workload.sources[number], self._workload.callers.get(service_class)
        return Sender(
            prompt=TokenRange(1, 1),
            output=TokenRange(1, 1),
            service_class=None if service_class == UNNAMED else service_class,
            tier=source.tier,
            tenant=tenant,
            key=self._workload.keys.get(tenant, self._default_key),
            api=source.api,
            caller=caller and replace(caller, api=source.api),
            source=number,
            prefix_tokens=source.prefix_tokens,
            prefix_prompts=source.prefix_prompts,
            session=source.session,
        )


def scaled_workload(workload: LoadTestWorkload, load: float) -> LoadTestWorkload:
    """Multiplies the rate of all sources. Traces are sped up instead, so they become shorter."""
    sources = (replace(source, traffic=scaled_traffic(source.traffic, load)) for source in workload.sources)
    return replace(workload, sources=tuple(sources))


def workload_schedule(
    workload: LoadTestWorkload,
    *,
    seed: int,
    key: str | None = None,
    duration_s: float | None = None,
    limit: int | None = None,
) -> tuple[Schedule, list[Sender]]:
    """Returns the first request of each session, and all other requests, in chronological order."""
    senders = WorkloadSenders(workload, default_key=key)
    traffic = [with_tenants(source.traffic) for source in workload.sources]
    span_ns = limited_span_ns(traffic, workload.duration_ns)
    streams = [_numbered(number, stream) for number, stream in enumerate(source_arrivals(traffic, seed=seed))]
    schedule = Schedule(span_ns if duration_s is None else min(span_ns, round(duration_s * 1e9)))
    arrived = merge(*streams, key=lambda each: each[1].at)
    for number, arrival in islice(takewhile(lambda each: each[1].at < schedule.length_ns, arrived), limit):
        schedule.add(
            arrival.at,
            prompt_tokens=min(arrival.prompt_tokens, TOKENS_MAX),
            output_tokens=min(arrival.output_tokens, TOKENS_MAX),
            sender=senders.index_for(number, arrival),
        )
    if limit is not None and len(schedule) == limit:
        schedule.length_ns = schedule.at_ns[-1]
    return schedule, senders.senders


def _numbered(number: int, stream: Iterator[Arrival]) -> Iterator[tuple[int, Arrival]]:
    return ((number, arrival) for arrival in stream)
