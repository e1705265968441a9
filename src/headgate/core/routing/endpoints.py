"""Does an endpoint have headroom, and how soon would it serve a request?

What an endpoint has been promised is known at once: prompts that have yet to be computed there, sequences that decode,
KV cache that answers may grow to. From this follows how long a newcomer's prompt would wait and how much slower it
would make the others; the endpoint where that is least goes first. Whether it takes anybody at all goes by the same
promises and by what was measured last: the time between two tokens.
"""

from typing import Final, NamedTuple

from headgate.core.cost import first_token_ns
from headgate.core.engine_time import EngineTime
from headgate.core.routing.devices import Held
from headgate.core.routing.learning import Learned
from headgate.core.routing.sequence_limit import SequenceLimit
from headgate.core.routing.service_log import ServiceLog
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import Endpoint, EndpointState, EndpointTrouble
from headgate.model.policy import HeadroomRules
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, Duration, Instant

_PS_PER_NS: Final = 1_000
_SLOW_PERCENT: Final = 125
"""Of the time that a step should take: up to here it is taken for noise."""
_ALONE_TIMES: Final = 2
"""A default time per token is at least this multiple of a step with one request."""


class Reservation(NamedTuple):
    """What an endpoint is promised with an attempt."""

    prompt_tokens: int
    kv_tokens: int
    """The prompt and what the answer may well grow to."""
    service_class: ClassName = ClassName("")
    """Whose places it may take; empty where that is no matter."""
    cached_tokens: int = 0
    """What of the prompt the engine probably holds, and need not compute."""
    places: int = 1
    """The number of the endpoint's places that it takes: one for each prompt to be answered."""

    @property
    def pending_tokens(self) -> int:
        """What it has to compute before the first token."""
        return self.prompt_tokens - self.cached_tokens


_SHORTEST: Final = Reservation(1, 2)


class Trouble(NamedTuple):
    """The reason why an endpoint does not serve, and the observed error."""

    kind: EndpointTrouble
    detail: str


class Terms(NamedTuple):
    """What holds for all endpoints of a pool."""

    speed: EngineSpeed
    kv_tokens: int | None
    tpot_ns: Duration | None
    """The strictest time per token that any class promises here."""
    rules: HeadroomRules
    reserves: tuple[tuple[ClassName, int], ...] = ()
    """The classes for which places are kept free here, and how many in a hundred."""
    other_zone_ns: Duration = Duration(0)
    tpot_configured_ns: Duration | None = None
    """The strictest that is configured; the others are defaults."""
    speed_assumed: bool = False
    kv_configured: bool = False
    """Whether the KV capacity comes from the configuration; else it is what the endpoint's engine reports."""


class EndpointRecord(Held):
    """One endpoint as the scheduler sees it."""

    __slots__ = (
        "attempt_trouble",
        "counted_limit",
        "counted_long",
        "device",
        "drained",
        "ejections",
        "failures",
        "grown_percent",
        "id",
        "in_flight_max",
        "last_heard",
        "learned",
        "leaving",
        "limit",
        "limit_percent",
        "live",
        "passed_over",
        "place",
        "pool",
        "prefilled_ps",
        "probe_passes",
        "probe_trouble",
        "ready_at",
        "returns_at",
        "sequences",
        "service",
        "shared",
        "silent",
        "slot",
        "state",
        "streams",
        "talks",
        "terms",
        "time",
        "tpot_ns",
        "zone",
    )

    def __init__(self, endpoint: Endpoint, terms: Terms, now: Instant, *, counted_by: int = 1) -> None:
        super().__init__()
        self.id, self.pool = endpoint.id, endpoint.pool
        self.zone, self.device = endpoint.zone, ""
        self.shared: Held = self
        """What it is judged by: itself, or its device with all that others hold there."""
        self.in_flight_max = self.limit = endpoint.in_flight_max
        self.learned, self.sequences = Learned(), SequenceLimit()
        self.tpot_ns: Duration | None = None
        """The time per token up to which it takes requests."""
        self.take_terms(terms)
        self.state = EndpointState.WARMING
        self.leaving = self.drained = False
        """Whether it is being removed, and whether an operator has ordered that no new requests go there."""
        self.streams = 0
        """How many of those in flight have begun to stream, and so must show signs of life."""
        self.last_heard = now
        self.talks = self.silent = False
        """Whether its engine has ever told of itself, and whether it has stopped."""
        self.passed_over = False
        self.limit_percent = 100
        """What its silence means: that it takes nobody, or fewer."""
        self.grown_percent = 100
        """How far its slow start is."""
        self.ready_at = now
        """When it could serve last after it could not."""
        self.time = EngineTime(endpoint.id, endpoint.pool, terms.speed, now, of=counted_by)
        self.prefilled_ps = 0
        """What the prompts should have taken that were computed since the last report of progress."""
        self.failures = 0
        """Failures in a row for which the endpoint is to blame."""
        self.service = ServiceLog()
        self.ejections = 0
        """Ejections in a row."""
        self.returns_at = now
        self.probe_passes = False
        """Whether its last probe passed; false also if it has not been probed."""
        self.probe_trouble: Trouble | None = None
        """The reason why its last probe failed."""
        self.attempt_trouble: Trouble | None = None
        """The reason why its last attempt failed, until one succeeds."""
        self.live = False
        """Whether it takes work at all, be it full at the moment or not."""
        self.counted_long = False
        """Whether a long prompt is being computed there."""
        self.counted_limit = 0
        """The number of its pool's places that belong to it."""
        self.slot = 0
        """Its number in its pool, the least that was free when it came."""
        self.place: int | None = None
        """The number of its one entry in the heap that counts; None while it has no headroom."""

    def take_terms(self, terms: Terms) -> None:
        self.terms = terms
        self.learned.assumed = terms.speed_assumed
        self._relax()

    def _relax(self) -> None:
        """Raises a default time per token to what the engine can keep for a few requests at once."""
        terms = self.terms
        self.tpot_ns = terms.tpot_ns
        if terms.tpot_ns is None or terms.tpot_ns == terms.tpot_configured_ns:
            return
        alone_ns = self.learned.decode_percent * terms.speed.decode_ps(1, kv_tokens=0) // (100 * _PS_PER_NS)
        relaxed_ns = Duration(max(terms.tpot_ns, _ALONE_TIMES * alone_ns))
        configured_ns = terms.tpot_configured_ns
        self.tpot_ns = relaxed_ns if configured_ns is None else min(relaxed_ns, configured_ns)

    def seen(self) -> EndpointSummary:
        """What those see of it who look."""
        trouble = self.why_out
        return EndpointSummary(
            self.id,
            self.pool,
            self.state,
            self.leaving,
            self.in_flight,
            self.in_flight_max,
            kv_tokens=self.kv_used + self.kv_foreign,
            suspected=self.suspected,
            decode_percent=self.learned.decode_percent,
            prefill_percent=self.learned.prefill_percent,
            drained=self.drained,
            unserved_members=tuple(self.service.members.unserved),
            trouble=None if trouble is None else trouble.kind,
            trouble_detail="" if trouble is None else trouble.detail,
            probe_fails=self.probe_trouble is not None,
            sequences_max=self.sequences.learned,
            kv_full=self._kv_full,
        )

    @property
    def _kv_full(self) -> bool:
        shared, capacity = self.shared, self.terms.kv_tokens
        if capacity is None or not shared.in_flight:
            return False
        another = shared.kv_reserved // shared.in_flight
        return 100 * (shared.kv_reserved + shared.kv_foreign + another) > self.terms.rules.kv_percent * capacity

    @property
    def why_out(self) -> Trouble | None:
        """The reason why it does not serve. A failing probe is more recent and more specific than the last attempt."""
        if self.probe_trouble is not None:
            return self.probe_trouble
        return self.attempt_trouble if self.state in (EndpointState.EJECTED, EndpointState.TRIAL) else None

    @property
    def serving(self) -> bool:
        """Whether its engine is thought to be able to serve."""
        return self.state is EndpointState.READY or self.state is EndpointState.TRIAL

    @property
    def suspected(self) -> bool:
        """Whether the last that it was given failed, or it has stopped telling of itself."""
        return self.silent or (self.failures > 0 and self.state is EndpointState.READY)

    @property
    def headroom(self) -> bool:
        """Whether it takes anybody at the moment."""
        rules, chunk_tokens = self.terms.rules, self.terms.speed.chunk_tokens
        return 100 * self.shared.pending_tokens < rules.pending_percent * chunk_tokens and self.open

    @property
    def open(self) -> bool:
        """As headroom, for one who does not mind to wait until the prompts before its own are computed."""
        shared, terms = self.shared, self.terms
        if self.passed_over or not self.live or shared.in_flight + shared.foreign >= self.limit:
            return False
        if self.in_flight >= self.sequences.bound(self.limit) or (self.state is EndpointState.TRIAL and self.in_flight):
            return False
        if self.tpot_ns is not None and 100 * shared.itl_ns > terms.rules.measured_percent * self.tpot_ns:
            return False
        # Where not even the shortest request fits nobody needs to be asked.
        return self.fits(_SHORTEST)

    def bound(self) -> None:
        """Reckons how many it takes at once, after any of what bounds them has changed."""
        part = min(self.limit_percent, self.grown_percent) * self.in_flight_max // 100
        self.limit = min(self.in_flight_max, max(1, part))

    def fits(self, reservation: Reservation) -> bool:
        """Whether the request may be sent to an endpoint that accepts work; always true if it would be alone there.

        One free place is enough for an array of prompts, since places become free one by one: the array would wait
        forever for as many free places at once as it takes.
        """
        shared, terms, rules, places = self.shared, self.terms, self.terms.rules, reservation.places
        if terms.reserves and reservation.service_class and not self.open_to(reservation.service_class):
            return False
        if not shared.in_flight:
            return True
        promised = shared.kv_reserved + shared.kv_foreign + reservation.kv_tokens
        if terms.kv_tokens is not None and 100 * promised > rules.kv_percent * terms.kv_tokens:
            return False
        if self.tpot_ns is None:
            return True
        step_ps = terms.speed.decode_ps(
            shared.in_flight + shared.foreign + places,
            kv_tokens=shared.kv_used + shared.kv_foreign + reservation.prompt_tokens,
        )
        return self.learned.decode_percent * step_ps <= rules.predicted_percent * self.tpot_ns * _PS_PER_NS

    def open_to(self, name: ClassName) -> bool:
        """Whether a place is free for a class beside those that are kept for others and that they do not use."""
        shared, kept, places = self.shared, 0, self.in_flight_max
        if shared is self:
            places = self.sequences.bound(places)
        for owner, percent in self.terms.reserves:
            if owner != name:
                kept += max(0, percent * places // 100 - shared.in_flight_of.get(owner, 0))
        return shared.in_flight + kept < places

    @property
    def load_ns(self) -> int:
        """How long the pending prompts take, and by how much a step is longer for those who are here.

        An engine that turns out to be much slower than was said is behind the others even when it is empty.
        """
        speed, shared, learned = self.terms.speed, self.shared, self.learned
        pending_ps = speed.prefill_token_ps * shared.pending_tokens
        slower_ps = speed.decode_sequence_ps * (shared.in_flight + shared.foreign)
        slower_ps += speed.kv_token_ps * (shared.kv_used + shared.kv_foreign)
        load = learned.prefill_percent * pending_ps + learned.decode_percent * slower_ps
        if learned.decode_percent > _SLOW_PERCENT:
            load += (learned.decode_percent - _SLOW_PERCENT) * speed.step_ps
        return load // (100 * _PS_PER_NS)

    def first_token_ns(self, reservation: Reservation) -> Duration:
        """How long until the prompt of somebody who has just come is computed."""
        shared, speed = self.shared, self.terms.speed
        step_ps = speed.decode_ps(shared.in_flight, kv_tokens=shared.kv_used)
        ahead, cached = max(0, shared.pending_tokens - reservation.pending_tokens), reservation.cached_tokens
        return first_token_ns(speed, ahead, reservation.prompt_tokens, cached=cached, decode_ps=step_ps)

    def learn(self, *, attempts: int, tokens: int, took_ns: int, late: bool) -> bool:
        """What so many of its streams produced, and how long they took for it, all added up; true if it learned."""
        shared, speed = self.shared, self.terms.speed
        step_ps = speed.decode_ps(shared.in_flight + shared.foreign, kv_tokens=shared.kv_used + shared.kv_foreign)
        prefill_ps, self.prefilled_ps = self.prefilled_ps, 0
        learned = self.learned.observe(
            decode_ns=tokens * step_ps // _PS_PER_NS,
            prefill_ns=attempts * prefill_ps // _PS_PER_NS,
            took_ns=took_ns,
            half_done=shared.pending_tokens > 0,
            late=late,
        )
        if learned:
            self._relax()
        return learned

    def recall(self, factors: tuple[int, int], sums: tuple[int, int, int, int, int]) -> None:
        """Takes over what an earlier scheduler learned of it."""
        self.learned.restore(factors, sums)
        self._relax()

    def distance_ns(self, zone: str) -> int:
        """By how much it is behind one that stands in this zone; nothing where either is unknown."""
        return self.terms.other_zone_ns if zone and self.zone and self.zone != zone else 0
