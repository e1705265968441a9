"""What do the attempts in flight hold at each endpoint?

A place is occupied when an attempt is sent and vacated when it has ended; in between its endpoint learns that prompts
were computed and how fast its streams go.
"""

from collections.abc import Sequence

from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.routing.fleet_health import FleetHealth
from headgate.core.routing.placement import Placement
from headgate.model.units import Instant


class Heard:
    """What the streams of one endpoint have said together in one report."""

    __slots__ = ("attempts", "kv_tokens_more", "late", "tokens", "took_ns")

    def __init__(self, *, late: bool) -> None:
        self.late = late
        """Whether the times are unfit to learn from, since the gateway itself was late."""
        self.attempts = self.tokens = self.took_ns = 0
        """Totals over the streams that produced tokens: each weighs in the endpoint's speed by its share of the
        tokens."""
        self.kv_tokens_more = 0
        """What they have been promised beyond what was first thought."""


class Occupancy:
    __slots__ = ("_health", "_placement")

    def __init__(self, placement: Placement, health: FleetHealth) -> None:
        self._placement = placement
        self._health = health

    def occupy(self, endpoint: EndpointRecord, reservation: Reservation, hashes: Sequence[int] = ()) -> None:
        """`hashes` are of the prompt's beginning, which the endpoint will hold."""
        if hashes:
            self._placement.pools[endpoint.pool].prefixes.note(endpoint.slot, hashes, endpoint.terms.kv_tokens)
        endpoint.in_flight += reservation.places
        endpoint.count(reservation.service_class, reservation.places)
        endpoint.pending_tokens += reservation.pending_tokens
        endpoint.kv_used += reservation.prompt_tokens
        endpoint.kv_reserved += reservation.kv_tokens
        self._placement.place(endpoint)

    def began(self, endpoint: EndpointRecord, reservation: Reservation) -> None:
        """The prompt of an attempt has been computed."""
        endpoint.pending_tokens -= reservation.pending_tokens
        endpoint.prefilled_ps += endpoint.terms.speed.prefill_ps(
            reservation.prompt_tokens, cached=reservation.cached_tokens
        )
        self._placement.place_unless_full(endpoint)

    def progressed(self, endpoint: EndpointRecord, heard: Heard, now: Instant) -> None:
        """Its streams have said how far they are."""
        endpoint.last_heard = now
        endpoint.kv_used += heard.tokens
        endpoint.kv_reserved += heard.kv_tokens_more
        if heard.tokens:
            endpoint.itl_ns = heard.took_ns // heard.tokens
            if endpoint.learn(attempts=heard.attempts, tokens=heard.tokens, took_ns=heard.took_ns, late=heard.late):
                self._placement.pools[endpoint.pool].speed.learned(endpoint.learned)
        self._placement.place_unless_full(endpoint)

    def began_stream(self, endpoint: EndpointRecord, now: Instant) -> None:
        """One of those in flight streams from here on: silence now means something.

        Before its first token an attempt may rightly be silent, for as long as its class allows.
        """
        if not endpoint.streams:
            self._health.watch_streams(endpoint, now)
        endpoint.streams += 1

    def went_on(self, endpoint: EndpointRecord, reservation: Reservation, *, tokens: int, computed: bool) -> None:
        """What an attempt that another scheduler sent had done before it was known here: nothing is learned from it."""
        endpoint.kv_used += tokens
        if computed:
            endpoint.pending_tokens -= reservation.pending_tokens
        self._placement.place(endpoint)

    def vacate(
        self, endpoint: EndpointRecord, reservation: Reservation, *, tokens: int, began: bool, streaming: bool
    ) -> None:
        endpoint.in_flight -= reservation.places
        endpoint.count(reservation.service_class, -reservation.places)
        endpoint.kv_used -= reservation.prompt_tokens + tokens
        endpoint.kv_reserved -= reservation.kv_tokens
        if not began:
            endpoint.pending_tokens -= reservation.pending_tokens
        if streaming:
            endpoint.streams -= 1
            if not endpoint.streams:
                endpoint.itl_ns = 0
                self._health.unwatch_streams(endpoint)
        self._placement.place(endpoint)
        self.forget_if_gone(endpoint)

    def forget_if_gone(self, endpoint: EndpointRecord) -> None:
        """Forgets an endpoint that is leaving once nothing is in flight there."""
        if not endpoint.leaving or endpoint.in_flight:
            return
        self._health.forget(endpoint)
        self._placement.remove(endpoint)
        if endpoint.talks and endpoint.pool in self._placement.pools:
            self._health.judge_silence(endpoint)
