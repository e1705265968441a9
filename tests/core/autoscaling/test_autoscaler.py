"""Tests for the autoscaler: the desired number of endpoints and the reasons for it."""

from functools import partial

from headgate.core.autoscaling.autoscaler import Autoscaler, ScaleDecision, ScalingMetrics
from headgate.model.scaling import ScalingRules, ScheduledEvent
from headgate.model.units import Duration, PoolName
from testing.builders import at, duration

POOL = PoolName("p")
PPM = 1_000_000
rules_of = partial(ScalingRules, target_utilization_percent=70)
"""Rules with a load target below 100 %, so that the target affects every desired count."""
USUAL = rules_of(endpoints_max=20)
PERIOD = 10


def an_autoscaler(rules: ScalingRules = USUAL) -> Autoscaler:
    return Autoscaler({POOL: rules})


def figures(
    demand: float = 0,
    *,
    ready: int = 1,
    warming: int = 0,
    backlog: float = 0,
    ttft: float | None = 2,
    kv_tokens: int = 0,
    kv_tokens_each: int | None = None,
    places: int = 0,
    places_each: int | None = None,
    starting: float = 0,
    judged: int = 0,
    missed: int = 0,
) -> ScalingMetrics:
    """Returns a pool's figures. `demand` is in endpoints; `backlog`, `ttft` and `starting` are in seconds."""
    return ScalingMetrics(
        POOL,
        round(demand * PPM),
        duration(backlog),
        None if ttft is None else duration(ttft),
        kv_tokens,
        kv_tokens_each,
        ready,
        warming,
        draining=0,
        places_used=places,
        places_each=places_each,
        starting_ns=duration(starting),
        judged=judged,
        missed=missed,
    )


def wants(autoscaler: Autoscaler, told: ScalingMetrics, *, since: float, until: float) -> list[int]:
    """Returns the desired count after each period."""
    found: list[int] = []
    moment = since
    while moment < until:
        autoscaler.tick([told], at(moment))
        found.append(autoscaler.desired(POOL))
        moment += PERIOD
    return found


def reason(autoscaler: Autoscaler, told: ScalingMetrics, *, second: float = 0) -> str:
    """Returns the reason for the only scaling decision made in a tick."""
    [scale] = autoscaler.tick([told], at(second))
    return scale.reason


# Deciding terms


def test_forecast_with_headroom_determines_the_desired_count_at_steady_demand() -> None:
    assert an_autoscaler().tick([figures(2.4, ready=3)], at(0)) == [
        ScaleDecision(POOL, 5, "forecast by last value: work for 2.40 endpoints in 130 s, 20 % headroom, 70 % load")
    ]


def test_no_scaling_is_requested_if_the_desired_endpoints_exist() -> None:
    autoscaler = an_autoscaler()
    autoscaler.tick([figures(2.4, ready=3)], at(0))

    assert autoscaler.tick([figures(2.4, ready=3, warming=2)], at(10)) == []
    assert [each.endpoints for each in autoscaler.tick([figures(2.4, ready=3)], at(20))] == [5]


def test_backlog_is_planned_to_drain_within_its_target() -> None:
    assert an_autoscaler().tick([figures(2, ready=2, backlog=100, ttft=50)], at(0)) == [
        ScaleDecision(POOL, 6, "reactive: work for 2.00 endpoints, 100 s of work queued, 70 % load")
    ]


def test_backlog_with_a_short_target_is_planned_to_drain_within_a_quarter_of_the_lead() -> None:
    assert an_autoscaler().tick([figures(2, ready=2, backlog=65, ttft=2)], at(0)) == [
        ScaleDecision(POOL, 6, "reactive: work for 2.00 endpoints, 65 s of work queued, 70 % load")
    ]


def test_desired_count_is_not_raised_if_backlog_drains_before_a_new_endpoint_is_ready() -> None:
    autoscaler = an_autoscaler()
    autoscaler.tick([figures(1, ready=2, warming=2, backlog=260)], at(0))
    assert autoscaler.desired(POOL) == 4

    autoscaler.tick([figures(1, ready=2, warming=2, backlog=345)], at(10))
    assert autoscaler.desired(POOL) == 6


def test_desired_count_is_unchanged_if_it_is_nearly_sufficient() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(10, ready=18), since=0, until=10)
    assert autoscaler.desired(POOL) == 18
    autoscaler.tick([figures(11, ready=18, warming=1)], at(10))
    assert autoscaler.desired(POOL) == 18

    autoscaler.tick([figures(13, ready=18, warming=1)], at(20))
    assert autoscaler.desired(POOL) == 20


def test_backlog_without_a_target_is_planned_to_drain_within_a_quarter_of_the_lead() -> None:
    [scale] = an_autoscaler().tick([figures(2, ready=2, backlog=65, ttft=None)], at(0))

    assert scale.endpoints == 6


def test_demand_above_ready_capacity_is_met_immediately() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(1, ready=2), since=0, until=100)

    assert autoscaler.tick([figures(4.2, ready=2)], at(100)) == [
        ScaleDecision(POOL, 6, "panic with 2 endpoints ready: work for 4.20 endpoints, 0 s of work queued, 70 % load")
    ]


def test_short_rise_within_capacity_is_followed_gradually() -> None:
    autoscaler = an_autoscaler()
    before = wants(autoscaler, figures(2, ready=4), since=0, until=100)

    assert before[-1] == 4
    assert wants(autoscaler, figures(3.5, ready=4), since=100, until=170) == [4, 5, 5, 5, 6, 6, 6]


def test_kv_cache_usage_determines_the_desired_count_for_long_requests() -> None:
    autoscaler = an_autoscaler()

    assert reason(autoscaler, figures(0.1, kv_tokens=1_800, kv_tokens_each=1_000)) == (
        "memory: 1800 KV tokens in use, 1000 per endpoint, 85 % target utilisation"
    )
    assert autoscaler.desired(POOL) == 3


def test_slot_usage_determines_the_desired_count_if_measured_demand_is_low() -> None:
    autoscaler = an_autoscaler()

    assert reason(autoscaler, figures(0.1, places=4, places_each=4)) == (
        "memory: 4 slots in use, 4 per endpoint, 85 % target utilisation"
    )
    assert autoscaler.desired(POOL) == 2


def test_single_kv_cache_peak_does_not_raise_the_desired_count() -> None:
    autoscaler = an_autoscaler()
    quiet = figures(0.1, kv_tokens=10, kv_tokens_each=1_000)
    wants(autoscaler, quiet, since=0, until=300)
    autoscaler.tick([quiet._replace(kv_tokens_used=9_000)], at(300))

    assert autoscaler.desired(POOL) == 1


def test_warm_minimum_is_kept_at_low_demand() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, warm_endpoints_min=3))

    assert reason(autoscaler, figures(0.1)) == "warm minimum: keep 3 endpoints"
    assert autoscaler.desired(POOL) == 3


def test_calendar_event_applies_from_one_lead_before_its_start_until_its_end() -> None:
    launch = ScheduledEvent("launch", starts_at=at(1_000), ends_at=at(1_100), endpoints_min=7)
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, calendar=(launch,)))

    assert set(wants(autoscaler, figures(0.1), since=0, until=870)) == {1}
    assert reason(autoscaler, figures(0.1), second=870) == "calendar: launch requires 7 endpoints"
    assert set(wants(autoscaler, figures(0.1, ready=7), since=880, until=1_390)) == {7}
    assert wants(autoscaler, figures(0.1, ready=7), since=1_390, until=1_460)[-1] == 1


# Limits


def test_desired_count_is_limited_by_endpoints_max() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=3))

    assert reason(autoscaler, figures(9, ready=9)).endswith("; 16 desired, limited by endpoints_max")
    assert autoscaler.desired(POOL) == 3


def test_desired_count_is_limited_by_the_budget() -> None:
    rules = rules_of(endpoints_max=30, endpoint_microdollars_per_hour=2_000_000, microdollars_per_hour_max=9_000_000)
    autoscaler = an_autoscaler(rules)

    assert reason(autoscaler, figures(9, ready=9)).endswith("; 16 desired, limited by the budget")
    assert autoscaler.desired(POOL) == 4


def test_budget_without_a_price_does_not_limit_the_desired_count() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=30, microdollars_per_hour_max=1))
    autoscaler.tick([figures(9, ready=9)], at(0))

    assert autoscaler.desired(POOL) == 16


def test_desired_count_is_at_least_endpoints_min() -> None:
    rules = rules_of(endpoints_min=4, endpoints_max=9, warm_endpoints_min=0, scale_to_zero_after_ns=duration(0))
    autoscaler = an_autoscaler(rules)
    assert reason(autoscaler, figures(0, ready=2)) == "idle: no requests for 0 s"
    assert autoscaler.desired(POOL) == 4

    narrow = an_autoscaler(rules_of(endpoints_min=2, endpoints_max=9, calendar=()))
    narrow.tick([figures(0.1, ready=0)], at(0))
    assert narrow.desired(POOL) == 2


def test_lowered_limit_applies_immediately() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(7, ready=12), since=0, until=50)
    autoscaler.change_rules({POOL: rules_of(endpoints_max=3), PoolName("new"): USUAL})
    autoscaler.tick([figures(1, ready=12)], at(50))

    assert autoscaler.desired(POOL) == 3
    assert autoscaler.desired(PoolName("new")) == 1


# Scaling down


def test_desired_count_falls_in_steps_after_the_stabilisation_window() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=40, scale_down_percent=25))
    wants(autoscaler, figures(7, ready=12), since=0, until=100)
    low = figures(0.5, ready=12)

    assert set(wants(autoscaler, low, since=100, until=400)) == {12}
    assert wants(autoscaler, low, since=400, until=560) == [11, 9, 7, 6, 5, 4, 3, 2, *[1] * 8]


def test_reason_identifies_what_prevents_scaling_down() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(2, ready=4), since=0, until=100)

    assert reason(autoscaler, figures(0.5, ready=5), second=100).endswith("; 4 were desired within the last 300 s")


def test_long_cold_start_extends_the_stabilisation_window_to_two_leads() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, cold_start_ns=duration(590)))
    wants(autoscaler, figures(3, ready=6), since=0, until=10)

    assert wants(autoscaler, figures(0, ready=6), since=10, until=1_200)[-1] == 6
    assert wants(autoscaler, figures(0, ready=6), since=1_200, until=1_400)[-1] == 1


# A start that takes longer than `cold_start`


SHORT = rules_of(endpoints_max=20, cold_start_ns=duration(20), scale_down_stabilization_ns=duration(60))
"""Rules whose configured cold start is too short."""


def wants_while_starting(autoscaler: Autoscaler, *, until: float, reported: bool) -> list[int]:
    """Returns the desired count in each period after a spike at 0 s. Ten endpoints are starting up until `until`."""
    wants(autoscaler, figures(7, ready=2), since=0, until=10)
    found: list[int] = []
    for second in range(10, round(until), PERIOD):
        figures_now = figures(0.5, ready=2, warming=10, starting=second if reported else 0)
        autoscaler.tick([figures_now], at(second))
        found.append(autoscaler.desired(POOL))
    return found


def test_autoscaler_keeps_starting_endpoints_after_the_lead_has_passed() -> None:
    assert set(wants_while_starting(an_autoscaler(SHORT), until=900, reported=True)) == {12}
    assert wants_while_starting(an_autoscaler(SHORT), until=900, reported=False)[-1] == 1


def test_lead_is_the_age_of_a_start_that_exceeds_the_measured_lead() -> None:
    autoscaler = an_autoscaler(SHORT)
    autoscaler.tick([figures(1, starting=25)], at(0))
    assert autoscaler.lead_ns(POOL) == duration(30)

    autoscaler.tick([figures(1, starting=500)], at(10))
    assert autoscaler.lead_ns(POOL) == duration(500)

    autoscaler.record_cold_start(POOL, duration(505))
    autoscaler.tick([figures(1)], at(20))
    assert autoscaler.lead_ns(POOL) == duration(515)


def test_stuck_start_affects_neither_the_lead_nor_the_learned_cold_start() -> None:
    autoscaler = an_autoscaler(SHORT)
    autoscaler.tick([figures(1, starting=3_600)], at(0))
    assert autoscaler.lead_ns(POOL) == duration(3_600)

    autoscaler.tick([figures(1, starting=3_601)], at(10))
    autoscaler.record_cold_start(POOL, duration(3_601))
    assert autoscaler.lead_ns(POOL) == duration(30)


# Measured attainment


def test_missed_targets_raise_the_desired_count_at_constant_predicted_work() -> None:
    autoscaler = an_autoscaler()
    before = wants(autoscaler, figures(4, ready=7), since=0, until=600)[-1]

    told = figures(4, ready=7, judged=1_000, missed=200)
    assert wants(autoscaler, told, since=600, until=6_000)[-1] > before
    assert autoscaler.correction_ppm(POOL) > 1_300_000
    assert reason(autoscaler, told, second=6_000).endswith(" % based on measured attainment")


def test_met_targets_lower_the_desired_count_slowly() -> None:
    corrected, uncorrected = (an_autoscaler(rules_of(endpoints_max=20, correction_percent_min=98)) for _ in range(2))
    told = figures(4.25, ready=7)
    plain = wants(uncorrected, told, since=0, until=3 * 3_600)[-1]
    wants(corrected, told._replace(judged=1_000), since=0, until=3_600)
    assert corrected.correction_ppm(POOL) > 990_000, "the correction takes hours"

    assert wants(corrected, told._replace(judged=1_000), since=3_600, until=3 * 3_600)[-1] == plain - 1
    assert corrected.correction_ppm(POOL) == 980_000


def test_desired_count_at_its_maximum_is_not_corrected_further() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=6))
    wants(autoscaler, figures(4, ready=6, judged=1_000, missed=500), since=0, until=6_000)

    assert autoscaler.correction_ppm(POOL) == 1_000_000


def test_met_targets_do_not_change_the_correction_while_the_warm_minimum_applies() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, warm_endpoints_min=8))
    wants(autoscaler, figures(1, ready=8, judged=1_000), since=0, until=6_000)

    assert autoscaler.correction_ppm(POOL) == 1_000_000


def test_no_endpoints_are_released_during_panic() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(7, ready=12), since=0, until=10)
    wants(autoscaler, figures(1.2, ready=12), since=10, until=310)

    assert reason(autoscaler, figures(1.4, ready=1), second=310).endswith("; no endpoints released during panic")
    assert autoscaler.desired(POOL) == 12


def test_endpoints_are_kept_if_recent_releases_did_not_pay_off() -> None:
    autoscaler = an_autoscaler()
    high, low = figures(2, ready=4), figures(0.5, ready=4)
    wants(autoscaler, high, since=0, until=100)
    assert wants(autoscaler, low, since=100, until=460)[-1] == 1
    wants(autoscaler, high, since=460, until=600)

    assert wants(autoscaler, low, since=600, until=3_000)[-1] == 4
    assert reason(autoscaler, low._replace(ready=9), second=3_000).endswith(
        "; released endpoints were needed again after 56.7 s and a cold start takes 120 s"
    )
    assert wants(autoscaler, low, since=3_010, until=4_600)[-1] == 1


# Scaling to zero


NONE_ALLOWED = rules_of(
    endpoints_min=0, endpoints_max=9, scale_to_zero_after_ns=duration(1_000), scale_down_stabilization_ns=duration(60)
)


def test_last_endpoint_is_released_after_the_idle_time() -> None:
    autoscaler = an_autoscaler(NONE_ALLOWED)
    autoscaler.tick([figures(0.1)], at(0))

    assert set(wants(autoscaler, figures(0), since=10, until=1_000)) == {1}
    assert set(wants(autoscaler, figures(0), since=1_000, until=1_260)) == {1}
    assert reason(autoscaler, figures(0), second=1_260).startswith("idle: no requests for 1260 s; ")
    assert autoscaler.desired(POOL) == 0


def test_last_endpoint_is_kept_if_endpoints_min_is_one() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=9, warm_endpoints_min=2, scale_to_zero_after_ns=duration(1_000)))
    autoscaler.tick([figures(0.1, ready=2)], at(0))

    assert wants(autoscaler, figures(0), since=10, until=9_000)[-1] == 1


def test_pool_with_a_longer_period_is_evaluated_only_in_its_own_periods() -> None:
    """The host ticks all pools together, at the shortest period of any pool."""
    autoscaler = an_autoscaler(rules_of(endpoints_max=50, period_ns=duration(60)))
    wants(autoscaler, figures(1, ready=2), since=0, until=31)
    between = [autoscaler.tick([figures(12, ready=2)], at(moment)) for moment in (40, 50, 60, 70)]
    assert between == [[]] * 4, "the period has not passed"

    assert autoscaler.tick([figures(0, ready=2)], at(80)) == []
    assert "work for 8.00 endpoints" in reason(autoscaler, figures(0, ready=2), second=90), (
        "the mean of all six samples"
    )


def test_pool_releases_one_step_in_each_of_its_periods() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=50, period_ns=duration(60), cold_start_ns=duration(60)))
    wants(autoscaler, figures(0, ready=10), since=0, until=301)
    gone = wants(autoscaler, figures(0, ready=10), since=310, until=600)

    assert gone == sorted(gone, reverse=True)
    assert len(set(gone)) <= 6, gone


def test_endpoints_first_seen_after_the_start_are_treated_as_desired() -> None:
    """If the name server did not answer during startup, running endpoints must not be released."""
    autoscaler = an_autoscaler()
    assert wants(autoscaler, figures(0, ready=0), since=0, until=30)[-1] == 1

    assert wants(autoscaler, figures(0, ready=6), since=30, until=300) == [6] * 27


def test_request_to_an_empty_pool_starts_an_endpoint_between_periods() -> None:
    for asked in (
        figures(0.01, ready=0),
        figures(0, ready=0, backlog=0.1),
        figures(0, ready=0, places=1),
    ):
        autoscaler = an_autoscaler(NONE_ALLOWED)
        assert wants(autoscaler, figures(0, ready=0), since=0, until=2_000)[-1] == 0
        [scale] = autoscaler.tick([asked], at(1_993))

        assert scale.endpoints == 1


def test_early_tick_does_not_update_forecasts() -> None:
    one, other = an_autoscaler(NONE_ALLOWED), an_autoscaler(NONE_ALLOWED)
    for autoscaler in (one, other):
        wants(autoscaler, figures(0, ready=0), since=0, until=2_000)
    [scale] = one.tick([figures(3, ready=0)], at(1_993), early=True)
    assert scale.endpoints > 0

    assert one.forecaster(POOL) == other.forecaster(POOL)
    assert one._pools[POOL].forecasts._chosen.pending == other._pools[POOL].forecasts._chosen.pending


# Lead and periods


def test_lead_is_the_measured_cold_start_plus_one_period() -> None:
    autoscaler = an_autoscaler()
    assert autoscaler.lead_ns(POOL) == duration(130)
    for second in (*range(1, 21), 400):
        autoscaler.record_cold_start(POOL, duration(second))
        autoscaler.record_cold_start(PoolName("unknown"), duration(second))

    assert autoscaler.lead_ns(POOL) == duration(30)


def test_missed_periods_are_filled_with_the_next_measurement() -> None:
    ticked, missed = an_autoscaler(), an_autoscaler()
    for each in (ticked, missed):
        wants(each, figures(1, ready=3), since=0, until=100)
    wants(ticked, figures(2, ready=3), since=100, until=160)
    missed.tick([figures(2, ready=3)], at(150))

    assert missed.desired(POOL) == ticked.desired(POOL) == 4


def test_long_gap_is_not_treated_as_forecast_error() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(1, ready=3), since=0, until=1_000)
    autoscaler.tick([figures(9, ready=3)], at(90_000))

    assert autoscaler.headroom_percent(POOL) == 20
    assert autoscaler.desired(POOL) == 16


def test_period_longer_than_a_minute_is_not_averaged() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, period_ns=duration(120)))
    autoscaler.tick([figures(1, ready=9)], at(0))
    autoscaler.tick([figures(5, ready=9)], at(120))

    assert autoscaler.desired(POOL) == 9
    autoscaler.tick([figures(7, ready=9)], at(240))
    assert autoscaler.desired(POOL) == 12


# Observation


def test_autoscaler_exposes_forecaster_headroom_and_desired_count() -> None:
    autoscaler = an_autoscaler()

    assert autoscaler.forecaster(POOL) == "last value"
    assert autoscaler.headroom_percent(POOL) == 20
    assert autoscaler.desired(POOL) == 1


def test_pool_without_rules_is_ignored() -> None:
    autoscaler = Autoscaler({})

    assert autoscaler.tick([figures(9)], at(0)) == []
    autoscaler.record_cold_start(POOL, Duration(1))


# Minimum counts set by operators


def test_floor_raises_the_desired_count_up_to_the_maximum_and_ends_at_once() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=4))
    assert wants(autoscaler, figures(0.5, ready=1), since=0, until=30) == [1, 1, 1]

    raised = autoscaler.change_floors({POOL: 9})
    assert [(each.pool, each.endpoints) for each in raised] == [(POOL, 4)]
    assert wants(autoscaler, figures(0.5, ready=4), since=30, until=90) == [4] * 6
    lowered = autoscaler.change_floors({})

    assert [(each.endpoints, each.reason) for each in lowered] == [(1, "the minimum set by an operator ended")]
    assert wants(autoscaler, figures(0.5, ready=4), since=90, until=100) == [1]


def test_floor_below_the_desired_count_changes_nothing() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(3, ready=5), since=0, until=10)
    before = autoscaler.desired(POOL)

    assert autoscaler.change_floors({POOL: 1}) == []
    assert autoscaler.desired(POOL) == before


def test_reason_of_a_raised_count_names_the_operator_and_the_own_reason() -> None:
    autoscaler = an_autoscaler()
    autoscaler.change_floors({POOL: 3})

    assert reason(autoscaler, figures(0.5)).startswith("an operator raised the minimum; otherwise: ")
