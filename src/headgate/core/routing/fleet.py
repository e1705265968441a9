"""Which endpoints are there, and in what state?

The fleet keeps every endpoint that has been heard of: its coming and going, its places taken,
its health, and the moments at which it must be looked at again. It notes the pools with headroom
in which anything changed, so that the scheduler looks nowhere else.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from headgate.core import health
from headgate.core.alarms import Agenda, Alarms
from headgate.core.commands import Eject, Readmit
from headgate.core.counters import EndpointCounter
from headgate.core.engine_time import LeftTimes
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointReadied,
    EndpointUnreadied,
    FleetEvent,
)
from headgate.core.routing import talk
from headgate.core.routing.devices import DeviceRecord, Devices, Held
from headgate.core.routing.endpoints import EndpointRecord, PoolRecord, Reservation
from headgate.core.rules import Rules
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.money import EndpointTime
from headgate.model.policy import HealthRules
from headgate.model.units import Duration, EndpointId, Instant, PoolName, after, seconds


class Heard:
    """What the streams of one endpoint have said together in one report."""

    __slots__ = ("attempts", "kv_tokens_more", "tokens", "took_ns")

    def __init__(self) -> None:
        self.attempts = self.tokens = self.took_ns = 0
        self.kv_tokens_more = 0
        """What they have been promised beyond what was first thought."""


class Fleet:
    __slots__ = (
        "_counted_by",
        "_devices",
        "_drained",
        "_growths",
        "_left",
        "_lost",
        "_recalled",
        "_returns",
        "_rules",
        "_silences",
        "_stalls",
        "agenda",
        "changed",
        "endpoints",
        "pools",
    )

    def __init__(self, rules: Rules, *, counted_by: int = 1) -> None:
        self._rules = rules
        self._counted_by = counted_by
        """How many schedulers share its endpoints: so small is the part of their time that is counted here."""
        self._left = LeftTimes()
        self.agenda = agenda = Agenda()
        """When endpoints must be looked at again."""
        self.endpoints: dict[EndpointId, EndpointRecord] = {}
        self.pools: dict[PoolName, PoolRecord] = {}
        self.changed: dict[PoolName, None] = {}
        """Pools where someone may have become dispatchable: an ordered set."""
        self._drained: tuple[EndpointId, ...] = ()
        self._devices = Devices()
        self._lost: dict[PoolName, None] = {}
        """Pools that have lost an endpoint that took work: an ordered set."""
        self._recalled: dict[EndpointId, EndpointCounter] = {}
        """What an earlier scheduler knew of endpoints that have not joined yet."""
        self._returns: Alarms[EndpointId] = Alarms(agenda)
        self._growths: Alarms[EndpointId] = Alarms(agenda)
        self._stalls: Alarms[EndpointId] = Alarms(agenda)
        self._silences: Alarms[EndpointId] = Alarms(agenda)

    def live(self, pools: tuple[PoolName, ...]) -> int:
        """How many endpoints of these pools take work."""
        count = 0
        for name in pools:
            if (pool := self.pools.get(name)) is not None:
                count += pool.live
        return count

    def lane(self, pools: tuple[PoolName, ...]) -> int:
        """How many endpoints of these pools compute long prompts at the same time, at most."""
        count = 0
        for name in pools:
            if (pool := self.pools.get(name)) is not None:
                count += pool.lane
        return count

    def warming(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether an endpoint of these pools is starting."""
        return any(pool.warming for name in pools if (pool := self.pools.get(name)) is not None)

    def roomiest(self) -> PoolName | None:
        """Of the changed pools the one with the least loaded endpoint. Those without room are struck off."""
        best: PoolName | None = None
        least_ns = 0
        for name in tuple(self.changed):
            pool = self.pools.get(name)
            if pool is None or not pool.places:
                del self.changed[name]
            elif len(self.changed) == 1:
                return name
            else:
                endpoint = pool.least_loaded()
                assert endpoint is not None, f"pool {name} counts an endpoint with headroom that is nowhere"
                if best is None or endpoint.load_ns < least_ns:
                    best, least_ns = name, endpoint.load_ns
        return best

    def waited_for(self, pools: tuple[PoolName, ...]) -> None:
        """Who waits for these pools has changed. Where no endpoint has headroom, that will be seen when one has."""
        for name in pools:
            if (pool := self.pools.get(name)) is not None and pool.places:
                self.changed[name] = None

    # Coming and going

    def told(self, event: FleetEvent, now: Instant) -> Readmit | None:
        match event:
            case EndpointJoined(endpoint):
                self.join(endpoint, now)
            case EndpointReadied(endpoint_id):
                return self.ready(endpoint_id, now)
            case EndpointUnreadied(endpoint_id):
                self.unready(endpoint_id, now)
            case EndpointMeasured():
                self.measured(event, now)
            case EndpointLeaving(endpoint_id):
                self.leave(endpoint_id, now)
            case _:
                assert_never(event)
        return None

    def join(self, endpoint: Endpoint, now: Instant) -> None:
        record = self.endpoints.get(endpoint.id)
        if record is None:
            if (pool := self.pools.get(endpoint.pool)) is None:
                pool = self.pools[endpoint.pool] = PoolRecord(self._rules.terms(endpoint.pool))
            record = self.endpoints[endpoint.id] = EndpointRecord(
                endpoint, pool.terms, now, counted_by=self._counted_by
            )
            record.drained = endpoint.id in self._drained
            pool.add(record)
            self._recall(record)
        assert record.pool == endpoint.pool, f"endpoint {endpoint.id} changed its pool; it needs a name of its own"
        record.in_flight_max, record.zone = endpoint.in_flight_max, endpoint.zone
        record.leaving = False
        record.bound()
        self._move(record, endpoint.device)
        self._place(record)

    def ready(self, endpoint_id: EndpointId, now: Instant) -> Readmit | None:
        record = self.endpoints.get(endpoint_id)
        if record is None or record.state is not EndpointState.WARMING:
            return None
        trusted = health.readied(record)
        record.ready_at = now
        record.time.turn_ready(now)
        record.grown_percent = 0 if self._starts_slowly(record, now) else 100
        self._grow(record, now)
        return Readmit(endpoint_id, "the engine says it is ready") if trusted else None

    def unready(self, endpoint_id: EndpointId, now: Instant) -> None:
        record = self.endpoints.get(endpoint_id)
        if record is not None:
            record.time.turn_unready(now)
            record.state = EndpointState.WARMING
            self._forget_prefixes(record)
            self._returns.clear(endpoint_id)
            self._growths.clear(endpoint_id)
            self._silences.clear(endpoint_id)
            record.grown_percent = 100
            talk.forget(record)
            self._judge_silence(record)
            self._place(record)

    def measured(self, said: EndpointMeasured, now: Instant) -> None:
        record = self.endpoints.get(said.endpoint_id)
        if record is not None:
            self._silences.set(record.id, after(now, self._rules.policy.routing.stale_ns))
            before = (record.foreign, record.kv_foreign)
            if talk.hear(record, said):
                self._judge_silence(record)
            if before != (record.foreign, record.kv_foreign):
                self._place(record)

    def drain(self, endpoint_ids: tuple[EndpointId, ...]) -> None:
        """Operators have ordered that nothing new goes to these, and to no others."""
        if endpoint_ids == self._drained:
            return
        self._drained = endpoint_ids
        for endpoint in self.endpoints.values():
            drained = endpoint.id in endpoint_ids
            if drained is not endpoint.drained:
                endpoint.drained = drained
                self._place(endpoint)

    def leave(self, endpoint_id: EndpointId, now: Instant) -> None:
        record = self.endpoints.get(endpoint_id)
        if record is not None:
            record.time.advance(now)
            record.leaving = True
            self._forget_prefixes(record)
            self._place(record)
            self._forget_if_gone(record)

    def take_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How each endpoint has spent its time since this was last asked."""
        return self._left.take((each.time for each in self.endpoints.values()), now)

    # From one scheduler to the next

    def counters(self) -> tuple[EndpointCounter, ...]:
        """What is known of each endpoint, be it there or only known from before."""
        known = tuple(
            EndpointCounter(each.id, *each.learned.counters(), each.ejections) for each in self.endpoints.values()
        )
        return known + tuple(self._recalled.values())

    def restore(self, counters: Iterable[EndpointCounter]) -> None:
        """To be applied to each of them when it joins."""
        self._recalled = {each.endpoint_id: each for each in counters}

    def _recall(self, endpoint: EndpointRecord) -> None:
        if (known := self._recalled.pop(endpoint.id, None)) is not None:
            endpoint.learned.restore(known.factors, known.sums)
            # Whoever was ejected is on trial once it says that it is ready.
            endpoint.ejections = known.ejections

    def adopt(self, endpoint_id: EndpointId, pool: PoolName, now: Instant) -> EndpointRecord:
        """The endpoint where something is in flight; one that nobody knows is taken to be leaving, until it joins."""
        record = self.endpoints.get(endpoint_id)
        if record is None:
            self.join(Endpoint(endpoint_id, pool, in_flight_max=0), now)
            record = self.endpoints[endpoint_id]
            record.leaving = True
        return record

    # Places

    def occupy(self, endpoint: EndpointRecord, reservation: Reservation, hashes: Sequence[int] = ()) -> None:
        """`hashes` are of the prompt's beginning, which the endpoint will hold."""
        if hashes:
            self.pools[endpoint.pool].prefixes.note(endpoint.slot, hashes, endpoint.terms.kv_tokens)
        endpoint.in_flight += 1
        endpoint.count(reservation.service_class, 1)
        endpoint.pending_tokens += reservation.pending_tokens
        endpoint.kv_used += reservation.prompt_tokens
        endpoint.kv_reserved += reservation.kv_tokens
        self._place(endpoint)

    def began(self, endpoint: EndpointRecord, reservation: Reservation) -> None:
        """The prompt of an attempt has been computed."""
        endpoint.pending_tokens -= reservation.pending_tokens
        endpoint.prefilled_ps += endpoint.terms.speed.prefill_ps(
            reservation.prompt_tokens, cached=reservation.cached_tokens
        )
        self._place_unless_full(endpoint)

    def progressed(self, endpoint: EndpointRecord, heard: Heard, now: Instant) -> None:
        """Its streams have said how far they are."""
        endpoint.last_heard = now
        endpoint.kv_used += heard.tokens
        endpoint.kv_reserved += heard.kv_tokens_more
        if heard.tokens:
            endpoint.itl_ns = heard.took_ns // heard.tokens
        endpoint.learn(attempts=heard.attempts, tokens=heard.tokens, took_ns=heard.took_ns)
        self._place_unless_full(endpoint)

    def began_stream(self, endpoint: EndpointRecord, now: Instant) -> None:
        """One of those in flight streams from here on: silence now means something.

        Before its first token an attempt may rightly be silent, for as long as its class allows.
        """
        if not endpoint.streams:
            self._stalls.set(endpoint.id, after(now, self.rules.stall_ns_max))
        endpoint.streams += 1

    def went_on(self, endpoint: EndpointRecord, reservation: Reservation, *, tokens: int, computed: bool) -> None:
        """What an attempt that another scheduler sent had done before it was known here: nothing is learned from it."""
        endpoint.kv_used += tokens
        if computed:
            endpoint.pending_tokens -= reservation.pending_tokens
        self._place(endpoint)

    def vacate(
        self, endpoint: EndpointRecord, reservation: Reservation, *, tokens: int, began: bool, streaming: bool
    ) -> None:
        endpoint.in_flight -= 1
        endpoint.count(reservation.service_class, -1)
        endpoint.kv_used -= reservation.prompt_tokens + tokens
        endpoint.kv_reserved -= reservation.kv_tokens
        if not began:
            endpoint.pending_tokens -= reservation.pending_tokens
        if streaming:
            endpoint.streams -= 1
            if not endpoint.streams:
                endpoint.itl_ns = 0
                self._stalls.clear(endpoint.id)
        self._place(endpoint)
        self._forget_if_gone(endpoint)

    # Health

    def change_rules(self, rules: Rules, now: Instant) -> None:
        self._rules = rules
        for name, pool in self.pools.items():
            pool.terms = rules.terms(name)
        for endpoint in self.endpoints.values():
            endpoint.terms = self.pools[endpoint.pool].terms
            endpoint.time.change_speed(endpoint.terms.speed, now)
            self._place(endpoint)
            if endpoint.streams:
                self._stalls.set(endpoint.id, after(endpoint.last_heard, self.rules.stall_ns_max))

    @property
    def rules(self) -> HealthRules:
        return self._rules.policy.health

    def succeeded(self, endpoint: EndpointRecord, now: Instant) -> Readmit | None:
        endpoint.last_heard = now
        if endpoint.state is not EndpointState.TRIAL:
            endpoint.failures = 0
            return None
        health.passed_trial(endpoint)
        self._place(endpoint)
        return Readmit(endpoint.id, "its trial request succeeded")

    def failed(self, endpoint: EndpointRecord, detail: str, now: Instant) -> list[Eject]:
        return self._eject(endpoint, detail, now) if health.failed(endpoint, self.rules) else []

    def attempt_ended(self, endpoint: EndpointRecord, event: AttemptEnded, now: Instant) -> list[Eject] | list[Readmit]:
        """What the end of an attempt says of its endpoint."""
        match event.ending:
            case AttemptEnding.COMPLETED | AttemptEnding.REFUSED:
                readmitted = self.succeeded(endpoint, now)
                return [] if readmitted is None else [readmitted]
            case AttemptEnding.FAILED | AttemptEnding.SILENT:
                return self.failed(endpoint, event.detail, now)
            case AttemptEnding.ABORTED:
                return []
            case _:
                assert_never(event.ending)

    def return_due(self, now: Instant) -> None:
        """Puts on trial those whose ejection is over, lets those grow that have just come, and notes who is silent."""
        for endpoint_id in self._growths.take():
            self._grow(self.endpoints[endpoint_id], now)
        for endpoint_id in self._silences.take():
            self.endpoints[endpoint_id].silent = True
            self._judge_silence(self.endpoints[endpoint_id])
        for endpoint_id in self._returns.take():
            endpoint = self.endpoints[endpoint_id]
            endpoint.state = EndpointState.TRIAL
            endpoint.time.turn_ready(now)
            self._place(endpoint)

    def _starts_slowly(self, endpoint: EndpointRecord, now: Instant) -> bool:
        return health.starts_slowly(endpoint, self.pools[endpoint.pool].endpoints.values(), now, self.rules)

    def _grow(self, endpoint: EndpointRecord, now: Instant) -> None:
        next_in_ns = health.grow(endpoint, self.rules)
        if next_in_ns is not None:
            self._growths.set(endpoint.id, after(now, next_in_ns))
        self._place(endpoint)

    def _judge_silence(self, endpoint: EndpointRecord) -> None:
        for each in talk.judge(self.pools[endpoint.pool].endpoints.values()):
            self._place(each)

    def stalled(self, now: Instant) -> dict[EndpointId, EndpointRecord]:
        """Those that hold streams and have given no sign of life for too long."""
        stalled: dict[EndpointId, EndpointRecord] = {}
        for endpoint_id in self._stalls.take():
            endpoint = self.endpoints[endpoint_id]
            silent = now - endpoint.last_heard
            if silent >= self.rules.stall_ns_max:
                stalled[endpoint_id] = endpoint
                silent = 0
            self._stalls.set(endpoint_id, after(now, Duration(self.rules.stall_ns_max - silent)))
        return stalled

    def eject_stalled(self, endpoint: EndpointRecord, now: Instant) -> list[Eject]:
        if not endpoint.serving:
            return []
        silence = seconds(Duration(now - endpoint.last_heard))
        return self._eject(endpoint, f"no sign of life for {silence}; streams in flight: {endpoint.streams}", now)

    def _eject(self, endpoint: EndpointRecord, reason: str, now: Instant) -> list[Eject]:
        """The endpoint, and with it the rest of a zone that goes down."""
        is_news = endpoint.state is EndpointState.READY
        ejections = [self._eject_one(endpoint, reason, now)]
        if not endpoint.zone or not is_news:
            return ejections
        zone = [each for each in self.endpoints.values() if each.zone == endpoint.zone and not each.leaving]
        if health.zone_is_down(zone, self.rules):
            reason = f'most endpoints of zone "{endpoint.zone}" have been ejected'
            # Whose pool nobody serves from elsewhere goes on trying.
            rest = [each for each in zone if each.live and self._is_served_elsewhere(each)]
            ejections += [self._eject_one(each, reason, now) for each in rest]
        return ejections

    def _is_served_elsewhere(self, endpoint: EndpointRecord) -> bool:
        pool = self.pools[endpoint.pool].endpoints.values()
        # One that is on trial takes a single request, and has yet to show that it can.
        return any(each.live and each.state is EndpointState.READY and each.zone != endpoint.zone for each in pool)

    def _eject_one(self, endpoint: EndpointRecord, reason: str, now: Instant) -> Eject:
        health.eject(endpoint, now, self.rules)
        endpoint.time.turn_unready(now)
        self._forget_prefixes(endpoint)
        self._returns.set(endpoint.id, endpoint.returns_at)
        self._place(endpoint)
        self.call_back(now)
        return Eject(endpoint.id, endpoint.returns_at, reason)

    def call_back(self, now: Instant) -> None:
        """Lets the ejected return soon where nobody is left who takes work, and who starts slowly take all."""
        while self._lost:
            name, _ = self._lost.popitem()
            if (pool := self.pools.get(name)) is not None:
                if not pool.live:
                    self._return_soon(pool, now)
                elif not any(health.carries(each) for each in pool.endpoints.values()):
                    self._grow_at_once(pool)

    def _return_soon(self, pool: PoolRecord, now: Instant) -> None:
        for endpoint in pool.endpoints.values():
            if health.shorten(endpoint, now, self.rules):
                self._returns.set(endpoint.id, endpoint.returns_at)

    def _grow_at_once(self, pool: PoolRecord) -> None:
        for endpoint in pool.endpoints.values():
            endpoint.grown_percent = 100
            endpoint.bound()
            self._growths.clear(endpoint.id)
            self._place(endpoint)

    # Bookkeeping

    def _forget_prefixes(self, endpoint: EndpointRecord) -> None:
        """Who starts anew has lost what it had computed, and who takes no work need not be looked for."""
        self.pools[endpoint.pool].prefixes.forget(endpoint.slot)

    def _move(self, endpoint: EndpointRecord, device: str) -> None:
        """Notes which device it is on from here on."""
        if endpoint.device != device:
            self._devices.leave(endpoint.device, endpoint.id)
            self._place_sharers(endpoint.shared)
            endpoint.device = device
            endpoint.shared = self._devices.join(device, endpoint.id, endpoint)

    def _place(self, endpoint: EndpointRecord) -> None:
        """Puts the endpoint where it belongs after any change of it, and with it those that share its device."""
        if endpoint.device:
            self._place_sharers(endpoint.shared)
        else:
            self._place_one(endpoint)

    def _place_unless_full(self, endpoint: EndpointRecord) -> None:
        """The same, after a change that makes no difference to an endpoint without a free place."""
        if endpoint.in_flight < endpoint.in_flight_max or endpoint.counted_long or endpoint.device:
            self._place(endpoint)

    def _place_sharers(self, shared: Held) -> None:
        if isinstance(shared, DeviceRecord):
            shared.sum_up()
            for endpoint_id in shared.members:
                self._place_one(self.endpoints[endpoint_id])

    def _place_one(self, endpoint: EndpointRecord) -> None:
        was_live, pool = endpoint.live, self.pools[endpoint.pool]
        pool.place(endpoint)
        if pool.places:
            self.changed[endpoint.pool] = None
        if was_live and not endpoint.live:
            self._lost[endpoint.pool] = None
            # Whoever avoids what may now be its last endpoint, in whichever pool, no longer does so.
            self.changed.update(dict.fromkeys(self.pools))

    def _forget_if_gone(self, endpoint: EndpointRecord) -> None:
        if not endpoint.leaving or endpoint.in_flight:
            return
        self._returns.clear(endpoint.id)
        self._growths.clear(endpoint.id)
        self._stalls.clear(endpoint.id)
        self._silences.clear(endpoint.id)
        del self.endpoints[endpoint.id]
        self._left.keep(endpoint.time)
        self._devices.leave(endpoint.device, endpoint.id)
        # What its engine said it had counts no more for those that share its device.
        self._place_sharers(endpoint.shared)
        pool = self.pools[endpoint.pool]
        pool.remove(endpoint)
        if not pool.endpoints:
            del self.pools[endpoint.pool]
        elif endpoint.talks:
            self._judge_silence(endpoint)
