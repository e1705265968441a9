"""Which endpoint takes this request?

The one with the fewest attempts in flight. The endpoint where its last attempt failed is passed
over as long as any other that it may use takes work at all, be that one full at the moment.
"""

from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet import Fleet
from headgate.core.state import Request
from headgate.model.units import PoolName


def choose(request: Request, among: tuple[PoolName, ...], fleet: Fleet) -> EndpointRecord | None:
    """The endpoint among these pools to send it to, or None if there is no room for it."""
    avoid = request.avoid
    if avoid is not None and fleet.live(request.pools) <= avoid.live:
        avoid = None
    best: EndpointRecord | None = None
    for name in among:
        pool = fleet.pools.get(name)
        found = pool.least_loaded(avoid) if pool is not None else None
        if found is not None and (best is None or found.in_flight < best.in_flight):
            best = found
    return best
