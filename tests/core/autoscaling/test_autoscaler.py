"""How many endpoints are wanted, and why?"""

from functools import partial

from headgate.core.autoscaling.autoscaler import Autoscaler, Figures, Scale
from headgate.model.scaling import KnownEvent, ScalingRules
from headgate.model.units import Duration, PoolName
from testing.builders import at, lasting

POOL = PoolName("p")
PPM = 1_000_000
rules_of = partial(ScalingRules, load_percent=70)
"""With some room on the mean, so that load shows in every want."""
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
) -> Figures:
    """Demand in endpoints, times in seconds."""
    return Figures(
        POOL,
        round(demand * PPM),
        lasting(backlog),
        None if ttft is None else lasting(ttft),
        kv_tokens,
        kv_tokens_each,
        ready,
        warming,
        draining=0,
        places_used=places,
        places_each=places_each,
        starting_ns=lasting(starting),
        judged=judged,
        missed=missed,
    )


def wants(autoscaler: Autoscaler, told: Figures, *, since: float, until: float) -> list[int]:
    """What is wanted, period after period."""
    found: list[int] = []
    moment = since
    while moment < until:
        autoscaler.tick([told], at(moment))
        found.append(autoscaler.wanted(POOL))
        moment += PERIOD
    return found


def reason(autoscaler: Autoscaler, told: Figures, *, second: float = 0) -> str:
    """Why what is wanted is not what is there."""
    [scale] = autoscaler.tick([told], at(second))
    return scale.reason


# What decides


def test_the_forecast_with_its_headroom_decides_where_demand_is_steady() -> None:
    assert an_autoscaler().tick([figures(2.4, ready=3)], at(0)) == [
        Scale(POOL, 5, "forecast by last value: work for 2.40 endpoints in 130 s, 20 % headroom, 70 % load")
    ]


def test_where_what_is_wanted_is_there_nothing_is_ordered() -> None:
    autoscaler = an_autoscaler()
    autoscaler.tick([figures(2.4, ready=3)], at(0))

    assert autoscaler.tick([figures(2.4, ready=3, warming=2)], at(10)) == []
    assert [each.endpoints for each in autoscaler.tick([figures(2.4, ready=3)], at(20))] == [5]


def test_what_waits_is_to_be_worked_off_within_its_target() -> None:
    assert an_autoscaler().tick([figures(2, ready=2, backlog=100, ttft=50)], at(0)) == [
        Scale(POOL, 6, "reactive: work for 2.00 endpoints, 100 s of work waits, 70 % load")
    ]


def test_what_waits_and_could_not_be_helped_in_time_is_to_be_worked_off_within_a_quarter_of_the_lead() -> None:
    assert an_autoscaler().tick([figures(2, ready=2, backlog=65, ttft=2)], at(0)) == [
        Scale(POOL, 6, "reactive: work for 2.00 endpoints, 65 s of work waits, 70 % load")
    ]


def test_what_will_have_been_worked_off_before_another_endpoint_serves_is_not_ordered_for() -> None:
    autoscaler = an_autoscaler()
    autoscaler.tick([figures(1, ready=2, warming=2, backlog=260)], at(0))
    assert autoscaler.wanted(POOL) == 4

    autoscaler.tick([figures(1, ready=2, warming=2, backlog=345)], at(10))
    assert autoscaler.wanted(POOL) == 6


def test_a_want_that_is_nearly_enough_stays() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(10, ready=18), since=0, until=10)
    assert autoscaler.wanted(POOL) == 18
    autoscaler.tick([figures(11, ready=18, warming=1)], at(10))
    assert autoscaler.wanted(POOL) == 18

    autoscaler.tick([figures(13, ready=18, warming=1)], at(20))
    assert autoscaler.wanted(POOL) == 20


def test_what_waits_without_any_target_has_a_quarter_of_the_lead_as_well() -> None:
    [scale] = an_autoscaler().tick([figures(2, ready=2, backlog=65, ttft=None)], at(0))

    assert scale.endpoints == 6


def test_demand_beyond_what_all_endpoints_can_do_is_met_at_once() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(1, ready=2), since=0, until=100)

    assert autoscaler.tick([figures(4.2, ready=2)], at(100)) == [
        Scale(POOL, 6, "panic, 2 endpoints are ready: work for 4.20 endpoints, 0 s of work waits, 70 % load")
    ]


def test_a_short_rise_that_the_endpoints_can_bear_is_not_answered_in_full() -> None:
    autoscaler = an_autoscaler()
    before = wants(autoscaler, figures(2, ready=4), since=0, until=100)

    assert before[-1] == 4
    assert wants(autoscaler, figures(3.5, ready=4), since=100, until=170) == [4, 5, 5, 5, 6, 6, 6]


def test_memory_in_use_decides_where_requests_are_long() -> None:
    autoscaler = an_autoscaler()

    assert reason(autoscaler, figures(0.1, kv_tokens=1_800, kv_tokens_each=1_000)) == (
        "memory: 1800 KV tokens in use, 1000 at each endpoint, 85 % of them to be used"
    )
    assert autoscaler.wanted(POOL) == 3


def test_places_in_use_decide_where_nothing_is_known_of_the_speed() -> None:
    autoscaler = an_autoscaler()

    assert reason(autoscaler, figures(0.1, places=4, places_each=4)) == (
        "memory: 4 places in use, 4 at each endpoint, 85 % of them to be used"
    )
    assert autoscaler.wanted(POOL) == 2


def test_a_single_moment_of_full_memory_does_not_count_for_long() -> None:
    autoscaler = an_autoscaler()
    quiet = figures(0.1, kv_tokens=10, kv_tokens_each=1_000)
    wants(autoscaler, quiet, since=0, until=300)
    autoscaler.tick([quiet._replace(kv_tokens_used=9_000)], at(300))

    assert autoscaler.wanted(POOL) == 1


def test_so_many_are_kept_warm_whatever_is_asked() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, warm_min=3))

    assert reason(autoscaler, figures(0.1)) == "warm minimum: 3 kept whatever is asked"
    assert autoscaler.wanted(POOL) == 3


def test_a_known_event_is_prepared_one_lead_before_it_begins_and_ends_when_it_ends() -> None:
    launch = KnownEvent("launch", begins_at=at(1_000), ends_at=at(1_100), endpoints_min=7)
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, calendar=(launch,)))

    assert set(wants(autoscaler, figures(0.1), since=0, until=870)) == {1}
    assert reason(autoscaler, figures(0.1), second=870) == "calendar: launch asks for 7"
    assert set(wants(autoscaler, figures(0.1, ready=7), since=880, until=1_390)) == {7}
    assert wants(autoscaler, figures(0.1, ready=7), since=1_390, until=1_460)[-1] == 1


# Bounds


def test_no_more_than_the_pool_may_have() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=3))

    assert reason(autoscaler, figures(9, ready=9)).endswith("; 16 wanted, bounded by endpoints_max")
    assert autoscaler.wanted(POOL) == 3


def test_no_more_than_the_budget_pays_for() -> None:
    rules = rules_of(endpoints_max=30, hourly_microdollars=2_000_000, budget_microdollars=9_000_000)
    autoscaler = an_autoscaler(rules)

    assert reason(autoscaler, figures(9, ready=9)).endswith("; 16 wanted, bounded by the budget")
    assert autoscaler.wanted(POOL) == 4


def test_a_budget_without_a_price_bounds_nothing() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=30, budget_microdollars=1))
    autoscaler.tick([figures(9, ready=9)], at(0))

    assert autoscaler.wanted(POOL) == 16


def test_no_fewer_than_the_pool_must_have() -> None:
    rules = rules_of(endpoints_min=4, endpoints_max=9, warm_min=0, idle_ns=lasting(0))
    autoscaler = an_autoscaler(rules)
    assert reason(autoscaler, figures(0, ready=2)) == "idle: nothing was asked for 0 s"
    assert autoscaler.wanted(POOL) == 4

    narrow = an_autoscaler(rules_of(endpoints_min=2, endpoints_max=9, calendar=()))
    narrow.tick([figures(0.1, ready=0)], at(0))
    assert narrow.wanted(POOL) == 2


def test_where_bounds_are_cut_what_is_beyond_them_goes_at_once() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(7, ready=12), since=0, until=50)
    autoscaler.change_rules({POOL: rules_of(endpoints_max=3), PoolName("new"): USUAL})
    autoscaler.tick([figures(1, ready=12)], at(50))

    assert autoscaler.wanted(POOL) == 3
    assert autoscaler.wanted(PoolName("new")) == 1


# Down


def test_what_was_wanted_is_kept_until_it_has_settled_and_goes_step_by_step() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=40, step_percent=25))
    wants(autoscaler, figures(7, ready=12), since=0, until=100)
    low = figures(0.5, ready=12)

    assert set(wants(autoscaler, low, since=100, until=400)) == {12}
    assert wants(autoscaler, low, since=400, until=560) == [11, 9, 7, 6, 5, 4, 3, 2, *[1] * 8]


def test_down_says_what_holds_it() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(2, ready=4), since=0, until=100)

    assert reason(autoscaler, figures(0.5, ready=5), second=100).endswith("; 4 were wanted within the last 300 s")


def test_a_long_cold_start_holds_for_twice_the_lead() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, cold_start_ns=lasting(590)))
    wants(autoscaler, figures(3, ready=6), since=0, until=10)

    assert wants(autoscaler, figures(0, ready=6), since=10, until=1_200)[-1] == 6
    assert wants(autoscaler, figures(0, ready=6), since=1_200, until=1_400)[-1] == 1


# A start that takes longer than `cold_start`


SHORT = rules_of(endpoints_max=20, cold_start_ns=lasting(20), settle_ns=lasting(60))
"""A pool whose configured cold start is too low."""


def wants_while_starting(autoscaler: Autoscaler, *, until: float, reported: bool) -> list[int]:
    """The want, period after period, after a spike at 0 s ordered ten endpoints that take until then to start."""
    wants(autoscaler, figures(7, ready=2), since=0, until=10)
    found: list[int] = []
    for second in range(10, round(until), PERIOD):
        figures_now = figures(0.5, ready=2, warming=10, starting=second if reported else 0)
        autoscaler.tick([figures_now], at(second))
        found.append(autoscaler.wanted(POOL))
    return found


def test_autoscaler_keeps_endpoints_that_are_still_starting_after_the_lead_has_passed() -> None:
    assert set(wants_while_starting(an_autoscaler(SHORT), until=900, reported=True)) == {12}
    assert wants_while_starting(an_autoscaler(SHORT), until=900, reported=False)[-1] == 1


def test_lead_is_the_age_of_a_start_that_has_lasted_longer_than_the_measured_lead() -> None:
    autoscaler = an_autoscaler(SHORT)
    autoscaler.tick([figures(1, starting=25)], at(0))
    assert autoscaler.lead_ns(POOL) == lasting(30)

    autoscaler.tick([figures(1, starting=500)], at(10))
    assert autoscaler.lead_ns(POOL) == lasting(500)

    autoscaler.started(POOL, lasting(505))
    autoscaler.tick([figures(1)], at(20))
    assert autoscaler.lead_ns(POOL) == lasting(515)


def test_stuck_start_determines_neither_the_lead_nor_what_is_learned() -> None:
    autoscaler = an_autoscaler(SHORT)
    autoscaler.tick([figures(1, starting=3_600)], at(0))
    assert autoscaler.lead_ns(POOL) == lasting(3_600)

    autoscaler.tick([figures(1, starting=3_601)], at(10))
    autoscaler.started(POOL, lasting(3_601))
    assert autoscaler.lead_ns(POOL) == lasting(30)


# Measured attainment


def test_missed_targets_raise_the_want_although_predicted_work_stays_the_same() -> None:
    autoscaler = an_autoscaler()
    before = wants(autoscaler, figures(4, ready=7), since=0, until=600)[-1]

    told = figures(4, ready=7, judged=1_000, missed=200)
    assert wants(autoscaler, told, since=600, until=6_000)[-1] > before
    assert autoscaler.correction_ppm(POOL) > 1_300_000
    assert reason(autoscaler, told, second=6_000).endswith(" % for the measured attainment")


def test_targets_that_are_always_met_lower_the_want_slowly() -> None:
    corrected, uncorrected = (an_autoscaler(rules_of(endpoints_max=20, correction_percent_min=98)) for _ in range(2))
    told = figures(4.25, ready=7)
    plain = wants(uncorrected, told, since=0, until=3 * 3_600)[-1]
    wants(corrected, told._replace(judged=1_000), since=0, until=3_600)
    assert corrected.correction_ppm(POOL) > 990_000, "it takes hours"

    assert wants(corrected, told._replace(judged=1_000), since=3_600, until=3 * 3_600)[-1] == plain - 1
    assert corrected.correction_ppm(POOL) == 980_000


def test_want_at_its_upper_bound_is_not_corrected_further() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=6))
    wants(autoscaler, figures(4, ready=6, judged=1_000, missed=500), since=0, until=6_000)

    assert autoscaler.correction_ppm(POOL) == 1_000_000


def test_met_targets_say_nothing_while_the_warm_minimum_decides() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, warm_min=8))
    wants(autoscaler, figures(1, ready=8, judged=1_000), since=0, until=6_000)

    assert autoscaler.correction_ppm(POOL) == 1_000_000


def test_nothing_is_given_back_in_panic() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(7, ready=12), since=0, until=10)
    wants(autoscaler, figures(1.2, ready=12), since=10, until=310)

    assert reason(autoscaler, figures(1.4, ready=1), second=310).endswith("; nothing is given back in panic")
    assert autoscaler.wanted(POOL) == 12


def test_where_giving_back_did_not_pay_lately_it_is_not_done_again() -> None:
    autoscaler = an_autoscaler()
    high, low = figures(2, ready=4), figures(0.5, ready=4)
    wants(autoscaler, high, since=0, until=100)
    assert wants(autoscaler, low, since=100, until=460)[-1] == 1
    wants(autoscaler, high, since=460, until=600)

    assert wants(autoscaler, low, since=600, until=3_000)[-1] == 4
    assert reason(autoscaler, low._replace(ready=9), second=3_000).endswith(
        "; what was given back was wanted again after 56.7 s, and a start costs 120 s"
    )
    assert wants(autoscaler, low, since=3_010, until=4_600)[-1] == 1


# Nothing at all


NONE_ALLOWED = rules_of(endpoints_min=0, endpoints_max=9, idle_ns=lasting(1_000), settle_ns=lasting(60))


def test_the_last_endpoint_goes_after_long_enough_without_any_demand() -> None:
    autoscaler = an_autoscaler(NONE_ALLOWED)
    autoscaler.tick([figures(0.1)], at(0))

    assert set(wants(autoscaler, figures(0), since=10, until=1_000)) == {1}
    assert set(wants(autoscaler, figures(0), since=1_000, until=1_260)) == {1}
    assert reason(autoscaler, figures(0), second=1_260).startswith("idle: nothing was asked for 1260 s; ")
    assert autoscaler.wanted(POOL) == 0


def test_where_one_is_always_kept_the_last_endpoint_stays() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=9, warm_min=2, idle_ns=lasting(1_000)))
    autoscaler.tick([figures(0.1, ready=2)], at(0))

    assert wants(autoscaler, figures(0), since=10, until=9_000)[-1] == 1


def test_a_pool_with_a_longer_period_than_others_is_told_of_in_between_and_goes_by_its_own() -> None:
    """The host ticks for all pools at once, as often as the shortest period of any says."""
    autoscaler = an_autoscaler(rules_of(endpoints_max=50, period_ns=lasting(60)))
    wants(autoscaler, figures(1, ready=2), since=0, until=31)
    between = [autoscaler.tick([figures(12, ready=2)], at(moment)) for moment in (40, 50, 60, 70)]
    assert between == [[]] * 4, "it is not yet its turn"

    assert autoscaler.tick([figures(0, ready=2)], at(80)) == []
    assert "work for 8.00 endpoints" in reason(autoscaler, figures(0, ready=2), second=90), "on the mean of all six"


def test_it_gives_back_one_step_in_each_of_its_own_periods() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=50, period_ns=lasting(60), cold_start_ns=lasting(60)))
    wants(autoscaler, figures(0, ready=10), since=0, until=301)
    gone = wants(autoscaler, figures(0, ready=10), since=310, until=600)

    assert gone == sorted(gone, reverse=True)
    assert len(set(gone)) <= 6, gone


def test_what_is_seen_later_than_at_the_beginning_is_taken_to_be_wanted_too() -> None:
    """As when a name server was silent while the gateway started: nothing of what runs must be given back for that."""
    autoscaler = an_autoscaler()
    assert wants(autoscaler, figures(0, ready=0), since=0, until=30)[-1] == 1

    assert wants(autoscaler, figures(0, ready=6), since=30, until=300) == [6] * 27


def test_whoever_asks_of_nothing_has_an_endpoint_ordered_at_once_even_between_two_periods() -> None:
    for asked in (
        figures(0.01, ready=0),
        figures(0, ready=0, backlog=0.1),
        figures(0, ready=0, places=1),
    ):
        autoscaler = an_autoscaler(NONE_ALLOWED)
        assert wants(autoscaler, figures(0, ready=0), since=0, until=2_000)[-1] == 0
        [scale] = autoscaler.tick([asked], at(1_993))

        assert scale.endpoints == 1


def test_nothing_is_learned_from_a_tick_that_comes_early() -> None:
    one, other = an_autoscaler(NONE_ALLOWED), an_autoscaler(NONE_ALLOWED)
    for autoscaler in (one, other):
        wants(autoscaler, figures(0, ready=0), since=0, until=2_000)
    [scale] = one.tick([figures(3, ready=0)], at(1_993), early=True)
    assert scale.endpoints > 0

    assert one.forecaster(POOL) == other.forecaster(POOL)
    assert one._pools[POOL].forecasts._chosen.said == other._pools[POOL].forecasts._chosen.said


# Time


def test_the_lead_is_the_measured_cold_start_and_a_period() -> None:
    autoscaler = an_autoscaler()
    assert autoscaler.lead_ns(POOL) == lasting(130)
    for second in (*range(1, 21), 400):
        autoscaler.started(POOL, lasting(second))
        autoscaler.started(PoolName("unknown"), lasting(second))

    assert autoscaler.lead_ns(POOL) == lasting(30)


def test_missed_periods_are_taken_to_be_as_the_one_after_them() -> None:
    ticked, missed = an_autoscaler(), an_autoscaler()
    for each in (ticked, missed):
        wants(each, figures(1, ready=3), since=0, until=100)
    wants(ticked, figures(2, ready=3), since=100, until=160)
    missed.tick([figures(2, ready=3)], at(150))

    assert missed.wanted(POOL) == ticked.wanted(POOL) == 4


def test_a_long_pause_is_not_held_against_any_forecaster() -> None:
    autoscaler = an_autoscaler()
    wants(autoscaler, figures(1, ready=3), since=0, until=1_000)
    autoscaler.tick([figures(9, ready=3)], at(90_000))

    assert autoscaler.headroom_percent(POOL) == 20
    assert autoscaler.wanted(POOL) == 16


def test_a_period_of_more_than_a_minute_is_looked_at_by_itself() -> None:
    autoscaler = an_autoscaler(rules_of(endpoints_max=20, period_ns=lasting(120)))
    autoscaler.tick([figures(1, ready=9)], at(0))
    autoscaler.tick([figures(5, ready=9)], at(120))

    assert autoscaler.wanted(POOL) == 9
    autoscaler.tick([figures(7, ready=9)], at(240))
    assert autoscaler.wanted(POOL) == 12


# For those who look


def test_who_looks_sees_who_is_believed_and_how_much_headroom_is_kept() -> None:
    autoscaler = an_autoscaler()

    assert autoscaler.forecaster(POOL) == "last value"
    assert autoscaler.headroom_percent(POOL) == 20
    assert autoscaler.wanted(POOL) == 1


def test_a_pool_without_rules_is_left_alone() -> None:
    autoscaler = Autoscaler({})

    assert autoscaler.tick([figures(9)], at(0)) == []
    autoscaler.started(POOL, Duration(1))
