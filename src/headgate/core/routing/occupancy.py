"""Load that attempts in flight put on each endpoint.

An attempt occupies its slots when it is sent and vacates them when it ends. Meanwhile the endpoint's load is updated
with finished prefills and stream progress.
"""

from collections.abc import Sequence

from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.routing.fleet_health import FleetHealth
from headgate.core.routing.placement import Placement
from headgate.model.units import Instant


class EndpointProgress:
    """Progress of all streams on one endpoint in one report."""

    __slots__ = ("attempts", "kv_tokens_more", "late", "tokens", "took_ns")

    def __init__(self, *, late: bool) -> None:
        self.late = late
        """Whether the gateway itself was late. If so, the measured times reveal little about the engine."""
        self.attempts = self.tokens = self.took_ns = 0
        """Totals over the streams that produced tokens. Each stream's weight in the endpoint's speed is its share of
        the tokens."""
        self.kv_tokens_more = 0
        """KV cache tokens reserved in addition to the original reservations."""


class Occupancy:
    __slots__ = ("_health", "_placement")

    def __init__(self, placement: Placement, health: FleetHealth) -> None:
        self._placement = placement
        self._health = health

    def occupy(self, endpoint: EndpointRecord, reservation: Reservation, hashes: Sequence[int] = ()) -> None:
        """Occupies slots for a sent attempt. `hashes` identify the prompt prefix, which the endpoint will cache."""
        endpoint.pending_tokens += reservation.pending_tokens
        self._occupy(endpoint, reservation, hashes)

    def occupy_prefilled(self, endpoint: EndpointRecord, reservation: Reservation, hashes: Sequence[int]) -> None:
        """Like `occupy` and `record_prefilled` at the same time."""
        endpoint.prefilled_ps += endpoint.settings.speed.prefill_ps(
            reservation.prompt_tokens, reservation.cached_tokens
        )
        self._occupy(endpoint, reservation, hashes)

    def _occupy(self, endpoint: EndpointRecord, reservation: Reservation, hashes: Sequence[int]) -> None:
        if hashes:
            self._placement.pools[endpoint.pool].prefixes.record(endpoint.slot, hashes, endpoint.settings.kv_tokens)
        endpoint.in_flight += reservation.places
        endpoint.count(reservation.service_class, reservation.places)
        endpoint.kv_used += reservation.prompt_tokens
        endpoint.kv_reserved += reservation.kv_tokens
        self._placement.place_load(endpoint)

    def record_prefilled(self, endpoint: EndpointRecord, reservation: Reservation) -> None:
        """Records that the prompt of an attempt has been computed."""
        endpoint.pending_tokens -= reservation.pending_tokens
        endpoint.prefilled_ps += endpoint.settings.speed.prefill_ps(
            reservation.prompt_tokens, reservation.cached_tokens
        )
        self._placement.place_load_unless_full(endpoint)

    def record_progress(self, endpoint: EndpointRecord, progress: EndpointProgress, now: Instant) -> None:
        """Records the progress of the endpoint's streams."""
        endpoint.last_progress_at = now
        endpoint.kv_used += progress.tokens
        endpoint.kv_reserved += progress.kv_tokens_more
        if progress.tokens:
            endpoint.itl_ns = progress.took_ns // progress.tokens
            if endpoint.learn(
                attempts=progress.attempts, tokens=progress.tokens, took_ns=progress.took_ns, late=progress.late
            ):
                self._placement.pools[endpoint.pool].speed.update(endpoint.speed_estimator)
        self._placement.place_load_unless_full(endpoint)

    def start_stream(self, endpoint: EndpointRecord, now: Instant) -> None:
        """Counts an attempt that has started to stream, so that the endpoint is watched for stalls.

        Before its first token an attempt may be silent for as long as its class allows.
        """
        if not endpoint.streams:
            self._health.watch_streams(endpoint, now)
        endpoint.streams += 1

    def restore_progress(
        self, endpoint: EndpointRecord, reservation: Reservation, *, tokens: int, computed: bool
    ) -> None:
        """Restores the progress of an attempt that another scheduler sent. It does not affect the learned speed."""
        endpoint.kv_used += tokens
        if computed:
            endpoint.pending_tokens -= reservation.pending_tokens
        self._placement.place_load(endpoint)

    def vacate(
        self, endpoint: EndpointRecord, reservation: Reservation, *, tokens: int, prefilled: bool, streaming: bool
    ) -> None:
        endpoint.in_flight -= reservation.places
        endpoint.count(reservation.service_class, -reservation.places)
        endpoint.kv_used -= reservation.prompt_tokens + tokens
        endpoint.kv_reserved -= reservation.kv_tokens
        if not prefilled:
            endpoint.pending_tokens -= reservation.pending_tokens
        if streaming:
            endpoint.streams -= 1
            if not endpoint.streams:
                endpoint.itl_ns = 0
                self._health.unwatch_streams(endpoint)
        self._placement.place_load(endpoint)
        self.forget_if_gone(endpoint)

    def forget_if_gone(self, endpoint: EndpointRecord) -> None:
        """Removes a leaving endpoint once it has no requests in flight."""
        if not endpoint.leaving or endpoint.in_flight:
            return
        self._health.forget(endpoint)
        self._placement.remove(endpoint)
        if endpoint.reports_metrics and endpoint.pool in self._placement.pools:
            self._health.update_staleness(endpoint)
