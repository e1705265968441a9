"""Arrivals at a mean rate: constant, Poisson or bursty, with a rate that may change over time."""

from collections.abc import Callable, Iterator
from random import Random

from headgate.model.ticket import APIS_WITHOUT_OUTPUT
from headgate.model.units import SECOND, ClassName, Instant, TenantId
from headgate.simulation.options import RateTraffic
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.lengths import draw_length
from headgate.simulation.workload.rate_curve import rate_segments
from headgate.simulation.workload.shares import WeightedDraw


def rate_arrivals(traffic: RateTraffic, *, seed: int, source: str) -> Arrivals:
    # Each random decision has its own sequence, so that changing the mix does not move the arrivals.
    when, prompt, output = (Random(f"{seed} {purpose} {source}") for purpose in ("when", "prompt", "output"))
    service_class = WeightedDraw(traffic.classes, Random(f"{seed} class {source}"))
    tenant = WeightedDraw(traffic.tenants, Random(f"{seed} tenant {source}"))
    generates = traffic.api not in APIS_WITHOUT_OUTPUT
    for at_ns in _moments_ns(traffic, when):
        yield Arrival(
            Instant(traffic.shift_ns + int(at_ns)),
            draw_length(traffic.prompt, prompt),
            draw_length(traffic.output, output) if generates else 0,
            ClassName(service_class.next()),
            TenantId(tenant.next()),
            api=traffic.api,
            stream=None if generates else False,
        )


def _moments_ns(traffic: RateTraffic, when: Random) -> Iterator[float]:
    """Returns arrival times. The process runs at the mean rate, and the rate curve stretches its time."""
    gap_ns = _gaps(traffic, when)
    position_ns, done_ns = gap_ns(), 0.0
    for segment in rate_segments(traffic):
        while position_ns - done_ns < segment.work_ns:
            yield segment.moment_ns(position_ns - done_ns)
            position_ns += gap_ns()
        done_ns += segment.work_ns


def _gaps(traffic: RateTraffic, when: Random) -> Callable[[], float]:
    """Returns a function that draws the time between two requests."""
    rate, variation = traffic.rate, traffic.burstiness
    if variation == 0:
        return lambda: SECOND / rate
    if variation == 1:
        return lambda: when.expovariate(rate) * SECOND
    shape = variation**-2
    return lambda: when.gammavariate(shape, 1 / (shape * rate)) * SECOND
