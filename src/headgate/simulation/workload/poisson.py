"""Poisson arrivals at a constant rate."""

from random import Random

from headgate.model.units import SECOND, ClassName, Instant, TenantId
from headgate.simulation.options import PoissonTraffic
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.lengths import draw_length
from headgate.simulation.workload.shares import WeightedDraw


def poisson_arrivals(traffic: PoissonTraffic, *, seed: int, source: str) -> Arrivals:
    # Each random decision has its own sequence, so that changing the mix does not move the arrivals.
    when, prompt, output = (Random(f"{seed} {purpose} {source}") for purpose in ("when", "prompt", "output"))
    service_class = WeightedDraw(traffic.classes, Random(f"{seed} class {source}"))
    tenant = WeightedDraw(traffic.tenants, Random(f"{seed} tenant {source}"))
    at = when.expovariate(traffic.rate) * SECOND
    while at < traffic.duration_ns:
        yield Arrival(
            Instant(traffic.shift_ns + int(at)),
            draw_length(traffic.prompt, prompt),
            draw_length(traffic.output, output),
            ClassName(service_class.next()),
            TenantId(tenant.next()),
        )
        at += when.expovariate(traffic.rate) * SECOND
