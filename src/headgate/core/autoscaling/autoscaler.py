"""How many endpoints are wanted of each pool?

A machine of its own beside the scheduler. Every period it is told of each pool what was asked of it, what waits, and
what is there; it answers with how many endpoints should be there, ready and starting together, and why. It has no
clock, and the same figures at the same times always give the same answers.

Theory of operation. What is ordered can serve one lead later: the measured cold start (the ninety-fifth percentile of
the last ones) and one period; or the age of the oldest start under way, if that is longer. So of several terms the
greatest decides:

- forecast: what will be asked one lead ahead, with the headroom that this forecaster has needed so far
  (`headgate.core.autoscaling.forecast`), at the load that an endpoint is given on the mean;
- reactive: what is asked at this moment, and of what waits that which the endpoints will not have worked off one lead
  ahead, worked off within its target or a quarter of the lead, at the same load;
- memory: KV cache in use at the most lately; places likewise, where they are counted;
- the warm minimum, and what the calendar of known events asks for from one lead before each begins.

A rise is answered at once: an endpoint too late is worth nothing. What is asked is the mean of the last minute, for
what comes and goes faster is gone when a new endpoint is ready; and a want that is nearly enough stays, for a few
percents of load are not worth a cold start. Where far more is asked than those can do that are ready (panic) the last
period alone counts, and nothing is given back.

A fall is answered slowly: only what was not wanted for `settle_ns`, and for twice the lead, is given back, a part of
the pool at each step, and only if giving back has paid lately: endpoints that were given back and wanted again have
been away, on the mean over the last hour, for longer than a cold start, which each of them cost.

The bounds and the budget of the pool hold always. The last endpoint goes only where none at all is allowed, after
`idle_ns` in which nothing was asked; whoever asks then has one ordered at once.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from headgate.core.autoscaling.correction import Correction
from headgate.core.autoscaling.forecast import STEPS_MAX, Forecast, Forecasts
from headgate.core.autoscaling.memory import Absences, Greatest, Lately
from headgate.core.autoscaling.starts import STUCK_NS
from headgate.model.message import message
from headgate.model.scaling import KnownEvent, ScalingRules
from headgate.model.units import MINUTE, Duration, Instant, PoolName, seconds

PPM: Final = 1_000_000
_STARTS: Final = 32
"""So many cold starts are remembered."""
_SMOOTHED_MAX: Final = 60
"""So many periods make the minute over which demand is taken, at most."""
_USES: Final = 30
"""So many measurements of what is in use."""
_NEARLY_PERCENT: Final = 5
"""By so much a want may be exceeded before another endpoint is ordered."""
_LEAD_PARTS: Final = 4
"""What waits is to be worked off within such a part of the lead, or within its target where that is longer."""
_MISSED_MAX: Final = 60
"""So many missed periods are made up for; after more of them what was said of that time is forgotten."""


class Figures(NamedTuple):
    """What is measured of one pool."""

    pool: PoolName
    demand_ppm: int
    """Engine time that arrived in each second of the last period, in millionths of one endpoint's time; what was
    refused because there was no room for it too."""
    backlog_ns: int
    """Engine time that waits."""
    ttft_ns: Duration | None
    """The strictest target of the classes that wait here; None where none of them has one."""
    kv_tokens_used: int
    kv_tokens_each: int | None
    """What the KV cache of one endpoint holds; None where nobody said."""
    ready: int
    warming: int
    draining: int
    places_used: int = 0
    """Requests in flight."""
    places_each: int | None = None
    """How many of them one endpoint takes; None where that is no matter."""
    starting_ns: Duration = Duration(0)
    """Age of the oldest start under way, from the raised want on; 0 if there is none."""
    judged: int = 0
    """Requests of the last period that had a target for the first token."""
    missed: int = 0
    """Those of them that missed it, or were rejected for lack of capacity."""


@message
class Scale:
    """So many endpoints are wanted, those that are ready and those that are starting together."""

    pool: PoolName
    endpoints: int
    reason: str


class _Want(NamedTuple):
    endpoints: int
    why: Callable[[], str]
    """Only what decides is put into words."""
    by_work: bool = False
    """Whether it follows from predicted work, which the measured attainment corrects."""


class Autoscaler:
    def __init__(self, rules: Mapping[PoolName, ScalingRules]) -> None:
        self._pools: dict[PoolName, _Pool] = {pool: _Pool(each) for pool, each in rules.items()}

    def change_rules(self, rules: Mapping[PoolName, ScalingRules]) -> None:
        """A pool that stays keeps what is known of it."""
        before, self._pools = self._pools, {}
        for pool, each in rules.items():
            self._pools[pool] = before.get(pool) or _Pool(each)
            self._pools[pool].rules = each

    def started(self, pool: PoolName, took_ns: Duration) -> None:
        """A cold start was measured, from the raised want to the ready endpoint. One that was stuck is not learned."""
        if pool in self._pools and took_ns <= STUCK_NS:
            self._pools[pool].starts.add(took_ns)

    def tick(self, figures: Sequence[Figures], now: Instant, *, early: bool = False) -> list[Scale]:
        """To be called every period. Answers where the want has changed, or is not what is there.

        One that comes early, between two periods and for some pools only, is answered, but nothing is learned from it.
        """
        scales: list[Scale] = []
        for each in figures:
            if (pool := self._pools.get(each.pool)) is not None:
                before = pool.wanted
                want = pool.tick(each, now, early=early)
                if want.endpoints != before or want.endpoints != each.ready + each.warming:
                    scales.append(Scale(each.pool, want.endpoints, want.why()))
        return scales

    # For those who look

    def wanted(self, pool: PoolName) -> int:
        """How many, by the last tick; as few as allowed before the first."""
        known = self._pools[pool]
        return known.rules.endpoints_min if known.wanted is None else known.wanted

    def forecaster(self, pool: PoolName) -> str:
        """Who is believed."""
        return self._pools[pool].forecasts.by

    def headroom_percent(self, pool: PoolName) -> int:
        return self._pools[pool].forecasts.headroom_percent

    def lead_ns(self, pool: PoolName) -> Duration:
        return self._pools[pool].lead_ns

    def correction_ppm(self, pool: PoolName) -> int:
        """The factor by which measured attainment corrects predicted work, in millionths."""
        return self._pools[pool].correction.factor_ppm


class _Pool:
    """What is known of one pool."""

    __slots__ = (
        "_absences",
        "_any_seen",
        "_asked_at",
        "_asked_ppm",
        "_by_work",
        "_demands",
        "_forecast",
        "_greatest",
        "_kv_tokens",
        "_places",
        "_said",
        "_starting_ns",
        "_stepped_at",
        "_told",
        "_told_ppm",
        "correction",
        "forecasts",
        "rules",
        "starts",
        "wanted",
    )

    def __init__(self, rules: ScalingRules) -> None:
        self.rules = rules
        self.starts = Lately(_STARTS)
        self.forecasts = Forecasts()
        self.correction = Correction()
        self.wanted: int | None = None
        self._forecast = Forecast(0, 0, self.forecasts.by)
        self._demands: deque[int] = deque()
        """Of the last periods."""
        self._asked_ppm = 0
        """Their mean."""
        self._kv_tokens, self._places = Lately(_USES), Lately(_USES)
        self._greatest, self._absences = Greatest(), Absences()
        self._stepped_at = Instant(0)
        self._asked_at = Instant(0)
        """When anything was asked last."""
        self._told_ppm = self._told = 0
        """What was told of demand since the last step, all added up, and how often."""
        self._any_seen = False
        """Whether any endpoint has been there so far."""
        self._starting_ns = Duration(0)
        """Age of the oldest start under way that is not stuck."""
        self._by_work = False
        """Whether predicted work decided the last want."""
        self._said = _Want(0, str)
        """The last answer."""

    @property
    def cold_start_ns(self) -> Duration:
        """As measured; the age of a start under way if that is longer."""
        return Duration(max(self._measured_ns, self._starting_ns))

    @property
    def _measured_ns(self) -> int:
        return self.starts.ninety_fifth(self.rules.cold_start_ns)

    @property
    def lead_ns(self) -> Duration:
        """How long until what is ordered at this moment serves."""
        return Duration(max(self._measured_ns + self.rules.period_ns, self._starting_ns))

    @property
    def hold_ns(self) -> Duration:
        """How long a want is kept to."""
        return Duration(max(self.rules.settle_ns, 2 * self.lead_ns))

    def tick(self, figures: Figures, now: Instant, *, early: bool) -> _Want:
        if self.wanted is None:
            self._begin(now)
        self._starting_ns = figures.starting_ns if figures.starting_ns <= STUCK_NS else Duration(0)
        self._meet(figures, now)
        if figures.demand_ppm or figures.backlog_ns or figures.places_used:
            self._asked_at = now
        if not early:
            self.correction.add(judged=figures.judged, missed=figures.missed)
            figures = self._of_period(figures)
            stepped = self._step(figures, now)
            # Between two periods of its own only a pool that has nothing is thought about.
            if not stepped and figures.ready + figures.warming:
                return self._said
        want = max(self._terms(figures, now), key=_endpoints)
        self._by_work = want.by_work
        want = self._bounded(want)
        self._said = self._settled(want, figures, now)
        return self._said

    def _begin(self, now: Instant) -> None:
        self.wanted = self._bounded(_Want(0, str)).endpoints
        self._greatest.add(self.wanted, now)
        # Where none is there nobody has asked for any.
        self._asked_at = now if self.wanted else Instant(now - self.rules.idle_ns)
        self._stepped_at = Instant(now - self.rules.period_ns)

    def _meet(self, figures: Figures, now: Instant) -> None:
        """Those that are there when any are first seen are taken to be wanted, until they have not been for a while.

        That may be later than the first tick: a name server may have had nothing to say so far.
        """
        there = figures.ready + figures.warming
        if there and not self._any_seen:
            self._any_seen = True
            self.wanted = max(self.wanted or 0, self._bounded(_Want(there, str)).endpoints)
            self._greatest.add(self.wanted, now)
            self._asked_at = now

    # What has been measured

    def _of_period(self, figures: Figures) -> Figures:
        """The same, with what was asked since the last step on the mean."""
        self._told_ppm += figures.demand_ppm
        self._told += 1
        return figures._replace(demand_ppm=self._told_ppm // self._told)

    def _step(self, figures: Figures, now: Instant) -> bool:
        """Makes one step for each period since the last. Where some were missed all of them were as the last one.

        False if there is none to make: the host ticks for all pools at once, and other pools may have shorter periods.
        """
        period_ns, lead_ns = self.rules.period_ns, self.lead_ns
        passed = (now - self._stepped_at + period_ns // 2) // period_ns
        if passed <= 0:
            return False
        if passed > _MISSED_MAX:
            self.forecasts.lost_track()
            self._stepped_at, passed = Instant(now - _MISSED_MAX * period_ns), _MISSED_MAX
        steps = min(STEPS_MAX, -(-lead_ns // period_ns))
        for _ in range(passed):
            self._stepped_at = Instant(self._stepped_at + period_ns)
            self._asked_ppm = self._smoothed(figures.demand_ppm)
            self._forecast = self.forecasts.step(self._asked_ppm, self._stepped_at, steps=steps, ahead_ns=lead_ns)
            self._kv_tokens.add(figures.kv_tokens_used)
            self._places.add(figures.places_used)
        self._told_ppm = self._told = 0
        self._correct(now)
        return True

    def _correct(self, now: Instant) -> None:
        """By the attainment since the last correction, with the want that was in force meanwhile."""
        may_rise = self._bounded(_Want((self.wanted or 0) + 1, str)).endpoints > (self.wanted or 0)
        self.correction.step(self.rules, now, lead_ns=self.lead_ns, may_rise=may_rise, may_fall=self._by_work)

    def _smoothed(self, demand_ppm: int) -> int:
        """The mean of the last minute, as far as it is known."""
        demands = self._demands
        demands.append(demand_ppm)
        while len(demands) > max(1, min(_SMOOTHED_MAX, MINUTE // self.rules.period_ns)):
            demands.popleft()
        return sum(demands) // len(demands)

    # What is wanted

    def _terms(self, figures: Figures, now: Instant) -> list[_Want]:
        """Each of them; of equal ones the first is named."""
        terms = [self._least(now), self._forecast_term()]
        self._add_reactive(figures, terms)
        self._add_memory(figures, terms)
        self._add_calendar(now, terms)
        return terms

    def _forecast_term(self) -> _Want:
        (ppm, headroom_percent, by), load_percent, lead_ns = self._forecast, self.rules.load_percent, self.lead_ns
        corrected = _corrected_reason(self.correction)

        def why() -> str:
            work = f"work for {_count(ppm)} endpoints in {seconds(lead_ns)}"
            return f"forecast by {by}: {work}, {headroom_percent} % headroom, {load_percent} % load{corrected}"

        return _Want(self._enough(ppm * (100 + headroom_percent)), why, by_work=True)

    def _add_reactive(self, figures: Figures, terms: list[_Want]) -> None:
        """What is asked and what waits; by what was asked in the last period alone where that is far too much."""
        # Whoever waits at this moment is served or gone when what is ordered serves. To work off within a few seconds
        # what will wait a lead later would take many endpoints for a moment, and each of them costs a cold start.
        within_ns = max(figures.ttft_ns or 0, self.lead_ns // _LEAD_PARTS)
        backlog_ppm = PPM * self._left_ns(figures) // within_ns
        if self._panics(figures):
            ready = f", {figures.ready} endpoints are ready"
            terms.append(self._reactive_term(figures, f"panic{ready}", figures.demand_ppm, backlog_ppm))
        terms.append(self._reactive_term(figures, "reactive", self._asked_ppm, backlog_ppm))

    def _reactive_term(self, figures: Figures, name: str, asked_ppm: int, backlog_ppm: int) -> _Want:
        load_percent, corrected = self.rules.load_percent, _corrected_reason(self.correction)

        def why() -> str:
            waits = f"{seconds(Duration(figures.backlog_ns))} of work waits"
            return f"{name}: work for {_count(asked_ppm)} endpoints, {waits}, {load_percent} % load{corrected}"

        return _Want(self._enough(100 * (asked_ppm + backlog_ppm)), why, by_work=True)

    def _enough(self, ppm_percent: int) -> int:
        """So many endpoints for so much work; what was wanted before, if that is nearly enough."""
        ppm_percent, load = self.correction.corrected(ppm_percent), self.rules.load_percent * PPM
        wanted = -(-ppm_percent // load)
        before = self.wanted or 0
        if wanted > before and 100 * ppm_percent <= (100 + _NEARLY_PERCENT) * before * load:
            return before
        return wanted

    def _left_ns(self, figures: Figures) -> int:
        """What will still wait one lead ahead: what is worked off until then nobody need be ordered for."""
        # Those that are starting help for half of the time, on the mean.
        can_ppm = (2 * figures.ready + figures.warming) * PPM // 2
        spare_ppm = can_ppm - self.correction.corrected(max(self._asked_ppm, figures.demand_ppm))
        # Work that is worked off is counted as it was predicted, like the work that waits.
        done_ns = max(0, spare_ppm) * self.lead_ns // max(1, self.correction.factor_ppm)
        return max(0, figures.backlog_ns - done_ns)

    def _panics(self, figures: Figures) -> bool:
        # Those that are starting serve nobody yet: while they do the last period goes on telling how many are needed.
        asked_ppm = self.correction.corrected(figures.demand_ppm)
        return 100 * asked_ppm > self.rules.panic_percent * figures.ready * PPM

    def _add_memory(self, figures: Figures, terms: list[_Want]) -> None:
        if figures.kv_tokens_each:
            terms.append(self._memory_term("KV tokens", self._kv_tokens, figures.kv_tokens_each))
        if figures.places_each:
            terms.append(self._memory_term("places", self._places, figures.places_each))

    def _memory_term(self, what: str, lately: Lately, each: int) -> _Want:
        used, percent = lately.ninety_fifth(), self.rules.kv_percent
        reason = "memory: {} {} in use, {} at each endpoint, {} % of them to be used"
        return _Want(-(-100 * used // (percent * each)), lambda: reason.format(used, what, each, percent))

    def _least(self, now: Instant) -> _Want:
        rules, idle_ns = self.rules, Duration(now - self._asked_at)
        if idle_ns >= rules.idle_ns:
            return _Want(rules.endpoints_min, lambda: f"idle: nothing was asked for {seconds(idle_ns)}")
        # The last one goes only when nothing was asked for long enough.
        least = max(1, rules.warm_min, rules.endpoints_min)
        return _Want(least, lambda: f"warm minimum: {least} kept whatever is asked")

    def _add_calendar(self, now: Instant, terms: list[_Want]) -> None:
        lead_ns = self.lead_ns
        for known in self.rules.calendar:
            if known.begins_at - lead_ns <= now < known.ends_at:
                terms += [_Want(known.endpoints_min, partial(_calendar_reason, known))]

    def _bounded(self, want: _Want) -> _Want:
        least, most, limit = self.rules.endpoints_min, self.rules.endpoints_max, "endpoints_max"
        affordable = self.rules.affordable
        if affordable is not None and affordable < most:
            most, limit = affordable, "the budget"
        if want.endpoints > most:
            return _Want(most, lambda: f"{want.why()}; {want.endpoints} wanted, bounded by {limit}")
        if want.endpoints < least:
            return _Want(min(least, most), lambda: f"{want.why()}; {want.endpoints} wanted, bounded by endpoints_min")
        return want

    def _settled(self, want: _Want, figures: Figures, now: Instant) -> _Want:
        """Up at once; down only as far, as fast and as often as it pays."""
        before = self.wanted
        assert before is not None, "nothing has been told of this pool"
        self._greatest.add(want.endpoints, now)
        held = self._greatest.since(Instant(now - self.hold_ns))
        if want.endpoints > before:
            self._absences.wanted_again(want.endpoints, now)
        elif want.endpoints < before:
            want = self._lowered(want, before, held, figures, now)
            if want.endpoints < before:
                self._absences.gave_back(before=before, after=want.endpoints, now=now)
        self.wanted = want.endpoints
        return want

    def _lowered(self, want: _Want, before: int, held: int, figures: Figures, now: Instant) -> _Want:
        """How far it goes down."""
        # What the bounds no longer allow goes whatever it was wanted for.
        most = self._bounded(_Want(before, want.why)).endpoints
        lower = max(held, before - max(1, before * self.rules.step_percent // 100))
        if lower >= most:
            return _Want(most, partial(_held_reason, want, held, self.hold_ns))
        if self._panics(figures):
            return _Want(most, lambda: f"{want.why()}; nothing is given back in panic")
        lasted_ns, cold_start_ns = self._absences.lasted_ns(now), self.cold_start_ns
        if lasted_ns <= cold_start_ns:
            return _Want(most, partial(_costly_reason, want, Duration(lasted_ns), cold_start_ns))
        return _Want(lower, partial(_held_reason, want, held, self.hold_ns))


def _calendar_reason(known: KnownEvent) -> str:
    return f"calendar: {known.name} asks for {known.endpoints_min}"


def _held_reason(want: _Want, held: int, hold_ns: Duration) -> str:
    return f"{want.why()}; {held} were wanted within the last {seconds(hold_ns)}"


def _costly_reason(want: _Want, lasted_ns: Duration, cold_start_ns: Duration) -> str:
    away, start = seconds(lasted_ns), seconds(cold_start_ns)
    return f"{want.why()}; what was given back was wanted again after {away}, and a start costs {start}"


def _corrected_reason(correction: Correction) -> str:
    percent = (correction.factor_ppm - PPM) * 100 // PPM
    return f", corrected by {percent:+d} % for the measured attainment" if percent else ""


def _endpoints(want: _Want) -> int:
    return want.endpoints


def _count(ppm: int) -> str:
    return f"{ppm / PPM:.2f}"
