"""Two profiles are compared by goodput per dollar, with a confidence interval over the seeds."""

from dataclasses import replace

from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B, TINY
from headgate.model.policy import Policy, Pool
from headgate.model.units import Duration, EndpointId, PoolName
from headgate.planning.profile_comparison import FleetResult, ProfileComparison, with_profile
from headgate.simulation.options import EngineSpec

ENGINES = tuple(
    EngineSpec(id=EndpointId(f"{pool}/{number}"), pool=PoolName(pool), profile=TINY, in_flight_max=64)
    for pool in ("small", "large")
    for number in range(2)
)
POLICY = Policy(pools=(Pool(PoolName("small"), Duration(0)), Pool(PoolName("large"), Duration(0))))


def runs(*good: int, usd_per_hour: float = 2.0) -> tuple[FleetResult, ...]:
    return tuple(FleetResult(good=each, arrivals=1_000, seconds=3_600.0, usd_per_hour=usd_per_hour) for each in good)


def test_goodput_per_dollar_divides_by_the_price_of_the_run() -> None:
    [run] = runs(900)

    assert (run.usd, run.good_per_usd, run.attainment) == (2.0, 450.0, 0.9)


def test_cheaper_profile_wins_despite_less_goodput() -> None:
    comparison = ProfileComparison(
        runs(900, 910, 890, 905, 895, 900, usd_per_hour=4.0), runs(800, 795, 810, 790, 805, 800)
    )

    assert comparison.verdict().startswith(
        "B wins: its goodput per dollar differs from A's by +77.8% (95 % confidence interval +7"
    )


def test_difference_within_the_interval_is_no_verdict() -> None:
    comparison = ProfileComparison(runs(900, 700, 900, 700, 900, 700), runs(700, 900, 700, 900, 701, 900))

    assert comparison.verdict().startswith("No difference shown: ")


def test_profile_that_serves_no_request_in_time_loses() -> None:
    assert ProfileComparison(runs(*[5] * 6), runs(0, 0, 1, 0, 0, 0)).verdict().startswith("A wins: ")
    assert ProfileComparison(runs(*[0] * 6), runs(*[0] * 6)).verdict().startswith("No verdict: ")


def test_engines_of_one_pool_are_replaced_and_counted() -> None:
    profile = replace(RTXPRO6000_LLAMA_8B, sequences_max=48)

    engines, policy = with_profile(ENGINES, POLICY, profile, pool="small", count=3)

    small = [each for each in engines if each.pool == "small"]
    assert [each.id for each in small] == ["small/0", "small/1", "small/2"]
    assert {(each.profile, each.in_flight_max) for each in small} == {(profile, 48)}
    assert [each for each in engines if each.pool == "large"] == list(ENGINES[2:])
    assert policy.pools[0].speed.step_ps == profile.step_ps
    assert policy.pools[0].kv_tokens == 500_000
    assert policy.pools[1] == POLICY.pools[1]


def test_all_pools_keep_their_numbers_of_engines_by_default() -> None:
    engines, _ = with_profile(ENGINES, POLICY, RTXPRO6000_LLAMA_8B, pool=None, count=None)

    assert sorted(each.id for each in engines) == sorted(each.id for each in ENGINES)
    assert {each.in_flight_max for each in engines} == {64}
