"""Settings in scenario files."""

from pathlib import Path

import pytest

from headgate.config.scenarios.load import parse
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.model.engine_profile import PROFILES
from headgate.model.limits import Limits
from headgate.model.money import NanoUsd, Price, PriceKind
from headgate.model.policy import (
    AdmissionRules,
    BatchRules,
    DegradationRules,
    HeadroomRules,
    HealthRules,
    Model,
    ModelTierRule,
    RetryRules,
    RoutingRules,
    ServiceClass,
    SheddingRules,
)
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Plan, Tenant
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, MINUTE, SECOND, Duration
from headgate.simulation.options import (
    CallerBehaviour,
    Crash,
    DailyPeak,
    Hang,
    LengthDistribution,
    LogNormal,
    Ramp,
    RandomFaults,
    RateTraffic,
    ServeGenTraffic,
    Slowdown,
    Spike,
    TraceTraffic,
    Uniform,
)
from tests.config.scenario_builders import SCHEDULERS, small_with_traffic
from tests.config.scenario_builders import scenario_of as read

TINY = PROFILES["tiny"]


def scenario_of(text: str, folder: Path | None = None, data: Path | None = None) -> ScenarioSettings:
    return read(text, folder or Path("scenarios"), {} if data is None else {"HEADGATE_DATA": str(data)})


def small(*lines: str) -> str:
    return small_with_traffic("{rate: 5, duration: 60s, classes: batch, prompt: 100, output: 10}", *lines)


def test_minimal_scenario_has_defaults() -> None:
    settings = scenario_of(small())

    assert (settings.title, settings.scheduler, settings.cap, settings.duration_ns) == ("small", "headgate", None, None)
    assert [each.name for each in settings.policy.classes] == ["interactive", "long", "batch"]
    assert (settings.policy.retry, settings.policy.health) == (RetryRules(), HealthRules())
    assert settings.callers["batch"] == CallerBehaviour(
        ttft_ns=None, tpot_ns=None, e2e_ns=None, client_timeout_ns=None, retries=0, stream=True
    )
    assert settings.traffic == (
        RateTraffic(
            rate=5.0,
            shift_ns=0,
            duration_ns=MINUTE,
            prompt=Uniform(100, 100),
            output=Uniform(10, 10),
            classes=(("batch", 1.0),),
            tenants=(("everyone", 1.0),),
            tenants_from=None,
        ),
    )


def test_scenario_uses_gateway_sections() -> None:
    settings = scenario_of(
        small(
            "classes: {batch: {queue_wait_max: 5m}, urgent: {priority_band: 0, caps: {n: 1}}}",
            "retry: {attempts_max: 1}",
            "health: {ejection_time: 3s}",
        )
    )

    batch, urgent = settings.policy.classes
    assert (batch.band, batch.queue_wait_ns_max, batch.accepts_unclassified) == (2, 5 * MINUTE, False)
    assert isinstance(urgent, ServiceClass)
    assert urgent.caps.n == 1
    assert settings.policy.retry.attempts_max == 1
    assert settings.policy.health.ejection_ns == 3 * SECOND


def test_default_model_is_served_by_all_pools() -> None:
    settings = scenario_of(small().replace("pools:", "pools:\n  other: {in_flight_max: 1, engines: tiny}"))

    [model] = settings.policy.models
    assert (model.name, model.pools) == (settings.model, ("other", "main"))
    assert settings.policy.tenants == ()


def test_engines_are_numbered_per_pool_and_may_override_their_profile() -> None:
    settings = scenario_of(
        """
        pools:
          main:
            in_flight_max: 8
            engines:
              - {profile: tiny, count: 2}
              - {profile: tiny, kv_tokens: 8200, block_tokens: 32, in_flight_max: 4, starts_at: 5s, cold_start: 1m}
        traffic: {rate: 5, duration: 60s, classes: batch, prompt: 100, output: 10}
        """.replace("traffic: {", "traffic:\n          - {")
    )

    first, second, third = settings.engines
    assert [each.id for each in settings.engines] == ["main/0", "main/1", "main/2"]
    assert (first.in_flight_max, third.in_flight_max) == (8, 4)
    assert second.profile.kv_blocks == TINY.kv_blocks
    assert (third.profile.kv_blocks, third.profile.block_tokens) == (256, 32)
    assert (third.starts_at, third.cold_start_ns) == (5 * SECOND, MINUTE)


def test_pool_policy_follows_its_engines() -> None:
    settings = scenario_of(small())

    [pool] = settings.policy.pools
    assert pool.kv_tokens == TINY.kv_blocks * TINY.block_tokens
    assert pool.speed == EngineSpeed(
        step_ps=TINY.step_ps,
        prefill_token_ps=TINY.prefill_token_ps,
        decode_sequence_ps=TINY.decode_sequence_ps,
        kv_token_ps=TINY.kv_token_ps,
        attention_ps=TINY.attention_ps,
        chunk_tokens=TINY.chunk_tokens,
    )


def test_pool_policy_uses_speed_of_first_and_size_of_smallest_engine() -> None:
    smaller = "{profile: h200-llama-8b, chunk_tokens: 256, kv_tokens: 4096, context_tokens: 100}"
    settings = scenario_of(small().replace("[tiny, tiny]", f"[tiny, {smaller}]"))

    [pool] = settings.policy.pools
    assert (pool.speed.step_ps, pool.speed.chunk_tokens, pool.kv_tokens) == (TINY.step_ps, 256, 4096)


@pytest.mark.parametrize(
    ("written", "step_ps", "attention_ps", "chunk_tokens"),
    [
        ("{step: 2ms}", 2_000_000_000, TINY.attention_ps, TINY.chunk_tokens),
        ("{chunk_tokens: 7}", TINY.step_ps, TINY.attention_ps, 7),
        ("h200-llama-8b", PROFILES["h200-llama-8b"].step_ps, PROFILES["h200-llama-8b"].attention_ps, 2048),
    ],
)
def test_pool_policy_may_be_overridden(written: str, step_ps: int, attention_ps: int, chunk_tokens: int) -> None:
    beliefs = f"speed: {written}, kv_tokens: 99, prompt_tokens_max: 50, output_tokens_min: 5"
    settings = scenario_of(small().replace("in_flight_max: 8", f"in_flight_max: 8, {beliefs}"))

    [pool] = settings.policy.pools
    speed = pool.speed
    assert (speed.step_ps, speed.attention_ps, speed.chunk_tokens) == (step_ps, attention_ps, chunk_tokens)
    assert (pool.kv_tokens, pool.prompt_tokens_max, pool.output_tokens_min) == (99, 50, 5)
    assert settings.engines[0].profile.chunk_tokens == TINY.chunk_tokens


def test_class_targets_default_to_callers_targets() -> None:
    settings = scenario_of(
        small(
            "classes: {interactive: {}, long: {ttft: 9s}, batch: {}}",
            "callers: {interactive: {ttft: 2s, tpot: 100ms}, long: {ttft: 10s, tpot: 1s}}",
        )
    )

    assert [(each.ttft_ns, each.tpot_ns) for each in settings.policy.classes] == [
        (2 * SECOND, SECOND // 10),
        (9 * SECOND, SECOND),
        (None, None),
    ]


def test_scenario_uses_gateway_models_tenants_and_rules() -> None:
    settings = scenario_of(
        small(
            "models: {good: {pools: main, tiers: [{pools: main, plans: free}], fallbacks: other}, other: main}",
            "tenants: {a/b: {weight: 200, plan: free, limits: {concurrency: 3}}}",
            "headroom: {kv_percent: 90}",
            "admission: {predicted_wait_percent_max: 200}",
            "routing: {metrics_stale_after: 5s}",
            "shedding: {enabled: false}",
            "degradation: {level_max: 2}",
            "fairness_depth: 2",
        )
    )

    policy = settings.policy
    assert settings.model == "good"
    assert policy.models == (
        Model("good", ("main",), tiers=(ModelTierRule(("main",), plans=(Plan.FREE,)),), fallbacks=("other",)),
        Model("other", ("main",)),
    )
    assert policy.tenants == (Tenant("a/b", weight=200, plan=Plan.FREE, limits=Limits(concurrency=3)),)
    assert policy.headroom == HeadroomRules(kv_percent=90)
    assert policy.admission == AdmissionRules(predicted_wait_percent_max=200)
    assert policy.routing == RoutingRules(metrics_stale_ns=5 * SECOND)
    assert policy.shedding == SheddingRules(enabled=False)
    assert policy.degradation == DegradationRules(level_max=2)
    assert policy.fairness_depth == 2


def test_callers_are_parsed() -> None:
    settings = scenario_of(
        small(
            "callers:",
            "  batch: {ttft: 2s, tpot: 100ms, e2e: 1m, client_timeout: 10s, retries: 2}",
            "  long: {e2e: 1m, stream: false}",
        )
    )

    assert settings.callers["batch"] == CallerBehaviour(
        ttft_ns=2 * SECOND,
        tpot_ns=SECOND // 10,
        e2e_ns=MINUTE,
        client_timeout_ns=10 * SECOND,
        retries=2,
        stream=True,
    )
    assert settings.callers["long"] == CallerBehaviour(
        ttft_ns=None, tpot_ns=None, e2e_ns=MINUTE, client_timeout_ns=None, retries=0, stream=False
    )


def test_probe_and_scrape_intervals_are_parsed() -> None:
    settings = scenario_of(small("probe_interval: 2s", "scrape_interval: 50ms", "progress_interval: 1s"))

    assert (settings.probe_every_ns, settings.scrape_every_ns) == (2 * SECOND, SECOND // 20)
    assert settings.progress_every_ns == SECOND


def test_scheduler_may_have_a_cap() -> None:
    settings = scenario_of(small("scheduler: {name: static-cap, cap: 48, queue_length_max: 7}"))

    assert (settings.scheduler, settings.cap, settings.queue_length_max) == ("static-cap", 48, 7)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("200", Uniform(200, 200)),
        ("200:800", Uniform(200, 800)),
        ("{uniform: 200:800}", Uniform(200, 800)),
        ("{median: 100, p95: 400, max: 900}", LogNormal(median=100, p95=400, max=900)),
    ],
)
def test_lengths_are_uniform_or_have_percentiles(text: str, lengths: LengthDistribution) -> None:
    settings = scenario_of(
        small_with_traffic(f"{{rate: 5, duration: 60s, classes: batch, prompt: {text}, output: 10}}")
    )

    [traffic] = settings.traffic
    assert isinstance(traffic, RateTraffic)
    assert traffic.prompt == lengths


def test_shares_are_weights_or_percentages() -> None:
    settings = scenario_of(
        small_with_traffic(
            "{rate: 5, duration: 60s, classes: {batch: 30%, long: 0.7}, tenants: {a: 3, b: 1}, prompt: 9, output: 9}"
        )
    )

    [traffic] = settings.traffic
    assert isinstance(traffic, RateTraffic)
    assert traffic.classes == (("batch", 0.3), ("long", 0.7))
    assert traffic.tenants == (("a", 3.0), ("b", 1.0))


def test_rate_may_change_over_time() -> None:
    settings = scenario_of(
        small_with_traffic(
            "{rate: 5, duration: 60s, classes: batch, prompt: 9, output: 9, burstiness: 2.5, "
            "ramp: {to: 20, at: 5s, duration: 30s}, spikes: [{at: 10s, duration: 2s, factor: 4}], "
            "day: {share: 40%, at: 8h, duration: 4h}}"
        )
    )

    [traffic] = settings.traffic
    assert isinstance(traffic, RateTraffic)
    assert traffic.burstiness == 2.5
    assert traffic.ramp == Ramp(to=20.0, at_ns=Duration(5 * SECOND), duration_ns=Duration(30 * SECOND))
    assert traffic.spikes == (Spike(factor=4.0, at_ns=Duration(10 * SECOND), duration_ns=Duration(2 * SECOND)),)
    assert traffic.day == DailyPeak(
        share=0.4,
        at_ns=Duration(8 * 60 * MINUTE),
        duration_ns=Duration(4 * 60 * MINUTE),
        day_ns=Duration(24 * 60 * MINUTE),
    )


def test_generated_traffic_lasts_until_the_end() -> None:
    settings = scenario_of(
        small_with_traffic("{rate: 5, shift: 20s, classes: batch, prompt: 100, output: 10}", "duration: 60s")
    )

    [traffic] = settings.traffic
    assert isinstance(traffic, RateTraffic)
    assert (traffic.shift_ns, traffic.duration_ns) == (20 * SECOND, 40 * SECOND)


def test_trace_is_a_relative_path_or_a_public_name(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for name in ("mine.csv", "traces/public.jsonl.gz", "traces/other.csv"):
        (tmp_path / name).touch()

    settings = scenario_of(
        small_with_traffic("{trace: mine.csv, classes: batch}", "{trace: public, tenants_from: other, classes: long}"),
        folder=tmp_path,
        data=tmp_path,
    )

    beside, below = settings.traffic
    assert isinstance(beside, TraceTraffic)
    assert isinstance(below, TraceTraffic)
    assert (beside.path, beside.tenants, beside.tenants_from) == (tmp_path / "mine.csv", None, None)
    assert (below.path, below.tenants_from) == (tmp_path / "traces/public.jsonl.gz", tmp_path / "traces/other.csv")


def test_trace_may_be_cut_shifted_sampled_and_sped_up(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").touch()

    settings = scenario_of(
        small_with_traffic(
            "{trace: mine.csv, tenants: a, start: 10m, duration: 5m, shift: 77s, jitter: 3s, speed_up: 17.5, "
            "sample: 5.5%}"
        ),
        folder=tmp_path,
    )

    assert settings.traffic == (
        TraceTraffic(
            location=f"{tmp_path / 'small.yaml'}:4: traffic[0]",
            path=tmp_path / "mine.csv",
            classes=None,
            tenants=(("a", 1.0),),
            tenants_from=None,
            speed_up=17.5,
            shift_ns=77 * SECOND,
            jitter_ns=3 * SECOND,
            keep=0.055,
            start_ns=10 * MINUTE,
            duration_ns=5 * MINUTE,
        ),
    )


def test_servegen_uses_two_files(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    rates, lengths = "traces/servegen_m_rates.csv.gz", "traces/servegen_m_lengths.jsonl.gz"
    for name in (rates, lengths):
        (tmp_path / name).touch()

    by_name, by_path = scenario_of(
        small_with_traffic("{servegen: m, classes: batch}", "{servegen: ./traces/servegen_m, classes: batch}"),
        folder=tmp_path,
        data=tmp_path,
    ).traffic

    assert isinstance(by_name, ServeGenTraffic)
    assert (by_name.rates, by_name.lengths) == (tmp_path / rates, tmp_path / lengths)
    assert by_path == by_name


def test_faults_select_engines_or_pools() -> None:
    settings = scenario_of(
        small(
            "faults:",
            "  - {crash: main, at: 1m, recover_after: 30s}",
            "  - {hang: [main/1], at: 90s, duration: 20s}",
            "  - {slow: main/0, at: 10s, duration: 1m, speed: 0.3}",
            "  - random: {crash: 2, slow: 1, duration_min: 1s, duration_max: 2s, speed_max: 0.2}",
        )
    )

    assert settings.faults == (
        Crash("main/0", MINUTE, 30 * SECOND),
        Crash("main/1", MINUTE, 30 * SECOND),
        Hang("main/1", 90 * SECOND, 20 * SECOND),
        Slowdown("main/0", 10 * SECOND, MINUTE, 300),
        RandomFaults(
            crashes=2,
            hangs=0,
            slowdowns=1,
            duration_ns_min=SECOND,
            duration_ns_max=2 * SECOND,
            speed_min=100,
            speed_max=200,
        ),
    )


@pytest.mark.parametrize(
    ("at", "warnings"),
    [
        (
            "69s",
            ["small.yaml:6: faults[0].crash[0]: has no effect on main/2 and 1 more, which starts at 70 s; raise at"],
        ),
        ("70s", []),
    ],
)
def test_fault_before_engine_start_causes_a_warning(at: str, warnings: list[str]) -> None:
    later = "{profile: tiny, count: 2, starts_at: 60s, cold_start: 10s}"
    text = small("faults:", f"  - {{crash: main, at: {at}, recover_after: 1s}}").replace("tiny]", f"tiny, {later}]")

    assert [each.removeprefix("scenarios/") for each in scenario_of(text).warnings] == warnings


def test_title_defaults_to_file_name() -> None:
    parsed = parse(small("title: Mine"), Path("a/b.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)
    unnamed = parse(small(), Path("a/b.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert (parsed.title, unnamed.title) == ("Mine", "b")


def test_pools_have_prices_as_in_the_configuration() -> None:
    settings = scenario_of("""
        pools:
          main: {engines: [tiny], in_flight_max: 8, prices: {per_hour: 2.50, kind: spot}}
          cloud:
            engine: provider
            engines: [tiny]
            in_flight_max: 8
            prices: [{input_per_1m_tokens: 0.2, output_per_1m_tokens: 0.8}]
        models: {m: {pools: [main], overflow: {pools: [cloud], after: 1s}}}
        traffic: [{rate: 5, duration: 60s, classes: batch, prompt: 100, output: 10}]
        """)
    main, cloud = settings.policy.pools

    assert (main.hosted, main.prices) == (False, (Price(per_hour=NanoUsd(2_500_000_000), kind=PriceKind.SPOT),))
    assert cloud.hosted
    assert [each.input_per_1m_tokens for each in cloud.prices] == [200_000_000]


def test_pools_have_no_price_by_default() -> None:
    [pool] = scenario_of(small()).policy.pools

    assert (pool.prices, pool.hosted) == ((), False)


def test_autoscaled_pool_has_standby_engines_like_its_last_one() -> None:
    settings = scenario_of("""
        pools:
          main:
            engines: [{profile: tiny, count: 2}, {profile: tiny, sequences_max: 4, cold_start: 9s, starts_at: 5s}]
            in_flight_max: 8
            scaling: {endpoints_max: 5, endpoints_min: 0, cold_start: 40s, held_requests_max: 7}
        classes: {batch: {cold_start_wait_max: 60s}}
        traffic: [{rate: 5, duration: 60s, classes: batch, prompt: 100, output: 10}]
        """)
    [pool], [(name, scaling)] = settings.policy.pools, settings.scaling.items()

    assert [each.id for each in settings.engines if each.standby] == ["main/3", "main/4"]
    assert [each.profile.sequences_max for each in settings.engines[3:]] == [4, 4]
    assert [each.starts_at for each in settings.engines] == [0, 0, 5 * SECOND, 0, 0]
    assert (pool.scales, pool.hold_max, pool.cold_start_ns) == (True, 7, 40 * SECOND)
    assert (name, scaling.rules.endpoints_max, scaling.cold_start_ns) == ("main", 5, 9 * SECOND)


def test_expected_cold_start_is_the_actual_one_by_default() -> None:
    settings = scenario_of(small().replace("in_flight_max: 8", "in_flight_max: 8, scaling: {endpoints_max: 2}"))

    assert [each.cold_start_ns for each in settings.scaling.values()] == [120 * SECOND]
    assert settings.policy.pools[0].hold_max == 0


def test_objectives_are_shares_of_good_requests() -> None:
    assert scenario_of(small("objectives: {interactive: 99.5%, batch: 0.9}")).objectives == {
        "interactive": 0.995,
        "batch": 0.9,
    }
    assert scenario_of(small()).objectives == {}


def test_embeddings_are_batched_in_calls_that_take_time() -> None:
    text = small_with_traffic("{rate: 5, duration: 60s, classes: batch, prompt: 100, api: embeddings}")
    batching = "batching: {delay_max: 2ms, calls_max: 2}"
    pool = f"main: {{in_flight_max: 64, {batching}, engines: [{{profile: tiny, call_time: 4ms}}]}}"
    settings = scenario_of(text.replace("main: {in_flight_max: 8, engines: [tiny, tiny]}", pool))

    [engine], [traffic] = settings.engines, settings.traffic
    assert engine.call_ns == 4 * MILLISECOND
    assert engine.batching == BatchRules(delay_ns_max=Duration(2 * MILLISECOND), calls_max=2)
    assert isinstance(traffic, RateTraffic)
    assert (traffic.api, traffic.output) == (Api.EMBEDDINGS, Uniform(0, 0))
