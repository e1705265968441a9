"""Is a scenario's file read as people mean it?"""

from pathlib import Path

import pytest

from headgate.config.scenarios.load import parse
from headgate.config.scenarios.settings import (
    CallerSettings,
    CrashSettings,
    HangSettings,
    LengthSettings,
    PoissonSettings,
    RandomFaultSettings,
    ScenarioSettings,
    ServeGenSettings,
    SlowSettings,
    TraceSettings,
)
from headgate.model.engine_profile import PROFILES
from headgate.model.limits import Limits
from headgate.model.policy import (
    AdmissionRules,
    HeadroomRules,
    HealthRules,
    LadderRules,
    Model,
    RetryRules,
    RoutingRules,
    RungRule,
    ServiceClass,
    SheddingRules,
)
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import MINUTE, SECOND
from tests.config.scenario_builders import SCHEDULERS, small_with_traffic
from tests.config.scenario_builders import scenario_of as read

TINY = PROFILES["tiny"]


def scenario_of(text: str, folder: Path | None = None, data: Path | None = None) -> ScenarioSettings:
    return read(text, folder or Path("scenarios"), {} if data is None else {"HEADGATE_DATA": str(data)})


def small(*lines: str) -> str:
    return small_with_traffic("{rate: 5, for: 60s, classes: batch, prompt: 100, output: 10}", *lines)


def test_the_shortest_scenario_is_filled_up_with_defaults() -> None:
    settings = scenario_of(small())

    assert (settings.title, settings.scheduler, settings.cap, settings.duration_ns) == ("small", "headgate", None, None)
    assert [each.name for each in settings.policy.classes] == ["interactive", "long", "batch"]
    assert (settings.policy.retry, settings.policy.health) == (RetryRules(), HealthRules())
    assert settings.callers["batch"] == CallerSettings(
        ttft_ns=None, tpot_ns=None, e2e_ns=None, leave_ns=None, retries=0, stream=True
    )
    assert settings.traffic == (
        PoissonSettings(
            rate=5.0,
            shift_ns=0,
            length_ns=MINUTE,
            prompt=LengthSettings(least=100, most=100),
            output=LengthSettings(least=10, most=10),
            classes=(("batch", 1.0),),
            tenants=(("everyone", 1.0),),
            tenants_like=None,
        ),
    )


def test_classes_retry_and_health_are_those_of_the_gateway() -> None:
    settings = scenario_of(
        small(
            "classes: {batch: {queue_wait_max: 5m}, urgent: {band: 0, caps: {n: 1}}}",
            "retry: {attempts_max: 1}",
            "health: {eject: 3s}",
        )
    )

    batch, urgent = settings.policy.classes
    assert (batch.band, batch.queue_wait_ns_max, batch.unnamed) == (2, 5 * MINUTE, False)
    assert isinstance(urgent, ServiceClass)
    assert urgent.caps.n == 1
    assert settings.policy.retry.attempts_max == 1
    assert settings.policy.health.eject_ns == 3 * SECOND


def test_one_model_is_served_by_all_pools() -> None:
    settings = scenario_of(small().replace("pools:", "pools:\n  other: {in_flight_max: 1, engines: tiny}"))

    [model] = settings.policy.models
    assert (model.name, model.pools) == (settings.model, ("other", "main"))
    assert settings.policy.tenants == ()


def test_engines_are_numbered_through_their_pool_and_may_differ_from_their_profile() -> None:
    settings = scenario_of(
        """
        pools:
          main:
            in_flight_max: 8
            engines:
              - {profile: tiny, count: 2}
              - {profile: tiny, kv_tokens: 8200, block_tokens: 32, in_flight_max: 4, starts_at: 5s, cold_start: 1m}
        traffic: {rate: 5, for: 60s, classes: batch, prompt: 100, output: 10}
        """.replace("traffic: {", "traffic:\n          - {")
    )

    first, second, third = settings.engines
    assert [each.id for each in settings.engines] == ["main/0", "main/1", "main/2"]
    assert (first.in_flight_max, third.in_flight_max) == (8, 4)
    assert second.size.kv_blocks == TINY.kv_blocks
    assert (third.size.kv_blocks, third.size.block_tokens) == (256, 32)
    assert (third.starts_at, third.cold_start_ns) == (5 * SECOND, MINUTE)


def test_the_scheduler_knows_what_its_engines_are() -> None:
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


def test_where_engines_differ_the_first_is_as_fast_as_all_and_the_smallest_holds_as_much() -> None:
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
def test_the_scheduler_may_be_told_wrongly(written: str, step_ps: int, attention_ps: int, chunk_tokens: int) -> None:
    beliefs = f"speed: {written}, kv_tokens: 99, prompt_tokens_max: 50, output_tokens_min: 5"
    settings = scenario_of(small().replace("in_flight_max: 8", f"in_flight_max: 8, {beliefs}"))

    [pool] = settings.policy.pools
    speed = pool.speed
    assert (speed.step_ps, speed.attention_ps, speed.chunk_tokens) == (step_ps, attention_ps, chunk_tokens)
    assert (pool.kv_tokens, pool.prompt_tokens_max, pool.output_tokens_min) == (99, 50, 5)
    assert settings.engines[0].size.chunk_tokens == TINY.chunk_tokens


def test_a_class_promises_what_its_callers_want_unless_it_says_otherwise() -> None:
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


def test_models_tenants_and_all_rules_are_those_of_the_gateway() -> None:
    settings = scenario_of(
        small(
            "models: {good: {pools: main, rungs: [{pools: main, plans: free}], fallbacks: other}, other: main}",
            "tenants: {a/b: {weight: 200, plan: free, limits: {concurrency: 3}}}",
            "headroom: {kv_percent: 90}",
            "admission: {certainty_percent: 200}",
            "routing: {stale_after: 5s}",
            "shedding: {enabled: false}",
            "ladder: {level_max: 2}",
            "fairness_depth: 2",
        )
    )

    policy = settings.policy
    assert settings.model == "good"
    assert policy.models == (
        Model("good", ("main",), rungs=(RungRule(("main",), plans=(Plan.FREE,)),), fallbacks=("other",)),
        Model("other", ("main",)),
    )
    assert policy.tenants == (Tenant("a/b", weight=200, plan=Plan.FREE, limits=Limits(concurrency=3)),)
    assert policy.headroom == HeadroomRules(kv_percent=90)
    assert policy.admission == AdmissionRules(certainty_percent=200)
    assert policy.routing == RoutingRules(stale_ns=5 * SECOND)
    assert policy.shedding == SheddingRules(enabled=False)
    assert policy.ladder == LadderRules(level_max=2)
    assert policy.fairness_depth == 2


def test_callers_say_what_they_want() -> None:
    settings = scenario_of(
        small(
            "callers:",
            "  batch: {ttft: 2s, tpot: 100ms, e2e: 1m, leave_after: 10s, retries: 2}",
            "  long: {e2e: 1m, stream: false}",
        )
    )

    assert settings.callers["batch"] == CallerSettings(
        ttft_ns=2 * SECOND,
        tpot_ns=SECOND // 10,
        e2e_ns=MINUTE,
        leave_ns=10 * SECOND,
        retries=2,
        stream=True,
    )
    assert settings.callers["long"] == CallerSettings(
        ttft_ns=None, tpot_ns=None, e2e_ns=MINUTE, leave_ns=None, retries=0, stream=False
    )


def test_the_gateway_looks_as_often_as_said() -> None:
    settings = scenario_of(small("probe_every: 2s", "scrape_every: 50ms", "progress_every: 1s"))

    assert (settings.probe_every_ns, settings.scrape_every_ns) == (2 * SECOND, SECOND // 20)
    assert settings.progress_every_ns == SECOND


def test_a_scheduler_may_have_a_cap() -> None:
    settings = scenario_of(small("scheduler: {name: static-cap, cap: 48, waiting_max: 7}"))

    assert (settings.scheduler, settings.cap, settings.waiting_max) == ("static-cap", 48, 7)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("200", LengthSettings(least=200, most=200)),
        ("200:800", LengthSettings(least=200, most=800)),
        ("{between: 200:800}", LengthSettings(least=200, most=800)),
        ("{median: 100, p95: 400, most: 900}", LengthSettings(least=1, most=900, median=100, p95=400)),
    ],
)
def test_lengths_are_even_or_have_a_long_tail(text: str, lengths: LengthSettings) -> None:
    settings = scenario_of(small_with_traffic(f"{{rate: 5, for: 60s, classes: batch, prompt: {text}, output: 10}}"))

    [traffic] = settings.traffic
    assert isinstance(traffic, PoissonSettings)
    assert traffic.prompt == lengths


def test_shares_are_weights_or_percentages() -> None:
    settings = scenario_of(
        small_with_traffic(
            "{rate: 5, for: 60s, classes: {batch: 30%, long: 0.7}, tenants: {a: 3, b: 1}, prompt: 9, output: 9}"
        )
    )

    [traffic] = settings.traffic
    assert isinstance(traffic, PoissonSettings)
    assert traffic.classes == (("batch", 0.3), ("long", 0.7))
    assert traffic.tenants == (("a", 3.0), ("b", 1.0))


def test_drawn_traffic_lasts_to_the_end_of_the_run() -> None:
    settings = scenario_of(
        small_with_traffic("{rate: 5, shift: 20s, classes: batch, prompt: 100, output: 10}", "duration: 60s")
    )

    [traffic] = settings.traffic
    assert isinstance(traffic, PoissonSettings)
    assert (traffic.shift_ns, traffic.length_ns) == (20 * SECOND, 40 * SECOND)


def test_a_trace_is_a_path_beside_the_scenario_or_a_name_below_the_data(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for name in ("mine.csv", "traces/public.jsonl.gz", "traces/other.csv"):
        (tmp_path / name).touch()

    settings = scenario_of(
        small_with_traffic("{trace: mine.csv, classes: batch}", "{trace: public, tenants_like: other, classes: long}"),
        folder=tmp_path,
        data=tmp_path,
    )

    beside, below = settings.traffic
    assert isinstance(beside, TraceSettings)
    assert isinstance(below, TraceSettings)
    assert (beside.path, beside.tenants, beside.tenants_like) == (tmp_path / "mine.csv", None, None)
    assert (below.path, below.tenants_like) == (tmp_path / "traces/public.jsonl.gz", tmp_path / "traces/other.csv")


def test_a_trace_may_be_cut_moved_thinned_and_hurried(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").touch()

    settings = scenario_of(
        small_with_traffic(
            "{trace: mine.csv, tenants: a, start: 10m, for: 5m, shift: 77s, jitter: 3s, speed_up: 17.5, keep: 5.5%}"
        ),
        folder=tmp_path,
    )

    assert settings.traffic == (
        TraceSettings(
            place=f"{tmp_path / 'small.yaml'}:4: traffic[0]",
            path=tmp_path / "mine.csv",
            classes=None,
            tenants=(("a", 1.0),),
            tenants_like=None,
            speed_up=17.5,
            shift_ns=77 * SECOND,
            jitter_ns=3 * SECOND,
            keep=0.055,
            start_ns=10 * MINUTE,
            length_ns=5 * MINUTE,
        ),
    )


def test_servegen_is_two_files(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    rates, lengths = "traces/servegen_m_rates.csv.gz", "traces/servegen_m_lengths.jsonl.gz"
    for name in (rates, lengths):
        (tmp_path / name).touch()

    by_name, by_path = scenario_of(
        small_with_traffic("{servegen: m, classes: batch}", "{servegen: ./traces/servegen_m, classes: batch}"),
        folder=tmp_path,
        data=tmp_path,
    ).traffic

    assert isinstance(by_name, ServeGenSettings)
    assert (by_name.rates, by_name.lengths) == (tmp_path / rates, tmp_path / lengths)
    assert by_path == by_name


def test_faults_name_engines_or_whole_pools() -> None:
    settings = scenario_of(
        small(
            "faults:",
            "  - {crash: main, at: 1m, back_after: 30s}",
            "  - {hang: [main/1], at: 90s, for: 20s}",
            "  - {slow: main/0, at: 10s, for: 1m, speed: 0.3}",
            "  - random: {crash: 2, slow: 1, for_min: 1s, for_max: 2s, speed_max: 0.2}",
        )
    )

    assert settings.faults == (
        CrashSettings("main/0", MINUTE, 30 * SECOND),
        CrashSettings("main/1", MINUTE, 30 * SECOND),
        HangSettings("main/1", 90 * SECOND, 20 * SECOND),
        SlowSettings("main/0", 10 * SECOND, MINUTE, 0.3),
        RandomFaultSettings(
            crashes=2, hangs=0, slows=1, lasts_ns_min=SECOND, lasts_ns_max=2 * SECOND, speed_min=0.1, speed_max=0.2
        ),
    )


@pytest.mark.parametrize(
    ("at", "warnings"),
    [
        (
            "69s",
            ["small.yaml:6: faults[0].crash[0]: does nothing to main/2 and 1 more, which is up from 70 s on; raise at"],
        ),
        ("70s", []),
    ],
)
def test_a_fault_before_its_engine_is_up_is_a_warning(at: str, warnings: list[str]) -> None:
    later = "{profile: tiny, count: 2, starts_at: 60s, cold_start: 10s}"
    text = small("faults:", f"  - {{crash: main, at: {at}, back_after: 1s}}").replace("tiny]", f"tiny, {later}]")

    assert [each.removeprefix("scenarios/") for each in scenario_of(text).warnings] == warnings


def test_the_name_of_the_file_is_the_title_where_there_is_none() -> None:
    parsed = parse(small("title: Mine"), Path("a/b.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)
    unnamed = parse(small(), Path("a/b.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert (parsed.title, unnamed.title) == ("Mine", "b")
