"""Autoscaler: computes the desired replica count of each pool.

The autoscaler is a state machine that runs alongside the scheduler. Every period it receives the demand, backlog and
endpoints of each pool. It returns the desired number of endpoints, including those that are still starting, with a
reason. It has no clock, and the same inputs at the same times always give the same decisions.

A new endpoint can serve requests one lead time after the decision. The lead is the 95th percentile of recent cold start
durations plus one period, or the age of the oldest start in progress if that is longer. The desired count is the
largest of several terms:

- Forecast: predicted demand one lead ahead plus the forecaster's measured headroom
  (`headgate.core.autoscaling.forecast`), at the configured load per endpoint.
- Reactive: current demand plus the backlog that the endpoints will not have processed one lead ahead, at the same load.
  That backlog is to be processed within its target or a quarter of the lead, whichever is longer.
- Memory: the recent peak of KV cache usage, and of slots in use if slots are limited.
- Minimums: the warm minimum, and the minimum of each scheduled event, starting one lead before the event.

The desired count rises immediately, because an endpoint that becomes ready too late is useless. Demand is averaged over
the last minute, because shorter bursts are over before a new endpoint is ready. A count that is nearly sufficient is
left unchanged, because a few percent of extra load does not justify a cold start. If demand far exceeds the capacity of
the ready endpoints (panic), only the last period counts and no endpoint is released.

The desired count falls slowly. It does not fall below any value that it had within the last
`scale_down_stabilization_ns` or two leads, whichever is longer, and each step releases only part of the pool. Endpoints
are released only if scaling down has paid off recently: the endpoints that were released and needed again in the last
hour must have been away, on average, for longer than the cold start that each of them cost.

The pool's limits and budget always apply. The last endpoint is released only if `endpoints_min` is 0 and there has been
no demand for `scale_to_zero_after_ns`. The next request then starts an endpoint immediately.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from headgate.core.autoscaling.correction import Correction
from headgate.core.autoscaling.forecast import STEPS_MAX, DemandForecast, ForecasterSet
from headgate.core.autoscaling.scaling_history import RecentValues, ScaleDownHistory, SlidingMax
from headgate.core.autoscaling.starts import STUCK_NS
from headgate.model.message import message
from headgate.model.scaling import ScalingRules, ScheduledEvent
from headgate.model.units import MINUTE, Duration, Instant, PoolName, format_seconds

PPM: Final = 1_000_000
_COLD_STARTS_KEPT: Final = 32
"""Number of recent cold start durations kept."""
_SMOOTHED_MAX: Final = 60
"""Maximum number of periods in the minute over which demand is averaged."""
_USE_SAMPLES_KEPT: Final = 30
"""Number of KV cache and slot measurements kept."""
_TOLERANCE_PERCENT: Final = 5
"""Maximum excess over the current desired count, in percent, for which no further endpoint is started."""
_LEAD_PARTS: Final = 4
"""Divisor of the lead. The backlog must be processed in this fraction of the lead, or in its target if longer."""
_FLOOR_REASON: Final = "an operator raised the minimum"
_FLOOR_ENDED_REASON: Final = "the minimum set by an operator ended"
_MISSED_MAX: Final = 60
"""Maximum number of missed periods that are replayed. Pending forecasts are dropped after a longer gap."""


class ScalingMetrics(NamedTuple):
    """Measurements of one pool."""

    pool: PoolName
    demand_ppm: int
    """Engine time requested per second in the last period, in millionths of one endpoint's time. Requests rejected for
    lack of capacity are included."""
    backlog_ns: int
    """Queued engine time."""
    ttft_ns: Duration | None
    """Strictest time-to-first-token target of the queued classes. None if none of them has a target."""
    kv_tokens_used: int
    kv_tokens_each: int | None
    """KV cache capacity of one endpoint in tokens. None if unknown."""
    ready: int
    warming: int
    draining: int
    places_used: int = 0
    """Requests in flight."""
    places_each: int | None = None
    """Slots of one endpoint. None if they are not limited."""
    starting_ns: Duration = Duration(0)
    """Age of the oldest start in progress, measured from the increase in the desired count. 0 if there is none."""
    judged: int = 0
    """Number of requests with a time-to-first-token target in the last period."""
    missed: int = 0
    """Number of requests in the last period that missed the target or were rejected for lack of capacity."""


@message
class ScaleDecision:
    """Desired number of endpoints in a pool, including those that are still starting."""

    pool: PoolName
    endpoints: int
    reason: str


class _Desired(NamedTuple):
    endpoints: int
    why: Callable[[], str]
    """Returns the reason. Called only for the term that determines the count."""
    by_work: bool = False
    """Whether the count is based on predicted work, which is corrected by measured attainment."""


class Autoscaler:
    def __init__(self, rules: Mapping[PoolName, ScalingRules]) -> None:
        self._pools: dict[PoolName, _Pool] = {pool: _Pool(each) for pool, each in rules.items()}
        self.floors: Mapping[PoolName, int] = {}
        """Minimum counts set by operators. When one is removed, the count returns at once to the autoscaler's own."""

    def change_rules(self, rules: Mapping[PoolName, ScalingRules]) -> None:
        """Replaces the rules. Pools that remain keep their state."""
        before, self._pools = self._pools, {}
        for pool, each in rules.items():
            self._pools[pool] = before.get(pool) or _Pool(each)
            self._pools[pool].rules = each

    def record_cold_start(self, pool: PoolName, took_ns: Duration) -> None:
        """Records the time from an increase in the desired count until the endpoint was ready.

        Stuck starts are ignored.
        """
        if pool in self._pools and took_ns <= STUCK_NS:
            self._pools[pool].starts.add(took_ns)

    def tick(self, metrics: Sequence[ScalingMetrics], now: Instant, *, early: bool = False) -> list[ScaleDecision]:
        """Returns the pools whose desired count has changed or differs from their current endpoints.

        Must be called every period. With `early`, between two periods, only some pools are evaluated and nothing is
        learned.
        """
        scales: list[ScaleDecision] = []
        for each in metrics:
            if (pool := self._pools.get(each.pool)) is not None:
                before = pool.desired
                want = self._raised(each.pool, pool.tick(each, now, early=early))
                if want.endpoints != before or want.endpoints != each.ready + each.warming:
                    scales.append(ScaleDecision(each.pool, want.endpoints, want.why()))
        return scales

    # Observation

    def desired(self, pool: PoolName) -> int:
        """Returns the desired count of the last tick, or the minimum before the first tick, raised to the floor."""
        known = self._pools[pool]
        own = known.rules.endpoints_min if known.desired is None else known.desired
        return max(own, self._floor(pool))

    def change_floors(self, floors: Mapping[PoolName, int]) -> list[ScaleDecision]:
        """Replaces the floors. Returns a decision for each pool whose desired count has changed."""
        before = {pool: self.desired(pool) for pool in self._pools}
        self.floors = floors
        return [
            ScaleDecision(pool, self.desired(pool), _FLOOR_REASON if self._floor(pool) else _FLOOR_ENDED_REASON)
            for pool, count in before.items()
            if self.desired(pool) != count
        ]

    def _floor(self, pool: PoolName) -> int:
        return min(self.floors.get(pool, 0), self._pools[pool].rules.most_endpoints)

    def _raised(self, pool: PoolName, own: "_Desired") -> "_Desired":
        floor = self._floor(pool)
        return own if floor <= own.endpoints else _Desired(floor, lambda: f"{_FLOOR_REASON}; otherwise: {own.why()}")

    def forecaster(self, pool: PoolName) -> str:
        """Returns the name of the chosen forecaster."""
        return self._pools[pool].forecasts.forecaster

    def headroom_percent(self, pool: PoolName) -> int:
        return self._pools[pool].forecasts.headroom_percent

    def lead_ns(self, pool: PoolName) -> Duration:
        return self._pools[pool].lead_ns

    def correction_ppm(self, pool: PoolName) -> int:
        """Returns the factor, in millionths, by which predicted work is multiplied to match measured attainment."""
        return self._pools[pool].correction.factor_ppm


class _Pool:
    """State of one pool."""

    __slots__ = (
        "_any_seen",
        "_by_work",
        "_demand_ppm",
        "_demand_samples",
        "_demand_sum_ppm",
        "_demands",
        "_forecast",
        "_kv_tokens",
        "_last_demand_at",
        "_last_desired",
        "_places",
        "_recent_max",
        "_scale_downs",
        "_starting_ns",
        "_stepped_at",
        "correction",
        "desired",
        "forecasts",
        "rules",
        "starts",
    )

    def __init__(self, rules: ScalingRules) -> None:
        self.rules = rules
        self.starts = RecentValues(_COLD_STARTS_KEPT)
        self.forecasts = ForecasterSet()
        self.correction = Correction()
        self.desired: int | None = None
        self._forecast = DemandForecast(0, 0, self.forecasts.forecaster)
        self._demands: deque[int] = deque()
        """Demand in each of the last periods."""
        self._demand_ppm = 0
        """Mean of `_demands`."""
        self._kv_tokens, self._places = RecentValues(_USE_SAMPLES_KEPT), RecentValues(_USE_SAMPLES_KEPT)
        self._recent_max, self._scale_downs = SlidingMax(), ScaleDownHistory()
        self._stepped_at = Instant(0)
        self._last_demand_at = Instant(0)
        """Time of the last demand."""
        self._demand_sum_ppm = self._demand_samples = 0
        """Sum and number of demand samples since the last step."""
        self._any_seen = False
        """Whether any endpoint has been seen so far."""
        self._starting_ns = Duration(0)
        """Age of the oldest start in progress that is not stuck."""
        self._by_work = False
        """Whether predicted work determined the last desired count."""
        self._last_desired = _Desired(0, str)
        """Last decision."""

    @property
    def cold_start_ns(self) -> Duration:
        """Measured cold start duration, or the age of a start in progress if that is longer."""
        return Duration(max(self._measured_ns, self._starting_ns))

    @property
    def _measured_ns(self) -> int:
        return self.starts.p95(self.rules.cold_start_ns)

    @property
    def lead_ns(self) -> Duration:
        """Time until an endpoint requested now can serve requests."""
        return Duration(max(self._measured_ns + self.rules.period_ns, self._starting_ns))

    @property
    def stabilisation_ns(self) -> Duration:
        """Stabilisation window: how long past desired counts prevent a lower one."""
        return Duration(max(self.rules.scale_down_stabilization_ns, 2 * self.lead_ns))

    def tick(self, figures: ScalingMetrics, now: Instant, *, early: bool) -> _Desired:
        if self.desired is None:
            self._begin(now)
        self._starting_ns = figures.starting_ns if figures.starting_ns <= STUCK_NS else Duration(0)
        self._adopt_existing(figures, now)
        if figures.demand_ppm or figures.backlog_ns or figures.places_used:
            self._last_demand_at = now
        if not early:
            self.correction.add(judged=figures.judged, missed=figures.missed)
            figures = self._averaged(figures)
            stepped = self._step(figures, now)
            # Between its own periods, a pool is evaluated only if it has no endpoint.
            if not stepped and figures.ready + figures.warming:
                return self._last_desired
        want = max(self._candidates(figures, now), key=_endpoints)
        self._by_work = want.by_work
        want = self._bounded(want)
        self._last_desired = self._stabilised(want, figures, now)
        return self._last_desired

    def _begin(self, now: Instant) -> None:
        self.desired = self._bounded(_Desired(0, str)).endpoints
        self._recent_max.add(self.desired, now)
        # An empty pool starts in the idle state.
        self._last_demand_at = now if self.desired else Instant(now - self.rules.scale_to_zero_after_ns)
        self._stepped_at = Instant(now - self.rules.period_ns)

    def _adopt_existing(self, figures: ScalingMetrics, now: Instant) -> None:
        """Until the stabilisation window has passed, treats the first endpoints to appear as desired.

        They may appear after the first tick, for example if the name server did not respond earlier.
        """
        there = figures.ready + figures.warming
        if there and not self._any_seen:
            self._any_seen = True
            self.desired = max(self.desired or 0, self._bounded(_Desired(there, str)).endpoints)
            self._recent_max.add(self.desired, now)
            self._last_demand_at = now

    # Measurements

    def _averaged(self, figures: ScalingMetrics) -> ScalingMetrics:
        """Returns the figures with the mean demand since the last step."""
        self._demand_sum_ppm += figures.demand_ppm
        self._demand_samples += 1
        return figures._replace(demand_ppm=self._demand_sum_ppm // self._demand_samples)

    def _step(self, figures: ScalingMetrics, now: Instant) -> bool:
        """Performs one step for each period since the last step. Missed periods count as equal to the current one.

        Returns False if no period has passed. The host ticks all pools together, and other pools may have shorter
        periods.
        """
        period_ns, lead_ns = self.rules.period_ns, self.lead_ns
        passed = (now - self._stepped_at + period_ns // 2) // period_ns
        if passed <= 0:
            return False
        if passed > _MISSED_MAX:
            self.forecasts.clear_pending()
            self._stepped_at, passed = Instant(now - _MISSED_MAX * period_ns), _MISSED_MAX
        steps = min(STEPS_MAX, -(-lead_ns // period_ns))
        for _ in range(passed):
            self._stepped_at = Instant(self._stepped_at + period_ns)
            self._demand_ppm = self._smoothed(figures.demand_ppm)
            self._forecast = self.forecasts.step(self._demand_ppm, self._stepped_at, steps=steps, ahead_ns=lead_ns)
            self._kv_tokens.add(figures.kv_tokens_used)
            self._places.add(figures.places_used)
        self._demand_sum_ppm = self._demand_samples = 0
        self._correct(now)
        return True

    def _correct(self, now: Instant) -> None:
        """Updates the correction from the attainment measured since the last update."""
        may_rise = self._bounded(_Desired((self.desired or 0) + 1, str)).endpoints > (self.desired or 0)
        self.correction.step(self.rules, now, lead_ns=self.lead_ns, may_rise=may_rise, may_fall=self._by_work)

    def _smoothed(self, demand_ppm: int) -> int:
        """Returns the mean demand over the last minute, or over the part of it that is known."""
        demands = self._demands
        demands.append(demand_ppm)
        while len(demands) > max(1, min(_SMOOTHED_MAX, MINUTE // self.rules.period_ns)):
            demands.popleft()
        return sum(demands) // len(demands)

    # Desired count

    def _candidates(self, figures: ScalingMetrics, now: Instant) -> list[_Desired]:
        """Returns all terms. If several are equal, the first one is reported."""
        terms = [self._minimum_term(now), self._forecast_term()]
        self._add_reactive(figures, terms)
        self._add_memory(figures, terms)
        self._add_calendar(now, terms)
        return terms

    def _forecast_term(self) -> _Desired:
        (ppm, headroom_percent, by), load_percent, lead_ns = (
            self._forecast,
            self.rules.target_utilization_percent,
            self.lead_ns,
        )
        corrected = _corrected_reason(self.correction)

        def why() -> str:
            work = f"work for {_count(ppm)} endpoints in {format_seconds(lead_ns)}"
            return f"forecast by {by}: {work}, {headroom_percent} % headroom, {load_percent} % load{corrected}"

        return _Desired(self._endpoints_for(ppm * (100 + headroom_percent)), why, by_work=True)

    def _add_reactive(self, figures: ScalingMetrics, terms: list[_Desired]) -> None:
        """Adds the term for current demand and backlog. In panic, also adds one for the last period's demand."""
        # Requests that are queued now will have been served or have expired when a new endpoint is ready. Clearing the
        # backlog expected one lead ahead within seconds would briefly take many endpoints, each of which costs a cold
        # start.
        within_ns = max(figures.ttft_ns or 0, self.lead_ns // _LEAD_PARTS)
        backlog_ppm = PPM * self._backlog_after_lead_ns(figures) // within_ns
        if self._is_panic(figures):
            ready = f" with {figures.ready} endpoints ready"
            terms.append(self._reactive_term(figures, f"panic{ready}", figures.demand_ppm, backlog_ppm))
        terms.append(self._reactive_term(figures, "reactive", self._demand_ppm, backlog_ppm))

    def _reactive_term(self, figures: ScalingMetrics, name: str, asked_ppm: int, backlog_ppm: int) -> _Desired:
        load_percent, corrected = self.rules.target_utilization_percent, _corrected_reason(self.correction)

        def why() -> str:
            waits = f"{format_seconds(Duration(figures.backlog_ns))} of work queued"
            return f"{name}: work for {_count(asked_ppm)} endpoints, {waits}, {load_percent} % load{corrected}"

        return _Desired(self._endpoints_for(100 * (asked_ppm + backlog_ppm)), why, by_work=True)

    def _endpoints_for(self, ppm_percent: int) -> int:
        """Returns the endpoints needed for this work, or the current desired count if that is nearly sufficient."""
        ppm_percent, load = self.correction.corrected(ppm_percent), self.rules.target_utilization_percent * PPM
        wanted = -(-ppm_percent // load)
        before = self.desired or 0
        if wanted > before and 100 * ppm_percent <= (100 + _TOLERANCE_PERCENT) * before * load:
            return before
        return wanted

    def _backlog_after_lead_ns(self, figures: ScalingMetrics) -> int:
        """Returns the backlog that will remain after one lead."""
        # On average, starting endpoints contribute for half of the lead.
        can_ppm = (2 * figures.ready + figures.warming) * PPM // 2
        spare_ppm = can_ppm - self.correction.corrected(max(self._demand_ppm, figures.demand_ppm))
        # Convert processed work to predicted work, the unit of the backlog.
        done_ns = max(0, spare_ppm) * self.lead_ns // max(1, self.correction.factor_ppm)
        return max(0, figures.backlog_ns - done_ns)

    def _is_panic(self, figures: ScalingMetrics) -> bool:
        # Endpoints that are starting do not serve requests yet. Until they are ready, the last period shows how many
        # are needed.
        asked_ppm = self.correction.corrected(figures.demand_ppm)
        return 100 * asked_ppm > self.rules.panic_threshold_percent * figures.ready * PPM

    def _add_memory(self, figures: ScalingMetrics, terms: list[_Desired]) -> None:
        if figures.kv_tokens_each:
            terms.append(self._memory_term("KV tokens", self._kv_tokens, figures.kv_tokens_each))
        if figures.places_each:
            terms.append(self._memory_term("slots", self._places, figures.places_each))

    def _memory_term(self, what: str, lately: RecentValues, each: int) -> _Desired:
        used, percent = lately.p95(), self.rules.target_kv_percent
        reason = "memory: {} {} in use, {} per endpoint, {} % target utilisation"
        return _Desired(-(-100 * used // (percent * each)), lambda: reason.format(used, what, each, percent))

    def _minimum_term(self, now: Instant) -> _Desired:
        rules, idle_ns = self.rules, Duration(now - self._last_demand_at)
        if idle_ns >= rules.scale_to_zero_after_ns:
            return _Desired(rules.endpoints_min, lambda: f"idle: no requests for {format_seconds(idle_ns)}")
        # The last endpoint is released only after a sufficiently long time without demand.
        least = max(1, rules.warm_endpoints_min, rules.endpoints_min)
        return _Desired(least, lambda: f"warm minimum: keep {least} endpoints")

    def _add_calendar(self, now: Instant, terms: list[_Desired]) -> None:
        lead_ns = self.lead_ns
        for known in self.rules.calendar:
            if known.starts_at - lead_ns <= now < known.ends_at:
                terms += [_Desired(known.endpoints_min, partial(_calendar_reason, known))]

    def _bounded(self, desired: _Desired) -> _Desired:
        least, most = self.rules.endpoints_min, self.rules.most_endpoints
        limit = "endpoints_max" if most == self.rules.endpoints_max else "the budget"
        if desired.endpoints > most:
            return _Desired(most, lambda: f"{desired.why()}; {desired.endpoints} desired, limited by {limit}")
        if desired.endpoints < least:
            return _Desired(
                min(least, most), lambda: f"{desired.why()}; {desired.endpoints} desired, raised to endpoints_min"
            )
        return desired

    def _stabilised(self, desired: _Desired, figures: ScalingMetrics, now: Instant) -> _Desired:
        """Raises the desired count immediately and lowers it slowly, and only if scaling down pays off."""
        before = self.desired
        assert before is not None, "the pool has no desired count yet"
        self._recent_max.add(desired.endpoints, now)
        held = self._recent_max.since(Instant(now - self.stabilisation_ns))
        if desired.endpoints > before:
            self._scale_downs.scaled_up(desired.endpoints, now)
        elif desired.endpoints < before:
            desired = self._scaled_down(desired, before, held, figures, now)
            if desired.endpoints < before:
                self._scale_downs.scaled_down(before=before, after=desired.endpoints, now=now)
        self.desired = desired.endpoints
        return desired

    def _scaled_down(
        self, desired: _Desired, before: int, held: int, figures: ScalingMetrics, now: Instant
    ) -> _Desired:
        """Returns the desired count after a scale-down."""
        # Endpoints above the pool's limits are released regardless of demand.
        most = self._bounded(_Desired(before, desired.why)).endpoints
        lower = max(held, before - max(1, before * self.rules.scale_down_percent // 100))
        if lower >= most:
            return _Desired(most, partial(_held_reason, desired, held, self.stabilisation_ns))
        if self._is_panic(figures):
            return _Desired(most, lambda: f"{desired.why()}; no endpoints released during panic")
        lasted_ns, cold_start_ns = self._scale_downs.mean_absence_ns(now), self.cold_start_ns
        if lasted_ns <= cold_start_ns:
            return _Desired(most, partial(_flapping_reason, desired, Duration(lasted_ns), cold_start_ns))
        return _Desired(lower, partial(_held_reason, desired, held, self.stabilisation_ns))


def _calendar_reason(known: ScheduledEvent) -> str:
    return f"calendar: {known.name} requires {known.endpoints_min} endpoints"


def _held_reason(want: _Desired, held: int, hold_ns: Duration) -> str:
    return f"{want.why()}; {held} were desired within the last {format_seconds(hold_ns)}"


def _flapping_reason(want: _Desired, lasted_ns: Duration, cold_start_ns: Duration) -> str:
    away, start = format_seconds(lasted_ns), format_seconds(cold_start_ns)
    return f"{want.why()}; released endpoints were needed again after {away} and a cold start takes {start}"


def _corrected_reason(correction: Correction) -> str:
    percent = (correction.factor_ppm - PPM) * 100 // PPM
    return f", corrected by {percent:+d} % based on measured attainment" if percent else ""


def _endpoints(want: _Desired) -> int:
    return want.endpoints


def _count(ppm: int) -> str:
    return f"{ppm / PPM:.2f}"
