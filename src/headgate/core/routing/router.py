"""Router: chooses the endpoint for a request.

The request goes to the candidate with the shortest predicted time, which is the sum of `terms.COST_TERMS`. Candidates
are the least loaded endpoint with headroom, the endpoints that have more of the prompt in their prefix cache, and the
endpoint that served the request's session last. All candidates must pass `filters.FILTERS`. Other endpoints are rarely
better, so they are not considered.

An endpoint with a large part of the prompt in its cache does not need headroom for pending prompts. It is sufficient
that waiting for the prompts ahead takes less time than computing the whole prompt elsewhere. Otherwise, an almost fully
cached prompt would be computed again on the next endpoint that becomes free, and under load there would be few cache
hits. For the same reason a long prompt does not wait for the long lane if its uncached part is short.

A request with a LoRA adapter goes only to endpoints that hold the adapter and have a slot for it (`adapter_slots`). For
these requests all endpoints with headroom are candidates, and the time to load an inactive adapter is one more cost.

For a request with an e2e target, the few least loaded endpoints are candidates, and the time of the tokens after the
first is one more cost.

The endpoint of the last failed attempt is excluded as long as another endpoint is live, even if that one is full at the
moment. The same applies to endpoints that the request's cell member cannot reach (`reach`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from headgate.core.request_state import Request
from headgate.core.routing.cost_terms import (
    ADAPTER_COST_TERMS,
    COST_TERMS,
    E2E_COST_TERMS,
    CostTerm,
    session_preference,
)
from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.routing.filters import FILTERS, RoutingFilter
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.prefix_index import iter_slots
from headgate.model.prefix import PREFIX_LENGTHS
from headgate.model.units import BYTES_PER_TOKEN, PoolName

Candidate = tuple[EndpointRecord, int]
"""Endpoint, and the number of prompt tokens that are probably in its prefix cache."""
_CANDIDATES_MAX: Final = 8
"""Maximum number of endpoints considered per pool by load, and by prefix-cache hit."""


@dataclass(frozen=True, slots=True)
class LeastTimeRouter:
    """Routing policy: filters that candidates must pass, and cost terms whose sum is minimized."""

    filters: tuple[RoutingFilter, ...] = FILTERS
    terms: tuple[CostTerm, ...] = COST_TERMS
    adapter_terms: tuple[CostTerm, ...] = ADAPTER_COST_TERMS
    """Additional cost terms of requests with a LoRA adapter."""
    e2e_terms: tuple[CostTerm, ...] = E2E_COST_TERMS
    """Additional cost terms of requests with an e2e target."""

    def choose(self, request: Request, pools: tuple[PoolName, ...], fleet: FleetState) -> Candidate | None:
        """Returns the best endpoint in these pools, or None if no endpoint has capacity for the request."""
        request.excluded = avoid = request.avoid
        if avoid is not None and _live_count(request, fleet) <= avoid.live:
            request.excluded = None
        request.unreachable_endpoints = _out_of_reach(request, fleet) if fleet.health.reach.avoided else ()
        if request.ticket.session:
            request.session_visits = _session_visits(request, fleet)
        request.uncached_reservation = promised = reservation(request)
        if len(pools) == 1:
            only = fleet.pools.get(pools[0])
            return None if only is None else self._best(request, promised, only)
        best: Candidate | None = None
        for name in pools:
            pool = fleet.pools.get(name)
            found = None if pool is None else self._best(request, promised, pool)
            if found is not None and (best is None or self._score_ns(request, *found) < self._score_ns(request, *best)):
                best = found
        return best

    def cost_breakdown(
        self, request: Request, endpoint: EndpointRecord, cached_tokens: int
    ) -> tuple[tuple[str, int], ...]:
        """Returns the name and cost of each nonzero term. The endpoint's load must not include the request yet."""
        shares: tuple[tuple[str, int], ...] = ()
        for term in self.terms + self.adapter_terms if request.adapter else self.terms:
            if cost_ns := term(endpoint, request, cached_tokens):
                shares += ((term.__name__, cost_ns),)
        if request.e2e_ns is not None:
            for term in self.e2e_terms:
                if cost_ns := term(endpoint, request, cached_tokens):
                    shares += ((term.__name__, cost_ns),)
        if request.session_visits and (cost_ns := session_preference(endpoint, request, cached_tokens)):
            shares += ((session_preference.__name__, cost_ns),)
        return shares

    def _best(self, request: Request, promised: Reservation, pool: PoolRecord) -> Candidate | None:
        """Returns the best candidate of a pool. In the usual case of a single candidate, no score is computed."""
        lane_full = request.long_prompt and pool.long_count >= pool.long_lane_size
        best: Candidate | None = None
        known, least_ns = 0, None
        if not lane_full:
            endpoint = self._least_loaded(request, promised, pool)
            if endpoint is None or not (request.hashes or request.session_visits):
                return None if endpoint is None else (endpoint, 0)
            known = pool.prefixes.depth(endpoint.slot, request.hashes)
            best = endpoint, _prefix_tokens(request, known)
        holders = islice(_prefix_holders(request, pool, known, lane_full=lane_full), _CANDIDATES_MAX)
        # The long lane is not passed because of a session, whose endpoint may have lost the prompt.
        visited = () if lane_full or not request.session_visits else _visited(request, pool)
        for holder in (*visited, *holders) if visited else holders:
            if holder[0].accepts_queued() and self._passes(holder[0], request, promised):
                score_ns = self._score_ns(request, *holder)
                if best is not None and least_ns is None:
                    least_ns = self._score_ns(request, *best)
                if least_ns is None or score_ns < least_ns:
                    best, least_ns = holder, score_ns
        return best

    def _least_loaded(self, request: Request, promised: Reservation, pool: PoolRecord) -> EndpointRecord | None:
        """Returns the least loaded endpoint that passes the filters. Usually that is the first one."""
        if request.adapter:
            return self._cheapest_with_adapter(request, promised, pool)
        if request.e2e_ns is not None:
            return self._first_to_finish(request, promised, pool)
        zone = request.ticket.zone
        first = pool.least_loaded(zone)
        if first is None or self._passes(first, request, promised):
            return first
        # Unreachable endpoints are not counted, so a member that cannot reach a whole zone still finds the others.
        return pool.first_by_load(
            lambda endpoint: self._passes(endpoint, request, promised),
            scanned_max=_CANDIDATES_MAX + 1,
            zone=zone,
            uncounted=request.unreachable_endpoints,
        )

    def _cheapest_with_adapter(
        self, request: Request, promised: Reservation, pool: PoolRecord
    ) -> EndpointRecord | None:
        """Returns the endpoint with headroom and the lowest score that may serve the request's adapter.

        Only some of the endpoints hold the adapter, and fewer have it active, so all endpoints are considered.
        """
        best: EndpointRecord | None = None
        least = (0, 0)
        for endpoint in pool.endpoints.values():
            if endpoint.heap_entry is not None and self._passes(endpoint, request, promised):
                # With equal scores, an endpoint that does not have to replace an active adapter comes first.
                rank = self._score_ns(request, endpoint, 0), len(endpoint.adapters.slots.active)
                if best is None or rank < least:
                    best, least = endpoint, rank
        return best

    def _first_to_finish(self, request: Request, promised: Reservation, pool: PoolRecord) -> EndpointRecord | None:
        """Returns the endpoint that is expected to complete the response first, among the least loaded ones.

        The least loaded endpoint computes the prompt first, but may take longer for the rest of the response.
        """
        found: list[EndpointRecord] = []

        def collect(endpoint: EndpointRecord) -> bool:
            if self._passes(endpoint, request, promised):
                found.append(endpoint)
            return False

        zone, unreachable = request.ticket.zone, request.unreachable_endpoints
        pool.first_by_load(collect, scanned_max=_CANDIDATES_MAX, zone=zone, uncounted=unreachable)
        best: EndpointRecord | None = None
        least_ns = 0
        for endpoint in found:
            score_ns = self._score_ns(request, endpoint, 0)
            if best is None or score_ns < least_ns:
                best, least_ns = endpoint, score_ns
        return best

    def _passes(self, endpoint: EndpointRecord, request: Request, promised: Reservation) -> bool:
        if request.adapter and not endpoint.adapters.accepts(request.adapter):
            return False
        for passes in self.filters:  # noqa: SIM110 - `all` would create a generator for every candidate.
            if not passes(endpoint, request, promised):
                return False
        return True

    def _score_ns(self, request: Request, endpoint: EndpointRecord, cached_tokens: int) -> int:
        """Returns the predicted time, excluding the parts that are the same for all endpoints."""
        score_ns = 0
        for term in self.terms + self.adapter_terms if request.adapter else self.terms:
            score_ns += term(endpoint, request, cached_tokens)
        if request.e2e_ns is not None:
            for term in self.e2e_terms:
                score_ns += term(endpoint, request, cached_tokens)
        if request.session_visits:
            score_ns += session_preference(endpoint, request, cached_tokens)
        return score_ns


def _live_count(request: Request, fleet: FleetState) -> int:
    """Returns the number of live endpoints that may serve the request."""
    adapter = request.adapter
    if not adapter:
        return fleet.live_count(request.pools)
    pools = (fleet.pools[each] for each in request.pools if each in fleet.pools)
    return sum(each.live and each.adapters.holds(adapter) for pool in pools for each in pool.endpoints.values())


def _out_of_reach(request: Request, fleet: FleetState) -> tuple[EndpointRecord, ...]:
    """Returns the endpoints that the request's member avoids. Empty if no other endpoint is live."""
    away = fleet.health.reach.avoided.get(request.ticket.gateway)
    if away is None:
        return ()
    pools, excluded = request.pools, request.excluded
    kept = tuple(each for each in away.values() if each.live and each.pool in pools)
    if request.adapter:
        kept = tuple(each for each in kept if each.adapters.holds(request.adapter))
    left = _live_count(request, fleet) - len(kept)
    if excluded is not None and excluded.live and excluded.pool in pools and excluded not in kept:
        left -= 1
    return kept if left > 0 else ()


def _prefix_holders(request: Request, pool: PoolRecord, known: int, *, lane_full: bool) -> Iterator[Candidate]:
    """Yields endpoints with more than `known` hashes of the prompt cached, longest prefix first."""
    for depth, found in pool.prefixes.holders(request.hashes, beyond=known):
        cached_tokens = _prefix_tokens(request, depth)
        if lane_full and request.prompt_tokens - cached_tokens >= pool.settings.rules.long_prompt_tokens:
            return
        for slot in iter_slots(found, request.sequence % len(pool.endpoints)):
            yield pool.endpoint_at(slot), cached_tokens


def session_of(request: Request) -> str:
    """Returns the session within which requests share a cached prompt. An adapter has a cache of its own."""
    session = request.ticket.session
    return f"{session} {request.adapter}" if request.adapter else session


def _session_visits(request: Request, fleet: FleetState) -> tuple[tuple[EndpointRecord, int], ...]:
    """Returns the endpoints of the request's pools that served its session last.

    Each has the number of prompt tokens that it has seen, not counting those that the prefix index knows: they are
    already counted as a prefix-cache hit.
    """
    found: list[tuple[EndpointRecord, int]] = []
    for name in request.pools:
        pool = fleet.pools.get(name)
        visit = None if pool is None else pool.sessions.last(session_of(request))
        if pool is not None and visit is not None and (endpoint := pool.endpoints.get(visit[0])) is not None:
            known_tokens = _prefix_tokens(request, pool.prefixes.depth(endpoint.slot, request.hashes))
            found.append((endpoint, max(0, min(visit[1], request.prompt_tokens) - known_tokens)))
    return tuple(found)


def _visited(request: Request, pool: PoolRecord) -> tuple[Candidate, ...]:
    """Returns the endpoint of this pool that served the request's session last."""
    return tuple(
        (endpoint, _prefix_tokens(request, pool.prefixes.depth(endpoint.slot, request.hashes)))
        for endpoint, _ in request.session_visits
        if pool.endpoints.get(endpoint.id) is endpoint
    )


# Cached prefixes and reservations


def reservation_at(request: Request, endpoint: EndpointRecord, fleet: FleetState) -> Reservation:
    """Returns the reservation for the request on this endpoint."""
    depth = fleet.pools[endpoint.pool].prefixes.depth(endpoint.slot, request.hashes)
    return reservation(request, _prefix_tokens(request, depth))


def cached_tokens_max(request: Request, fleet: FleetState) -> int:
    """Returns the maximum number of prompt tokens that any endpoint of the request's first pool probably has cached."""
    pool = fleet.pools.get(request.pools[0])
    return 0 if pool is None else _prefix_tokens(request, pool.prefixes.depth_anywhere(request.hashes))


def _prefix_tokens(request: Request, depth: int) -> int:
    """Returns the prompt tokens that the first `depth` hashes cover. The last token is never cached."""
    if not depth:
        return 0
    prompt_tokens = request.prompt_tokens
    ticket = request.ticket
    known_bytes = ticket.prompt_bytes_before_prefix + PREFIX_LENGTHS[depth - 1] * BYTES_PER_TOKEN
    measured = known_bytes * prompt_tokens // (ticket.prompt_bytes or 1)
    return measured if measured < prompt_tokens else prompt_tokens - 1


def reservation(request: Request, cached_tokens: int = 0) -> Reservation:
    """Returns the reservation on an endpoint that has this many prompt tokens cached."""
    kv_tokens = request.prompt_tokens + request.output_tokens_p90
    name, ticket = request.service_class.name, request.ticket
    places = 1 if ticket.prompts == 1 else ticket.sequences
    return Reservation(request.prompt_tokens, kv_tokens, name, cached_tokens, places)


def dispatch_reason(endpoint: EndpointRecord, promised: Reservation) -> str:
    """Returns the reason for a dispatch. The endpoint's load must already include the request."""
    least = f"least loaded, {endpoint.in_flight} of {endpoint.in_flight_max} requests in flight"
    if not promised.cached_tokens:
        return least
    return f"{least}; about {promised.cached_tokens} of {promised.prompt_tokens} prompt tokens cached"


def adapter_reason(endpoint: EndpointRecord, adapter: str) -> str:
    """Returns the part of the reason that concerns the LoRA adapter. The request must not be in flight yet."""
    return f'; adapter "{adapter}" {"is active" if adapter in endpoint.adapters.slots.active else "has to be loaded"}'
