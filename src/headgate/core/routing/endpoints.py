"""Endpoint records: load, headroom and predicted latency.

The scheduler always knows an endpoint's current reservations: prompts in prefill, sequences in decode, and the KV cache
that responses may need. They determine how long a new prompt would wait and how much it would slow down the other
requests. The endpoint with the lowest sum of both is preferred. Headroom depends on the same reservations and on the
latest measured inter-token latency.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.core.cost import first_token_ns
from headgate.core.engine_time import EngineTime
from headgate.core.routing.adapter_slots import HeldAdapters
from headgate.core.routing.devices import InFlightLoad
from headgate.core.routing.provider_quota import ProviderQuota
from headgate.core.routing.response_times import ResponseTimes
from headgate.core.routing.sequence_limit import SequenceLimit
from headgate.core.routing.service_log import ServiceLog
from headgate.core.routing.speed_estimator import SpeedEstimator
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import Endpoint, EndpointProblem, EndpointState
from headgate.model.policy import HeadroomRules
from headgate.model.speed import EngineSpeed
from headgate.model.units import SECOND, ClassName, Duration, Instant

PROBE_FAILING_NS_MAX: Final = Duration(10 * SECOND)
"""Time without any activity after which an endpoint with a failing probe counts as unresponsive (`failing_probes`)."""
_PS_PER_NS: Final = 1_000
_SLOW_PERCENT: Final = 125
"""Decode time, in percent of the expected time, below which a deviation counts as noise."""
_ALONE_TIMES: Final = 2
"""A default TPOT target is at least this multiple of a decode step with one request."""
_NO_CLASS: Final = ClassName("")
# Enum members that every request needs: Python 3.11 looks them up slowly.
_TRIAL: Final = EndpointState.TRIAL


class Reservation:
    """Capacity that an attempt reserves on an endpoint. Immutable."""

    # A named tuple takes longer to create, and its fields take longer to read.
    __slots__ = ("cached_tokens", "kv_tokens", "pending_tokens", "places", "prompt_tokens", "service_class")

    def __init__(
        self,
        prompt_tokens: int,
        kv_tokens: int,
        service_class: ClassName = _NO_CLASS,
        cached_tokens: int = 0,
        places: int = 1,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.kv_tokens = kv_tokens
        """KV cache tokens for the prompt and the largest likely response."""
        self.service_class = service_class
        """Class of the request, which may use the slots reserved for that class. Empty if irrelevant."""
        self.cached_tokens = cached_tokens
        """Prompt tokens that are probably in the engine's prefix cache."""
        self.places = places
        """Number of slots that the attempt occupies: one per prompt."""
        self.pending_tokens = prompt_tokens - cached_tokens
        """Prompt tokens to compute before the first output token."""

    def with_kv_tokens(self, kv_tokens: int) -> "Reservation":
        return Reservation(self.prompt_tokens, kv_tokens, self.service_class, self.cached_tokens, self.places)


_SHORTEST: Final = Reservation(1, 2)


class Trouble(NamedTuple):
    """Why an endpoint is not serving requests, and the observed error."""

    kind: EndpointProblem
    detail: str


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Settings shared by all endpoints in a pool."""

    speed: EngineSpeed
    kv_tokens: int | None
    tpot_ns: Duration | None
    """Strictest TPOT target of any class that uses the pool, in nanoseconds."""
    rules: HeadroomRules
    reserves: tuple[tuple[ClassName, int], ...] = ()
    """Classes with reserved slots, and the reserved percentage of each."""
    other_zone_ns: Duration = Duration(0)
    tpot_configured_ns: Duration | None = None
    """Strictest configured TPOT target, in nanoseconds; `tpot_ns` includes default targets."""
    speed_assumed: bool = False
    kv_configured: bool = False
    """Whether the KV cache capacity is configured. Otherwise the engine reports it."""
    max_lora: int | None = None
    """Configured number of distinct LoRA adapters with requests in flight. None if the engine reports it."""
    adapter_load_ns: Duration = Duration(0)
    """Time to load an adapter that is not active."""
    session_ns: Duration = Duration(0)
    """Preference for the endpoint that served a session last. 0 if sessions are not used."""
    in_flight_replacement: tuple[int, int] | None = None
    """Configured `in_flight_max` and the value that an operator has set instead."""

    def in_flight_limit(self, configured: int) -> int:
        """Returns the limit on requests in flight of an endpoint for which this one is configured."""
        replacement = self.in_flight_replacement
        return configured if replacement is None or replacement[0] != configured else replacement[1]


class EndpointRecord(InFlightLoad):
    """One endpoint as the scheduler sees it."""

    __slots__ = (
        "adapters",
        "attempt_trouble",
        "company",
        "counted_limit",
        "counted_long",
        "device",
        "device_load",
        "drained",
        "ejected_until",
        "ejections",
        "engine",
        "engine_load",
        "engine_time",
        "failures",
        "heap_entry",
        "id",
        "in_flight_configured",
        "in_flight_max",
        "last_progress_at",
        "leaving",
        "limit",
        "limit_percent",
        "live",
        "metrics_stale",
        "pool",
        "prefilled_ps",
        "probe_failed_at",
        "probe_passes",
        "probe_trouble",
        "quota",
        "quota_exhausted",
        "ready_at",
        "reports_metrics",
        "response_times",
        "sequence_limit",
        "service_log",
        "settings",
        "skipped_as_stale",
        "slot",
        "slow_start_percent",
        "speed_estimator",
        "state",
        "streams",
        "tpot_ns",
        "zone",
    )

    def __init__(self, endpoint: Endpoint, terms: EndpointSettings, now: Instant, *, scheduler_count: int = 1) -> None:
        super().__init__()
        self.id, self.pool = endpoint.id, endpoint.pool
        self.zone, self.device, self.engine = endpoint.zone, "", ""
        self.company: tuple[EndpointRecord, ...] = ()
        """The endpoints of other pools on the same engine, in the order in which they joined."""
        self.device_load: InFlightLoad = self
        self.engine_load: InFlightLoad = self
        """Loads that determine the headroom: the endpoint's own or, if a device or engine is shared, the total."""
        self.in_flight_configured = self.in_flight_max = self.limit = endpoint.in_flight_max
        self.speed_estimator, self.sequence_limit, self.adapters = SpeedEstimator(), SequenceLimit(), HeldAdapters()
        self.tpot_ns: Duration | None = None
        """TPOT limit for accepting requests, in nanoseconds."""
        self.apply_settings(terms)
        self.state = EndpointState.WARMING
        self.leaving = self.drained = False
        """Whether the endpoint is being removed, and whether an operator is draining it."""
        self.streams = 0
        """Number of requests in flight that have started to stream.

        If all of them become silent, the endpoint has stalled.
        """
        self.last_progress_at = self.ejected_until = now
        self.reports_metrics = self.metrics_stale = False
        """Whether the engine has ever reported metrics, and whether it has stopped."""
        self.skipped_as_stale = self.quota_exhausted = False
        self.quota: ProviderQuota | None = None
        # What the hosted provider still accepts. None if it reports no rate limits.
        self.limit_percent = 100
        """Effect of stale metrics: the endpoint gets no new requests (`skipped_as_stale`) or a lower limit."""
        self.slow_start_percent = 100
        """Progress of the slow start, in percent of the limit."""
        self.ready_at = now
        """Time at which the endpoint last became ready."""
        self.engine_time = EngineTime(endpoint.id, endpoint.pool, terms.speed, now, scheduler_count=scheduler_count)
        self.prefilled_ps = 0
        """Expected prefill time of the prompts computed since the last progress report, in picoseconds."""
        self.failures = self.ejections = 0
        """Consecutive failures that are the endpoint's fault, and consecutive ejections."""
        self.service_log, self.response_times = ServiceLog(), ResponseTimes()
        self.probe_passes = False
        """Whether the last probe passed. False if the endpoint has not been probed."""
        self.probe_trouble: Trouble | None = None
        """Why the last probe failed. None if it passed."""
        self.probe_failed_at = now
        """Time since which the probe has been failing, if it is."""
        self.attempt_trouble: Trouble | None = None
        """Why the last attempt failed. Kept until one succeeds."""
        self.live = self.counted_long = False
        """Whether it accepts requests in principle, even if full, and whether its pool counts a long prompt here."""
        self.counted_limit = self.slot = 0
        """Slots of this endpoint that are included in its pool's total, and its number within the pool: the lowest one
        that was free when it joined."""
        self.heap_entry: int | None = None
        """Order number of the endpoint's current heap entry. None while the endpoint has no headroom."""

    def apply_settings(self, terms: EndpointSettings) -> None:
        self.settings, self.in_flight_max = terms, terms.in_flight_limit(self.in_flight_configured)
        self.adapters.configured_max = terms.max_lora
        self.speed_estimator.assumed = terms.speed_assumed
        self._relax_tpot()

    def _relax_tpot(self) -> None:
        """Raises a default TPOT target to a value that the engine can meet with a few concurrent requests."""
        terms = self.settings
        self.tpot_ns = terms.tpot_ns
        if terms.tpot_ns is None or terms.tpot_ns == terms.tpot_configured_ns:
            return
        alone_ns = self.speed_estimator.decode_percent * terms.speed.decode_ps(1, kv_tokens=0) // (100 * _PS_PER_NS)
        relaxed_ns = Duration(max(terms.tpot_ns, _ALONE_TIMES * alone_ns))
        configured_ns = terms.tpot_configured_ns
        self.tpot_ns = relaxed_ns if configured_ns is None else min(relaxed_ns, configured_ns)

    def summary(self) -> EndpointSummary:
        """Returns a summary for status pages and metrics."""
        trouble = self.trouble
        return EndpointSummary(
            self.id,
            self.pool,
            self.state,
            self.leaving,
            self.in_flight,
            self.in_flight_max,
            kv_tokens=self.kv_used + self.kv_foreign,
            suspected=self.suspected,
            decode_percent=self.speed_estimator.decode_percent,
            prefill_percent=self.speed_estimator.prefill_percent,
            drained=self.drained,
            unserved_members=tuple(self.service_log.members.unserved),
            trouble=None if trouble is None else trouble.kind,
            trouble_detail="" if trouble is None else trouble.detail,
            probe_fails=self.probe_trouble is not None,
            sequences_max=self.sequence_limit.learned,
            engine=self.engine,
            kv_full=self._kv_full,
            adapters=self.adapters.counts(),
            quota_exhausted=self.quota_exhausted,
            served=self.service_log.completed,
        )

    def mark_unready(self, now: Instant) -> None:
        """Counts the engine's time as not ready, unless the engine serves another pool."""
        if not any(each.serving for each in self.company):
            self.engine_time.mark_unready(now)

    @property
    def _kv_full(self) -> bool:
        shared, capacity = self.device_load, self.settings.kv_tokens
        if capacity is None or not shared.in_flight:
            return False
        another = shared.kv_reserved // shared.in_flight
        return 100 * (shared.kv_reserved + shared.kv_foreign + another) > self.settings.rules.kv_percent * capacity

    @property
    def trouble(self) -> Trouble | None:
        """Why the endpoint is not serving. A failing probe is more recent and specific than a failed attempt."""
        if self.probe_trouble is not None:
            return self.probe_trouble
        return self.attempt_trouble if self.state in (EndpointState.EJECTED, EndpointState.TRIAL) else None

    @property
    def serving(self) -> bool:
        """Whether the engine is considered able to serve."""
        return self.state is EndpointState.READY or self.state is EndpointState.TRIAL

    @property
    def last_sign(self) -> Instant:
        """Time of the last token, the last completed attempt or the first failing probe, whichever is latest.

        An engine that serves another pool is active.
        """
        last = max(self.probe_failed_at, self.last_progress_at)
        return max(last, *(each.last_progress_at for each in self.company)) if self.company else last

    def unresponsive(self, now: Instant) -> bool:
        """Returns whether the probe fails and the endpoint has shown no activity for too long."""
        return self.probe_trouble is not None and now - self.last_sign >= PROBE_FAILING_NS_MAX

    @property
    def suspected(self) -> bool:
        """Whether the last attempt failed or the engine has stopped reporting metrics."""
        return self.metrics_stale or (self.failures > 0 and self.state is EndpointState.READY)

    def has_headroom(self) -> bool:
        """Whether the endpoint accepts a request now."""
        terms = self.settings
        full = 100 * self.device_load.pending_tokens >= terms.rules.pending_prefill_percent * terms.speed.chunk_tokens
        return not full and self.accepts_queued()

    def accepts_queued(self) -> bool:
        """Like `has_headroom`, for a request that may wait for the prompts ahead of it."""
        shared, terms = self.device_load, self.settings
        if self.skipped_as_stale or self.quota_exhausted or not self.live:
            return False
        if shared.in_flight + shared.foreign >= self.limit:
            return False
        limit = self.limit if self.sequence_limit.learned is None else self.sequence_limit.bound(self.limit)
        if self.engine_load.in_flight >= limit or (self.in_flight and self.state is _TRIAL):
            return False
        if self.tpot_ns is not None and 100 * shared.itl_ns > terms.rules.measured_tpot_percent * self.tpot_ns:
            return False
        # If even the shortest request does not fit, there is no need to check any request.
        return not shared.in_flight or self.fits(_SHORTEST)

    def update_limit(self) -> None:
        """Recomputes the concurrency limit after one of its factors has changed."""
        part = min(self.limit_percent, self.slow_start_percent) * self.in_flight_max // 100
        self.limit = min(self.in_flight_max, max(1, part))

    def fits(self, reservation: Reservation) -> bool:
        """Whether the endpoint has capacity for the reservation.

        An idle endpoint always does, unless all slots are reserved for other classes. One free slot is enough for an
        array of prompts: slots become free one by one, so an array that needed all of its slots at the same time could
        wait forever.
        """
        shared, terms, rules, places = self.device_load, self.settings, self.settings.rules, reservation.places
        if terms.reserves and reservation.service_class and not self.has_place_for(reservation.service_class):
            return False
        if not shared.in_flight:
            return True
        promised = shared.kv_reserved + shared.kv_foreign + reservation.kv_tokens
        if terms.kv_tokens is not None and 100 * promised > rules.kv_percent * terms.kv_tokens:
            return False
        if self.tpot_ns is None:
            return True
        kv_tokens = shared.kv_used + shared.kv_foreign + reservation.prompt_tokens
        step_ps = terms.speed.decode_ps(shared.in_flight + shared.foreign + places, kv_tokens)
        return self.speed_estimator.decode_percent * step_ps <= rules.predicted_tpot_percent * self.tpot_ns * _PS_PER_NS

    def has_place_for(self, name: ClassName) -> bool:
        """Whether a slot is free for a class, not counting the unused slots that are reserved for other classes."""
        shared, kept, places = self.device_load, 0, self.in_flight_max
        if shared is self.engine_load:
            places = self.sequence_limit.bound(places)
        for owner, percent in self.settings.reserves:
            if owner != name:
                kept += max(0, percent * places // 100 - shared.in_flight_by_class.get(owner, 0))
        return shared.in_flight + kept < places

    def load_ns(self) -> int:
        """Prefill time of the pending prompts plus the delay that the requests in flight add to each decode step.

        An engine that is much slower than configured has a higher load than others even when it is idle.
        """
        speed, shared, learned = self.settings.speed, self.device_load, self.speed_estimator
        decode_percent, sequences = learned.decode_percent, shared.in_flight + shared.foreign
        kv_tokens = shared.kv_used + shared.kv_foreign
        load = decode_percent * (speed.decode_sequence_ps * sequences + speed.kv_token_ps * kv_tokens)
        if shared.pending_tokens:
            load += learned.prefill_percent * speed.prefill_token_ps * shared.pending_tokens
        if decode_percent > _SLOW_PERCENT:
            load += (decode_percent - _SLOW_PERCENT) * speed.step_ps
        return load // (100 * _PS_PER_NS)

    def first_token_ns(self, reservation: Reservation) -> Duration:
        """Returns the time until the prompt of a request that was just sent will have been computed."""
        shared, speed = self.device_load, self.settings.speed
        step_ps = speed.decode_ps(shared.in_flight, kv_tokens=shared.kv_used)
        ahead, cached = max(0, shared.pending_tokens - reservation.pending_tokens), reservation.cached_tokens
        return first_token_ns(speed, ahead, reservation.prompt_tokens, cached=cached, decode_ps=step_ps)

    def learn(self, *, attempts: int, tokens: int, took_ns: int, late: bool) -> bool:
        """Updates the learned speed from a progress report. Returns whether the speed changed.

        `tokens` and `took_ns` are totals over `attempts` streams.
        """
        shared, speed = self.device_load, self.settings.speed
        step_ps = speed.decode_ps(shared.in_flight + shared.foreign, kv_tokens=shared.kv_used + shared.kv_foreign)
        prefill_ps, self.prefilled_ps = self.prefilled_ps, 0
        learned = self.speed_estimator.observe(
            decode_ns=tokens * step_ps // _PS_PER_NS,
            prefill_ns=attempts * prefill_ps // _PS_PER_NS,
            took_ns=took_ns,
            prefill_pending=shared.pending_tokens > 0,
            late=late,
        )
        if learned:
            self._relax_tpot()
        return learned

    def restore_speed(self, factors: tuple[int, int], sums: tuple[int, int, int, int, int]) -> None:
        """Restores the speed that a previous scheduler learned."""
        self.speed_estimator.restore(factors, sums)
        self._relax_tpot()

    def distance_ns(self, zone: str) -> int:
        """Returns the extra network time compared with an endpoint in this zone. 0 if either zone is unknown."""
        return self.settings.other_zone_ns if zone and self.zone and self.zone != zone else 0
