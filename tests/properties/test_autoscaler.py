"""Property tests for the autoscaler: convergence, limits and monotonic behaviour."""

from collections import deque
from dataclasses import replace
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headgate.core.autoscaling.autoscaler import Autoscaler, ScaleDecision, ScalingMetrics
from headgate.core.autoscaling.demand import DemandObserver
from headgate.core.events import RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.scaling import ScalingRules, ScheduledEvent
from headgate.model.speed import EngineSpeed
from headgate.model.units import SECOND, Duration, Instant, PoolName
from testing.builders import START, a_policy, a_pool, arrived, duration, policy_changed

POOL = PoolName("p")
PPM = 1_000_000
CONVERGED = 2_200
"""Number of steps after which initial assumptions and initial errors no longer have any influence."""

CORRECTED = 20_000
"""Number of steps, more than two days, after which the correction factor has converged from any wrong speed."""

loads = st.one_of(st.integers(0, 40 * PPM), st.integers(0, 60).map(lambda tenths: tenths * 700_000))
rules_of_any_kind = st.builds(
    ScalingRules,
    endpoints_min=st.integers(0, 3),
    endpoints_max=st.integers(3, 80),
    warm_endpoints_min=st.integers(0, 5),
    target_utilization_percent=st.integers(10, 100),
    target_kv_percent=st.integers(50, 100),
    cold_start_ns=st.integers(0, 600).map(duration),
    scale_down_stabilization_ns=st.integers(0, 900).map(duration),
    scale_down_percent=st.integers(1, 100),
    panic_threshold_percent=st.integers(100, 300),
    scale_to_zero_after_ns=st.sampled_from([duration(60), duration(1_800)]),
    endpoint_microdollars_per_hour=st.sampled_from([0, 2_500_000]),
    microdollars_per_hour_max=st.sampled_from([None, 10_000_000, 101_000_000]),
)


def most(rules: ScalingRules) -> int:
    affordable = rules.affordable_endpoints
    return rules.endpoints_max if affordable is None else min(affordable, rules.endpoints_max)


class Loop:
    """Autoscaler with a fleet that obeys its commands. New endpoints are ready after the cold start."""

    def __init__(self, rules: ScalingRules, *, ready: int = 1, start_ns: Duration | None = None) -> None:
        """`start_ns` is the real cold start, if it differs from the configured one."""
        self.rules = rules
        self.start_ns = rules.cold_start_ns if start_ns is None else start_ns
        self.abandoned = 0
        """Number of endpoints removed before they had started."""
        self.autoscaler = Autoscaler({POOL: rules})
        self.ready = ready
        self.starting: deque[Instant] = deque()
        """Time at which each starting endpoint will be ready."""
        self.now = START

    @property
    def there(self) -> int:
        return self.ready + len(self.starting)

    def figures(
        self, demand_ppm: int, *, backlog_ns: int = 0, kv_tokens: int = 0, judged: int = 0, missed: int = 0
    ) -> ScalingMetrics:
        age_ns = Duration(self.now - self.starting[0] + self.start_ns) if self.starting else Duration(0)
        return ScalingMetrics(
            POOL,
            demand_ppm,
            backlog_ns,
            duration(2),
            kv_tokens,
            100_000,
            self.ready,
            len(self.starting),
            draining=0,
            starting_ns=age_ns,
            judged=judged,
            missed=missed,
        )

    def step(
        self, demand_ppm: int, *, backlog_ns: int = 0, kv_tokens: int = 0, judged: int = 0, missed: int = 0
    ) -> list[ScaleDecision]:
        self.now = Instant(self.now + self.rules.period_ns)
        while self.starting and self.starting[0] <= self.now:
            self.starting.popleft()
            self.ready += 1
        figures = self.figures(demand_ppm, backlog_ns=backlog_ns, kv_tokens=kv_tokens, judged=judged, missed=missed)
        scales = self.autoscaler.tick([figures], self.now)
        for scale in scales:
            self._obey(scale)
        return scales

    def _obey(self, scale: ScaleDecision) -> None:
        for _ in range(scale.endpoints - self.there):
            self.starting.append(Instant(self.now + self.start_ns))
        while self.there > scale.endpoints:
            if self.starting:
                self.starting.pop()
                self.abandoned += 1
            else:
                self.ready -= 1

    @property
    def wanted(self) -> int:
        return self.autoscaler.desired(POOL)


@settings(max_examples=settings.default.max_examples // 5)
@given(rules_of_any_kind, loads, st.lists(loads, max_size=30), st.integers(0, 20))
def test_constant_load_converges_to_a_constant_size(
    rules: ScalingRules, load: int, before: list[int], ready: int
) -> None:
    loop = Loop(rules, ready=ready)
    for each in before:
        loop.step(each)
    for _ in range(CONVERGED):
        loop.step(load)
    rest = loop.wanted

    assert not [scale for _ in range(500) for scale in loop.step(load)]
    assert loop.wanted == rest
    # A pool that is within 5% of the required size is not scaled.
    assert rest == most(rules) or 105 * rest * rules.target_utilization_percent * PPM >= 100 * 100 * load


@settings(max_examples=settings.default.max_examples // 5)
@given(rules_of_any_kind, loads, st.integers(0, 40))
def test_constant_load_never_scales_up_after_scaling_down(rules: ScalingRules, load: int, ready: int) -> None:
    loop, wants = Loop(rules, ready=ready), list[int]()
    for _ in range(900):
        loop.step(load)
        wants.append(loop.wanted)

    top = wants.index(max(wants))
    assert wants[:top] == sorted(wants[:top])
    assert wants[top:] == sorted(wants[top:], reverse=True)


@given(
    rules_of_any_kind,
    st.lists(st.tuples(loads, st.integers(0, 10**11), st.integers(0, 10**7)), max_size=60),
    st.lists(st.tuples(st.integers(-300, 300), st.integers(0, 900), st.integers(0, 100)), max_size=2),
)
def test_size_stays_within_limits_and_budget(
    rules: ScalingRules, steps: list[tuple[int, int, int]], events: list[tuple[int, int, int]]
) -> None:
    calendar = tuple(
        ScheduledEvent("launch", Instant(START + begins * SECOND), Instant(START + (begins + lasts) * SECOND), wanted)
        for begins, lasts, wanted in events
    )
    rules = replace(rules, calendar=calendar)
    loop = Loop(rules, ready=5)
    for demand_ppm, backlog_ns, kv_tokens in steps:
        loop.step(demand_ppm, backlog_ns=backlog_ns, kv_tokens=kv_tokens)

        assert min(rules.endpoints_min, most(rules)) <= loop.wanted <= most(rules)


@given(rules_of_any_kind, st.lists(loads, max_size=120), loads, st.integers(0, 10 * PPM), st.integers(0, 10**10))
def test_more_demand_never_lowers_the_desired_size(
    rules: ScalingRules, history: list[int], load: int, more: int, backlog_ns: int
) -> None:
    loop, other = Loop(rules), Loop(rules)
    for each in history:
        loop.step(each)
        other.step(each)
    loop.step(load)
    other.step(load + more, backlog_ns=backlog_ns)

    assert other.wanted >= loop.wanted


@given(rules_of_any_kind, st.integers(0, 5 * PPM), st.integers(0, 40 * PPM), st.integers(1, 100), st.integers(1, 6))
def test_size_reached_during_a_spike_is_kept_for_the_settle_time(
    rules: ScalingRules, usual: int, spike: int, before: int, lasts: int
) -> None:
    assume(spike > usual)
    loop = Loop(rules)
    for _ in range(before):
        loop.step(usual)
    since, needed = loop.now, 0
    for _ in range(lasts):
        loop.step(spike)
        if loop.wanted > needed:
            since, needed = loop.now, loop.wanted
    while loop.now + rules.period_ns <= since + rules.scale_down_stabilization_ns:
        loop.step(usual)

        assert loop.wanted >= needed


@given(rules_of_any_kind, st.lists(loads, min_size=1, max_size=60), st.integers(0, 3_600))
def test_no_endpoint_is_removed_before_it_has_started(rules: ScalingRules, steps: list[int], start_s: int) -> None:
    loop = Loop(rules, start_ns=duration(start_s))
    for each in steps:
        loop.step(each)
    while loop.starting:
        loop.step(0)

    assert not loop.abandoned


@settings(max_examples=settings.default.max_examples // 30)
@given(st.integers(60, 160), st.integers(3 * PPM, 12 * PPM))
def test_wrong_speed_is_corrected_based_on_missed_targets(percent: int, load: int) -> None:
    """Endpoints with too little capacity miss targets in proportion to the shortage."""
    loop = Loop(
        ScalingRules(endpoints_max=40, scale_down_stabilization_ns=duration(60), cold_start_ns=duration(60)), ready=12
    )
    ready: list[int] = []
    for _ in range(CORRECTED):
        short_ppm = max(0, load - loop.ready * PPM)
        loop.step(load * percent // 100, judged=1_000, missed=1_000 * short_ppm // load)
        ready.append(loop.ready)

    enough = -(-load // PPM)
    assert loop.autoscaler.correction_ppm(POOL) in range(600_000, 2_000_001)
    assert max(ready[-1_000:]) >= enough, "too few endpoints after the correction"
    assert sum(ready[-1_000:]) <= 1_000 * (enough + 2), "too many endpoints after the correction"


@given(rules_of_any_kind, st.lists(st.tuples(st.integers(PPM, 40 * PPM), st.integers(0, 10**12)), max_size=60))
def test_doubling_backlog_and_target_gives_the_same_size(rules: ScalingRules, steps: list[tuple[int, int]]) -> None:
    slow, quick, now = Autoscaler({POOL: rules}), Autoscaler({POOL: rules}), START
    for demand_ppm, backlog_ns in steps:
        now = Instant(now + rules.period_ns)
        figures = ScalingMetrics(POOL, demand_ppm, backlog_ns, duration(200), 7, None, ready=1, warming=0, draining=0)
        twice = figures._replace(backlog_ns=2 * backlog_ns, ttft_ns=duration(400))
        quick.tick([figures], now)
        slow.tick([twice], now)

        assert slow.desired(POOL) == quick.desired(POOL)


@given(st.lists(st.tuples(st.integers(4, 40_000), st.integers(1, 2_000)), min_size=1, max_size=20))
def test_doubling_requests_and_engine_speed_gives_the_same_demand(sizes: list[tuple[int, int]]) -> None:
    slow = EngineSpeed(step_ps=96 * 10**8, attention_ps=500)
    fast = EngineSpeed(
        step_ps=slow.step_ps // 2,
        prefill_token_ps=slow.prefill_token_ps // 2,
        decode_sequence_ps=slow.decode_sequence_ps // 2,
        kv_token_ps=slow.kv_token_ps // 2,
        attention_ps=slow.attention_ps // 2,
    )
    once, twice = asked_ppm(slow, sizes), asked_ppm(fast, sizes + sizes)

    # Each request is rounded to whole nanoseconds, and there are twice as many requests.
    assert abs(once - twice) <= 1 + len(sizes) // 100


def asked_ppm(speed: EngineSpeed, sizes: list[tuple[int, int]]) -> int:
    """Returns the demand from requests with these prompt bytes and maximum output tokens in a pool of this speed."""
    demand = DemandObserver()
    demand.observe(policy_changed(a_policy(pools=(replace(a_pool(), speed=speed),))), [], START)
    for number, (prompt_bytes, output_tokens) in enumerate(sizes):
        ticket = replace(arrived(f"r{number}", prompt_bytes=prompt_bytes).ticket, output_tokens_max=output_tokens)
        demand.observe(RequestArrived(ticket), [], START)
    [figures] = demand.collect(Scheduler().summary(), Instant(START + 10 * SECOND))
    return figures.demand_ppm


@given(rules_of_any_kind, st.lists(st.tuples(loads, st.integers(0, 10**10)), max_size=60))
def test_autoscaler_is_deterministic(rules: ScalingRules, steps: list[tuple[int, int]]) -> None:
    one, other = Loop(rules), Loop(rules)
    for demand_ppm, backlog_ns in steps:
        assert one.step(demand_ppm, backlog_ns=backlog_ns) == other.step(demand_ppm, backlog_ns=backlog_ns)


@settings(max_examples=settings.default.max_examples // 30)
@given(st.integers(0, 1_000))
def test_autoscaler_memory_does_not_grow_over_time(seed: int) -> None:
    random = Random(f"{seed} memory")
    loop = Loop(
        ScalingRules(endpoints_max=40, cold_start_ns=duration(300), scale_down_stabilization_ns=duration(3_600))
    )
    for _ in range(4_000):
        loop.step(random.randrange(20 * PPM), kv_tokens=random.randrange(10**6))
        loop.autoscaler.record_cold_start(POOL, Duration(random.randrange(300 * SECOND)))

    before = held(loop.autoscaler)
    for _ in range(1_000):
        loop.step(random.randrange(20 * PPM), kv_tokens=random.randrange(10**6))

    # The history of a 40-endpoint pool can vary by 40 entries.
    assert held(loop.autoscaler) < before + 200
    # Two one-day histories in minutes, forecasts and a histogram for each forecaster, and some other values.
    assert held(loop.autoscaler) < 2 * 1_440 + 4 * (2 * 31 + 101) + 500


def held(thing: object) -> int:
    """Returns how many numbers an object contains, including nested objects."""
    if isinstance(thing, dict):
        return held(list(thing.values()))
    if isinstance(thing, (list, tuple, deque)):
        return sum(held(each) for each in thing)
    if hasattr(thing, "__len__") and not isinstance(thing, str):
        return len(thing)
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names += list(getattr(thing, "__dict__", ()))
    return max(1, sum(held(getattr(thing, name)) for name in names))
