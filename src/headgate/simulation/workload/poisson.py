"""Which requests come of plain chance, at a steady rate?"""

from dataclasses import dataclass
from random import Random

from headgate.model.units import SECOND, ClassName, Duration, Instant, TenantId
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.lengths import Lengths, draw_length
from headgate.simulation.workload.shares import Draw, Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonTraffic:
    rate: float
    """Requests a second on average, each at a moment that owes nothing to the others."""
    length_ns: Duration
    prompt: Lengths
    output: Lengths
    classes: Shares
    tenants: Shares
    shift_ns: Duration = Duration(0)
    """How long after the start of the run its own time begins."""


def poisson_arrivals(traffic: PoissonTraffic, *, seed: int, source: str) -> Arrivals:
    # Each question of chance has its own sequence, so that another mix does not move the arrivals.
    when, prompt, output = (Random(f"{seed} {purpose} {source}") for purpose in ("when", "prompt", "output"))
    service_class = Draw(traffic.classes, Random(f"{seed} class {source}"))
    tenant = Draw(traffic.tenants, Random(f"{seed} tenant {source}"))
    at = when.expovariate(traffic.rate) * SECOND
    while at < traffic.length_ns:
        yield Arrival(
            Instant(traffic.shift_ns + int(at)),
            draw_length(traffic.prompt, prompt),
            draw_length(traffic.output, output),
            ClassName(service_class.next()),
            TenantId(tenant.next()),
        )
        at += when.expovariate(traffic.rate) * SECOND
