"""Which endpoint takes this request?

The one with the least predicted seconds: what the prompts before it take there, what its own takes without the
beginning that the engine probably holds, by how much a step is longer for those who are there, and the distance. Looked
at are the least loaded endpoint with headroom that it fits into, and those that hold more of its prompt than that one;
of all others hardly any could be better.

Who holds much of a prompt need not have headroom for one more. It is enough that waiting for the prompts before it is
shorter than computing all of it elsewhere. Otherwise a prompt that is nearly all there would be computed anew at
whichever endpoint has just become free, and under load hardly anything would ever be found again. For the same reason a
long prompt does not wait for its lane where what is left of it is short.

The endpoint where its last attempt failed is passed over as long as any other that it may use takes work at all, be
that one full at the moment.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from headgate.core.routing.endpoints import EndpointRecord, PoolRecord, Reservation
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.prefix_index import slots
from headgate.core.state import Request
from headgate.model.prefix import DISTANCES
from headgate.model.units import BYTES_PER_TOKEN, PoolName

_LOOKED_AT_MAX: Final = 8
"""Of a pool, in the order of load; and as many of those that hold the prompt's beginning."""
_PS_PER_NS: Final = 1_000


def choose(request: Request, among: tuple[PoolName, ...], fleet: Fleet) -> EndpointRecord | None:
    """The endpoint among these pools to send it to, or None if there is no room for it."""
    avoid = request.avoid
    if avoid is not None and fleet.live(request.pools) <= avoid.live:
        avoid = None
    best: EndpointRecord | None = None
    least_ns = 0
    for name in among:
        pool = fleet.pools.get(name)
        found = None if pool is None else _best(request, pool, avoid)
        if found is not None and (best is None or found[0] < least_ns):
            least_ns, best = found
    return best


def _best(request: Request, pool: PoolRecord, avoid: EndpointRecord | None) -> tuple[int, EndpointRecord] | None:
    """The best of a pool, with its score."""
    promised, lane_full = _reservation(request), request.long and pool.long >= pool.lane
    best: EndpointRecord | None = None
    least_ns = known = 0
    if not lane_full:
        best = _least_loaded(promised, pool, request.ticket.zone, avoid)
        if best is None:
            return None
        known = pool.prefixes.depth(best.slot, request.hashes)
        least_ns = _score_ns(best, request, _tokens(request, known))
    for endpoint, cached_tokens in islice(_holders(request, pool, known, lane_full=lane_full), _LOOKED_AT_MAX):
        if endpoint is not avoid and endpoint.open and endpoint.fits(promised):
            score_ns = _score_ns(endpoint, request, cached_tokens)
            if best is None or score_ns < least_ns:
                best, least_ns = endpoint, score_ns
    return None if best is None else (least_ns, best)


def _holders(
    request: Request, pool: PoolRecord, known: int, *, lane_full: bool
) -> Iterator[tuple[EndpointRecord, int]]:
    """Those that hold more of its prompt than is known of the least loaded one, with how much; the most first."""
    for depth, found in pool.prefixes.holders(request.hashes, beyond=known):
        cached_tokens = _tokens(request, depth)
        if lane_full and request.prompt_tokens - cached_tokens >= pool.terms.rules.long_tokens:
            return
        for slot in slots(found, request.sequence % len(pool.endpoints)):
            yield pool.at(slot), cached_tokens


def _least_loaded(
    promised: Reservation, pool: PoolRecord, zone: str, avoid: EndpointRecord | None
) -> EndpointRecord | None:
    """Nearly always the first one will do."""
    first = pool.least_loaded(zone)
    if first is None or (first is not avoid and first.fits(promised)):
        return first
    for number, endpoint in enumerate(pool.by_load(zone)):
        if endpoint is not avoid and endpoint.fits(promised):
            return endpoint
        if number >= _LOOKED_AT_MAX:
            break
    return None


def _score_ns(endpoint: EndpointRecord, request: Request, cached_tokens: int) -> int:
    """The predicted seconds, but for what is the same everywhere."""
    prefill_ps = endpoint.terms.speed.prefill_ps(request.prompt_tokens, cached=cached_tokens)
    prefill_ns = endpoint.learned.prefill_percent * prefill_ps // (100 * _PS_PER_NS)
    return endpoint.load_ns + endpoint.distance_ns(request.ticket.zone) + prefill_ns


# What is held already


def promise(request: Request, endpoint: EndpointRecord, fleet: Fleet) -> Reservation:
    """What the endpoint is promised with this request."""
    depth = fleet.pools[endpoint.pool].prefixes.depth(endpoint.slot, request.hashes)
    return _reservation(request, _tokens(request, depth))


def cached_tokens_most(request: Request, fleet: Fleet) -> int:
    """The most that any endpoint of its first pool holds of the prompt."""
    pool = fleet.pools.get(request.pools[0])
    return 0 if pool is None else _tokens(request, pool.prefixes.depth_anywhere(request.hashes))


def _tokens(request: Request, depth: int) -> int:
    """How many tokens of the prompt the first so many hashes stand for. The last one is always computed."""
    if not depth:
        return 0
    prompt_tokens = request.prompt_tokens
    measured = DISTANCES[depth - 1] * BYTES_PER_TOKEN * prompt_tokens // (request.ticket.prompt_bytes or 1)
    return measured if measured < prompt_tokens else prompt_tokens - 1


def _reservation(request: Request, cached_tokens: int = 0) -> Reservation:
    kv_tokens = request.prompt_tokens + request.output_tokens_most
    return Reservation(request.prompt_tokens, kv_tokens, request.service_class.name, cached_tokens)


def why(endpoint: EndpointRecord, promised: Reservation) -> str:
    """The reason of a dispatch, told after the endpoint has taken it."""
    least = f"least load, {endpoint.in_flight} of {endpoint.in_flight_max} in flight with it"
    if not promised.cached_tokens:
        return least
    return f"{least}; it holds about {promised.cached_tokens} of {promised.prompt_tokens} prompt tokens"
