"""Which endpoint takes this request?

The candidate with the least predicted seconds, which are the sum of `terms.COST_TERMS`. Candidates are the least loaded
endpoint with headroom that passes all of `filters.FILTERS`, and those that hold more of its prompt than that one and
pass them too; of all others hardly any could be better.

Who holds much of a prompt need not have headroom for one more. It is enough that waiting for the prompts before it is
shorter than computing all of it elsewhere. Otherwise a prompt that is nearly all there would be computed anew at
whichever endpoint has just become free, and under load hardly anything would ever be found again. For the same reason a
long prompt does not wait for its lane where what is left of it is short.

The endpoint where its last attempt failed is skipped as long as any other that it may use accepts work at all, even if
that one is full at the moment. The same holds for endpoints that are out of reach of the cell member that holds the
request (`reach`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.routing.filters import FILTERS, RoutingFilter
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.prefix_index import slots
from headgate.core.routing.terms import COST_TERMS, CostTerm
from headgate.core.state import Request
from headgate.model.prefix import DISTANCES
from headgate.model.units import BYTES_PER_TOKEN, PoolName

Candidate = tuple[EndpointRecord, int]
"""An endpoint, and how many tokens of the prompt it probably holds."""
_LOOKED_AT_MAX: Final = 8
"""Of a pool, in the order of load; and as many of those that hold the prompt's beginning."""


@dataclass(frozen=True, slots=True)
class LeastSeconds:
    """The routing policy: filters that an endpoint must pass, and cost terms whose sum is to be least."""

    filters: tuple[RoutingFilter, ...] = FILTERS
    terms: tuple[CostTerm, ...] = COST_TERMS

    def choose(self, request: Request, among: tuple[PoolName, ...], fleet: Fleet) -> Candidate | None:
        """The endpoint among these pools to send it to, or None if there is no room for it."""
        avoid = request.avoid
        request.excluded = None if avoid is not None and fleet.live(request.pools) <= avoid.live else avoid
        request.out_of_reach = _out_of_reach(request, fleet) if fleet.health.reach.away else ()
        promised = reservation(request)
        best: Candidate | None = None
        for name in among:
            pool = fleet.pools.get(name)
            found = None if pool is None else self._best(request, promised, pool)
            if found is not None and (best is None or self._score_ns(request, *found) < self._score_ns(request, *best)):
                best = found
        return best

    def shares(self, request: Request, endpoint: EndpointRecord, cached_tokens: int) -> tuple[tuple[str, int], ...]:
        """The name and the cost of each term that is not zero, before the endpoint has taken the request."""
        shares: tuple[tuple[str, int], ...] = ()
        for term in self.terms:
            if cost_ns := term(endpoint, request, cached_tokens):
                shares += ((term.__name__, cost_ns),)
        return shares

    def _best(self, request: Request, promised: Reservation, pool: PoolRecord) -> Candidate | None:
        """The best of a pool. Where there is only one candidate, as is usual, nothing needs to be added up."""
        lane_full = request.long and pool.long >= pool.lane
        best: Candidate | None = None
        known, least_ns = 0, None
        if not lane_full:
            endpoint = self._least_loaded(request, promised, pool)
            if endpoint is None:
                return None
            known = pool.prefixes.depth(endpoint.slot, request.hashes)
            best = endpoint, _tokens(request, known)
        for holder in islice(_holders(request, pool, known, lane_full=lane_full), _LOOKED_AT_MAX):
            if holder[0].open and self._passes(holder[0], request, promised):
                score_ns = self._score_ns(request, *holder)
                if best is not None and least_ns is None:
                    least_ns = self._score_ns(request, *best)
                if least_ns is None or score_ns < least_ns:
                    best, least_ns = holder, score_ns
        return best

    def _least_loaded(self, request: Request, promised: Reservation, pool: PoolRecord) -> EndpointRecord | None:
        """Nearly always the first one will do."""
        zone = request.ticket.zone
        first = pool.least_loaded(zone)
        if first is None or self._passes(first, request, promised):
            return first
        looked_at = 0
        for endpoint in pool.by_load(zone):
            if self._passes(endpoint, request, promised):
                return endpoint
            # A member that cannot reach a whole zone must still find the endpoints behind it.
            looked_at += endpoint not in request.out_of_reach
            if looked_at > _LOOKED_AT_MAX:
                break
        return None

    def _passes(self, endpoint: EndpointRecord, request: Request, promised: Reservation) -> bool:
        for passes in self.filters:  # noqa: SIM110 - `all` would make a generator for every candidate.
            if not passes(endpoint, request, promised):
                return False
        return True

    def _score_ns(self, request: Request, endpoint: EndpointRecord, cached_tokens: int) -> int:
        """The predicted seconds, but for what is the same everywhere."""
        score_ns = 0
        for term in self.terms:
            score_ns += term(endpoint, request, cached_tokens)
        return score_ns


def _out_of_reach(request: Request, fleet: Fleet) -> tuple[EndpointRecord, ...]:
    """The endpoints that its member stays away from; none if no other endpoint accepts work."""
    away = fleet.health.reach.away.get(request.ticket.gateway)
    if away is None:
        return ()
    pools, excluded = request.pools, request.excluded
    kept = tuple(each for each in away.values() if each.live and each.pool in pools)
    left = fleet.live(pools) - len(kept)
    if excluded is not None and excluded.live and excluded.pool in pools and excluded not in kept:
        left -= 1
    return kept if left > 0 else ()


def _holders(request: Request, pool: PoolRecord, known: int, *, lane_full: bool) -> Iterator[Candidate]:
    """Those that hold more of its prompt than is known of the least loaded one, with how much; the most first."""
    for depth, found in pool.prefixes.holders(request.hashes, beyond=known):
        cached_tokens = _tokens(request, depth)
        if lane_full and request.prompt_tokens - cached_tokens >= pool.terms.rules.long_tokens:
            return
        for slot in slots(found, request.sequence % len(pool.endpoints)):
            yield pool.at(slot), cached_tokens


# What is held already


def promise(request: Request, endpoint: EndpointRecord, fleet: Fleet) -> Reservation:
    """What the endpoint is promised with this request."""
    depth = fleet.pools[endpoint.pool].prefixes.depth(endpoint.slot, request.hashes)
    return reservation(request, _tokens(request, depth))


def cached_tokens_most(request: Request, fleet: Fleet) -> int:
    """The most that any endpoint of its first pool holds of the prompt."""
    pool = fleet.pools.get(request.pools[0])
    return 0 if pool is None else _tokens(request, pool.prefixes.depth_anywhere(request.hashes))


def _tokens(request: Request, depth: int) -> int:
    """How many tokens of the prompt the first so many hashes stand for. The last one is always computed."""
    if not depth:
        return 0
    prompt_tokens = request.prompt_tokens
    ticket = request.ticket
    known_bytes = ticket.prompt_bytes_before + DISTANCES[depth - 1] * BYTES_PER_TOKEN
    measured = known_bytes * prompt_tokens // (ticket.prompt_bytes or 1)
    return measured if measured < prompt_tokens else prompt_tokens - 1


def reservation(request: Request, cached_tokens: int = 0) -> Reservation:
    """What an endpoint is promised that holds so many tokens of the prompt."""
    kv_tokens = request.prompt_tokens + request.output_tokens_most
    name, places = request.service_class.name, request.ticket.sequences
    return Reservation(request.prompt_tokens, kv_tokens, name, cached_tokens, places)


def why(endpoint: EndpointRecord, promised: Reservation) -> str:
    """The reason of a dispatch, told after the endpoint has taken it."""
    least = f"least load, {endpoint.in_flight} of {endpoint.in_flight_max} in flight with it"
    if not promised.cached_tokens:
        return least
    return f"{least}; it holds about {promised.cached_tokens} of {promised.prompt_tokens} prompt tokens"
