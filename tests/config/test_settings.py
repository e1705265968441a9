"""Settings read from valid configuration files."""

from dataclasses import fields
from pathlib import Path

import pytest

from headgate.config.class_rules import DEFAULT_RULES
from headgate.config.classes import DEFAULT_CLASSES
from headgate.config.load import key_secret, load
from headgate.config.problems import ConfigErrors
from headgate.config.settings import AdapterSettings, Address, PoolSettings, Settings
from headgate.control.options import NotificationOptions
from headgate.edge.options import EdgeLimits
from headgate.fleets.options import EndpointOptions
from headgate.hosts.cell.options import CellOptions
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.engine_profile import PROFILES
from headgate.model.limits import Limits as TenantLimits
from headgate.model.money import NANO_USD_PER_USD, Budget, Period, Price, PriceKind
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    DegradationStep,
    HeadroomRules,
    HealthRules,
    Model,
    ModelTierRule,
    OptimizationGoal,
    Overflow,
    Policy,
    Pool,
    RetryRules,
    RoutingRules,
    ServiceClass,
    SheddingRules,
)
from headgate.model.routes import ModelRoute, RouteMatch, RouteMirror, Sticky
from headgate.model.scaling import ScalingRules
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import DataResidency, Plan, Tenant, tenant_table
from headgate.model.units import MILLISECOND, MINUTE, SECOND
from headgate.telemetry.options import Objectives
from tests.config.builders import ENGINES, SMALL, settings_of, small_with, small_with_classes

DIGEST = "ab" * 32

WHOLE = f"""
listen: 0.0.0.0:8000
admin_listen: "[::1]:9000"
admin_allowed_hosts: [headgate.internal]
scaler_listen: 127.0.0.1:9001
drain_grace: 1m
key_secret: ${{SECRET}}
anonymous_tenant: demo
limits:
  body_bytes_max: 1MiB
  total_body_bytes_max: 4MiB
  unverified_body_bytes_max: 2MiB
  requests_open_max: 10
  connections_open_max: 20
  header_bytes_max: 16KiB
  unauthenticated_connections_max: 15
  header_count_max: 50
  field_bytes_max: 8KiB
  header_timeout: 6s
  body_timeout: 7s
  keepalive_timeout: 8s
  send_timeout: 5s
pools:
  large:
    engine: vllm
    served_model: ${{ORG}}/big
    in_flight_max: ${{PLACES}}
    warm_up: 2m
    api_key: ${{ENGINE_KEY}}
    forward_priority: true
    adapters: [{{name: lora, model: tuned, source: /lora}}]
    discover_adapters: true
    max_lora: 2
    scaling: {{endpoints_min: 0, endpoints_max: 2, cold_start: 5s, held_requests_max: 7}}
    endpoints: [http://GPU-1:8000/, {{url: https://gpu-2, name: gpu-2, in_flight_max: 8, device: d-1, zone: b}}]
    speed: {{profile: tiny, step: 13.2ms, attention: 0.28ns}}
    kv_tokens: 400_000
    prompt_tokens_min: 10
    prompt_tokens_max: 20
    output_tokens_min: 30
    output_tokens_max: 40
    prices:
      - {{per_hour: 2.5, kind: reserved}}
      - {{from: 2026-01-01, input_per_1m_tokens: 0.15, cached_per_1m_tokens: 0.075, output_per_1m_tokens: 0.6}}
  spare: {{engine: openai_compatible, served_model: big, in_flight_max: 1, endpoints: "http://[fd00::1]:80"}}
  cloud: {{engine: openai_compatible, served_model: big, in_flight_max: 1, endpoints: "http://cloud",
    api_key: "${{ENGINE_KEY}}", api_key_header: X-API-Key}}
models:
  big:
    pools: [large, spare]
    tiers:
      - {{pools: large, classes: chat, plans: [critical, standard], prompt_tokens_max: 1000, name: quick}}
      - spare
    fallbacks: [other]
    routes: [{{pools: large, weight: 2, name: new, match: {{plans: free}}, mirror: {{pools: spare, percent: 7}}}}]
    sticky: user
    overflow: {{pools: cloud, after: 2s, classes: [chat]}}
  other: spare
classes:
  chat:
    priority_band: 0
    service_tiers: [priority]
    prompt_tokens_max: 1_000
    accepts_unclassified: true
    pools: large
    queue_wait_max: 250ms
    queue_length_max: 20
    queue_length_per_tenant_max: 5
    first_token_timeout: 1s
    stream_idle_timeout: 2s
    attempt_timeout: 3s
    caps:
      prompt_tokens: 4_000
      trim_prompt: true
      output_tokens: ${{OUTPUT}}
      n: 2
      best_of: 3
      logprobs: 0
      prompt_logprobs: unlimited
      reasoning_effort: low
      image_detail: auto
      prompts: 16
      inputs: 512
    ttft: 2s
    tpot: 100ms
    e2e: 20s
    min_share_percent: 20
    reserve_percent: 10
    optimize_for: cost
    budgets: {{day: 100, month: {{usd: 2_000, kind: soft}}}}
    cost_per_request_max: 0.02
    cost_per_unit_max: 0.5
    hedging: true
    cold_start_wait_max: 4s
    data_residency: local
    degradation_steps:
      - {{level: 4, model: other}}
      - {{level: 2, caps: {{output_tokens: 100, reasoning_effort: none, image_detail: low}}}}
  batch: {{priority_band: 7, caps: {{n: "${{CAP}}", best_of: unlimited}}}}
tenants:
  demo: {{}}
  acme/search:
    keys: ["hmac-sha256:{DIGEST}"]
    classes: [chat]
    models: [big]
    weight: 300
    plan: critical
    data_residency: local
    limits: {{requests_per_minute: 60, tokens_per_minute: 1_000_000, concurrency: 7}}
    budgets: {{month: {{usd: 0.3, kind: hard}}}}
retry:
  attempts_max: 2
  tenant_budget_percent: 5
  tenant_budget_burst: 1
  timeout_cost: 3
  pool_budget_percent: 30
  pool_budget_window: 20s
  pool_retries_min: 2
health: {{consecutive_failures_max: 1, stall_timeout: 1s, ejection_time: 2s, ejection_time_max: 3s}}
headroom:
  pending_prefill_percent: 150
  measured_tpot_percent: 1
  predicted_tpot_percent: 2
  kv_percent: 3
  long_prompt_tokens: 4
  long_lane_percent: 5
admission: {{predicted_wait_percent_max: unlimited}}
routing:
  adapter_load_penalty: 1ms
  cross_zone_penalty: 0s
  metrics_stale_after: 1s
  prefix_affinity: false
  session_preference: 2s
  session_fields: [user]
shedding:
  enabled: true
  period: 50ms
  target_pressure_percent: 80
  proportional_gain: 1
  integral_gain: 2
  shed_percent_max: 50
  arrival_window: 100
degradation:
  enabled: false
  escalate_above_percent: 90
  escalate_after: 1s
  recover_below_percent: 50
  recover_after: 2s
  level_max: 3
  downgrade_prompt_tokens_max: 4
fairness_depth: 2
zone: a
cell: {{store: redis://cache, name: east, member_name: gw-1, member_count: 4, gateways_are_candidates: false}}
database: postgresql://db/headgate
ledger:
  spool_directory: /var/spool/headgate
  spool_bytes_max: 2GiB
  retention: 30d
  metadata_keys: [conversation, feature]
  unit_key: conversation
  idle_cost: shared
notifications: {{webhook: https://hooks.example.com/T0/secret}}
error_docs_url: https://docs.example.com/errors/
quote_engine_errors: true
"""
ENVIRON = {
    "SECRET": "s" * 20,
    "ORG": "org",
    "PLACES": "64",
    "ENGINE_KEY": "e" * 20,
    "OUTPUT": "512",
    "CAP": "unlimited",
}


def test_every_setting_is_parsed() -> None:
    settings = settings_of(WHOLE, ENVIRON)

    assert settings == Settings(
        listen=Address("0.0.0.0", 8000),
        admin_listen=Address("::1", 9000),
        admin_allowed_hosts=("headgate.internal",),
        scaler_listen=Address("127.0.0.1", 9001),
        drain_grace_ns=60 * SECOND,
        limits=EdgeLimits(
            body_bytes_max=1024 * 1024,
            total_body_bytes_max=4 * 1024 * 1024,
            unverified_body_bytes_max=2 * 1024 * 1024,
            requests_open_max=10,
            connections_open_max=20,
            header_bytes_max=16 * 1024,
            unauthenticated_connections_max=15,
            header_count_max=50,
            field_bytes_max=8 * 1024,
            header_timeout_ns=6 * SECOND,
            body_timeout_ns=7 * SECOND,
            keepalive_timeout_ns=8 * SECOND,
            send_timeout_ns=5 * SECOND,
        ),
        key_secrets=(b"s" * 20,),
        key_secret_ids=settings.key_secret_ids,
        keys={bytes.fromhex(DIGEST): "acme/search"},
        anonymous_tenant="demo",
        error_docs_url="https://docs.example.com/errors",
        quote_engine_errors=True,
        pools=(
            PoolSettings(
                name="large",
                engine="vllm",
                served_model="org/big",
                endpoints=(
                    EndpointOptions("large/gpu-1:8000", "http://gpu-1:8000", 64),
                    EndpointOptions("large/gpu-2", "https://gpu-2", 8, device="d-1", zone="b"),
                ),
                api_key="e" * 20,
                forward_priority=True,
                adapters=(AdapterSettings("lora", "tuned", "/lora"),),
                discover_adapters=True,
                scaling=ScalingRules(endpoints_min=0, endpoints_max=2, cold_start_ns=5 * SECOND, held_requests_max=7),
            ),
            PoolSettings(
                name="spare",
                engine="openai_compatible",
                served_model="big",
                endpoints=(EndpointOptions("spare/[fd00::1]:80", "http://[fd00::1]:80", 1),),
            ),
            PoolSettings(
                name="cloud",
                engine="openai_compatible",
                served_model="big",
                endpoints=(EndpointOptions("cloud/cloud:80", "http://cloud", 1),),
                api_key="e" * 20,
                api_key_header="x-api-key",
            ),
        ),
        policy=Policy(
            classes=(
                ServiceClass(
                    "chat",
                    band=0,
                    service_tiers=("priority",),
                    prompt_tokens_max=1000,
                    accepts_unclassified=True,
                    pools=("large",),
                    queue_wait_ns_max=SECOND // 4,
                    queue_length_max=20,
                    queue_length_per_tenant_max=5,
                    first_token_ns_max=SECOND,
                    idle_ns_max=2 * SECOND,
                    total_ns_max=3 * SECOND,
                    caps=Caps(
                        prompt_tokens=4_000,
                        trim_prompt=True,
                        output_tokens=512,
                        n=2,
                        best_of=3,
                        logprobs=0,
                        prompt_logprobs=None,
                        reasoning_effort=ReasoningEffort.LOW,
                        image_detail=ImageDetail.AUTO,
                        prompts=16,
                        inputs=512,
                    ),
                    ttft_ns=2 * SECOND,
                    tpot_ns=SECOND // 10,
                    e2e_ns=20 * SECOND,
                    min_share_percent=20,
                    reserve_percent=10,
                    optimize_for=OptimizationGoal.COST,
                    degradation_steps=(
                        DegradationStep(
                            2,
                            Caps(
                                output_tokens=100,
                                n=None,
                                best_of=None,
                                logprobs=None,
                                prompt_logprobs=None,
                                reasoning_effort=ReasoningEffort.NONE,
                                image_detail=ImageDetail.LOW,
                                prompts=None,
                                inputs=None,
                            ),
                        ),
                        DegradationStep(4, model="other"),
                    ),
                    hedging=True,
                    cold_start_wait_ns_max=4 * SECOND,
                    data_residency=DataResidency.LOCAL,
                    budgets=(
                        Budget(Period.DAY, 100 * NANO_USD_PER_USD),
                        Budget(Period.MONTH, 2_000 * NANO_USD_PER_USD, hard=False),
                    ),
                    cost_per_request_max=20_000_000,
                    cost_per_unit_max=500_000_000,
                ),
                ServiceClass(
                    "batch",
                    band=7,
                    service_tiers=("flex",),
                    accepts_unclassified=False,
                    queue_wait_ns_max=600 * SECOND,
                    first_token_ns_max=300 * SECOND,
                    idle_ns_max=120 * SECOND,
                    total_ns_max=3600 * SECOND,
                    caps=Caps(n=None, best_of=None),
                    ttft_ns=600 * SECOND,
                    tpot_ns=SECOND,
                    ttft_assumed=True,
                    tpot_assumed=True,
                    min_share_percent=5,
                    optimize_for=OptimizationGoal.COST,
                ),
            ),
            tenants=tenant_table(
                (
                    Tenant("demo"),
                    Tenant(
                        "acme/search",
                        classes=("chat",),
                        models=("big",),
                        weight=300,
                        plan=Plan.CRITICAL,
                        data_residency=DataResidency.LOCAL,
                        limits=TenantLimits(requests_per_minute=60, tokens_per_minute=1_000_000, concurrency=7),
                        budgets=(Budget(Period.MONTH, 300_000_000),),
                    ),
                )
            ),
            pools=(
                Pool(
                    "large",
                    120 * SECOND,
                    speed=EngineSpeed(
                        step_ps=13_200_000_000,
                        prefill_token_ps=2_000_000,
                        decode_sequence_ps=5_000_000,
                        kv_token_ps=10_000,
                        attention_ps=280,
                        chunk_tokens=512,
                    ),
                    max_lora=2,
                    discovers_adapters=True,
                    kv_tokens=400_000,
                    prompt_tokens_min=10,
                    prompt_tokens_max=20,
                    output_tokens_min=30,
                    output_tokens_max=40,
                    hold_max=7,
                    cold_start_ns=5 * SECOND,
                    scales=True,
                    prices=(
                        Price(per_hour=2_500_000_000, kind=PriceKind.RESERVED),
                        Price(
                            1_767_225_600 * SECOND,
                            input_per_1m_tokens=150_000_000,
                            cached_per_1m_tokens=75_000_000,
                            output_per_1m_tokens=600_000_000,
                        ),
                    ),
                ),
                Pool("spare", speed_assumed=True),
                Pool("cloud", speed_assumed=True),
            ),
            models=(
                Model(
                    "big",
                    ("large", "spare"),
                    tiers=(
                        ModelTierRule(("large",), ("chat",), (Plan.CRITICAL, Plan.STANDARD), 1000, "quick"),
                        ModelTierRule(("spare",)),
                    ),
                    fallbacks=("other",),
                    routes=(
                        ModelRoute(
                            "new", ("large",), 2, RouteMatch(plans=(Plan.FREE,)), RouteMirror(("spare",), 70_000)
                        ),
                    ),
                    sticky=Sticky.USER,
                    overflow=Overflow(("cloud",), 2 * SECOND, ("chat",)),
                ),
                Model("other", ("spare",)),
                Model("tuned", ("large",), adapter="lora"),
            ),
            retry=RetryRules(
                attempts_max=2,
                credit_per_first_attempt=5,
                credit_burst=100,
                cost=100,
                timeout_cost=300,
                pool_budget_window_ns=20 * SECOND,
                pool_budget_percent=30,
                pool_retries_min=2,
            ),
            health=HealthRules(
                consecutive_failures_max=1, stall_ns_max=SECOND, ejection_ns=2 * SECOND, ejection_ns_max=3 * SECOND
            ),
            headroom=HeadroomRules(
                pending_prefill_percent=150,
                measured_tpot_percent=1,
                predicted_tpot_percent=2,
                kv_percent=3,
                long_prompt_tokens=4,
                long_lane_percent=5,
            ),
            admission=AdmissionRules(predicted_wait_percent_max=None),
            routing=RoutingRules(
                adapter_load_penalty_ns=MILLISECOND,
                cross_zone_penalty_ns=0,
                metrics_stale_ns=SECOND,
                prefix_affinity=False,
                session_preference_ns=2 * SECOND,
                session_fields=("user",),
            ),
            shedding=SheddingRules(
                enabled=True,
                period_ns=SECOND // 20,
                target_pressure=800,
                proportional_gain=1,
                integral_gain=2,
                shed_percent_max=50,
                arrival_window=100,
            ),
            degradation=DegradationRules(
                enabled=False,
                escalate_above=900,
                escalate_after_ns=SECOND,
                recover_below=500,
                recover_after_ns=2 * SECOND,
                level_max=3,
                downgrade_prompt_tokens_max=4,
            ),
            fairness_depth=2,
            unit_key="conversation",
        ),
        zone="a",
        cell=CellOptions(
            store="redis://cache:6379/0",
            store_shown="redis://cache:6379/0",
            name="east",
            member_name="gw-1",
            member_count=4,
            gateways_are_candidates=False,
        ),
        database=DatabaseOptions("postgresql://db/headgate", "postgresql://db/headgate", 5 * SECOND),
        ledger=LedgerOptions("/var/spool/headgate", 2 * 2**30, 30, ("conversation", "feature"), share_idle_cost=True),
        notifications=NotificationOptions("https://hooks.example.com/T0/secret", "https://hooks.example.com/***"),
        objectives={"chat": Objectives(duration_ns=20 * SECOND)},
        hash=settings.hash,
        warnings=settings.warnings,
    )


def test_omitted_settings_have_model_defaults() -> None:
    settings = settings_of(SMALL)

    assert settings.policy == Policy(
        classes=tuple(DEFAULT_CLASSES.values()),
        tenants=tenant_table((Tenant("demo"),)),
        pools=(Pool("small", speed_assumed=True),),
        models=(Model("smollm2", ("small",)),),
        class_rules=DEFAULT_RULES,
    )
    assert settings.zone == ""
    assert settings.cell is None
    assert settings.limits == EdgeLimits(
        body_bytes_max=32 * 1024 * 1024,
        total_body_bytes_max=1024 * 1024 * 1024,
        requests_open_max=20_000,
        connections_open_max=25_000,
        header_bytes_max=64 * 1024,
        unauthenticated_connections_max=4_096,
        header_count_max=100,
        field_bytes_max=4 * 1024,
        header_timeout_ns=10 * SECOND,
        body_timeout_ns=60 * SECOND,
        keepalive_timeout_ns=75 * SECOND,
        send_timeout_ns=30 * SECOND,
    )
    assert settings.pools[0].forward_priority is False
    assert settings.warnings == ()
    assert settings.key_secret is None


def test_new_class_has_model_defaults() -> None:
    settings = settings_of(small_with_classes("mine: {priority_band: 3}"))

    assert settings.policy.classes == (ServiceClass("mine", band=3),)


def test_class_with_default_name_inherits_its_settings() -> None:
    settings = settings_of(small_with_classes("interactive: {queue_wait_max: 1s}"))

    [interactive] = settings.policy.classes
    assert (interactive.queue_wait_ns_max, interactive.service_tiers) == (SECOND, ("priority", "fast"))


@pytest.mark.parametrize("written", ["", "n: ", "n: ~", "n: null"])
def test_empty_cap_uses_its_default(written: str) -> None:
    settings = settings_of(small_with_classes(f"mine: {{priority_band: 0, caps: {{{written}}}}}"))

    assert settings.policy.classes[0].caps == Caps()


def test_unlimited_removes_a_cap_and_none_is_a_reasoning_effort() -> None:
    settings = settings_of(
        small_with_classes(
            "a: {priority_band: 0, caps: {n: unlimited, best_of: unlimited, logprobs: unlimited, "
            "reasoning_effort: none}}",
            "b: {priority_band: 0, caps: {reasoning_effort: unlimited}}",
        )
    )

    assert [each.caps for each in settings.policy.classes] == [
        Caps(n=None, best_of=None, logprobs=None, reasoning_effort=ReasoningEffort.NONE),
        Caps(),
    ]


def test_every_policy_field_can_be_set() -> None:
    """Every field must be configurable."""
    policy = settings_of(WHOLE, ENVIRON).policy
    usual = settings_of(SMALL).policy
    large, big, chat = policy.pools[0], policy.models[0], policy.classes[0]
    (tenant, _), (usual_tenant,) = policy.tenants, usual.tenants
    parts = [
        (policy, usual),
        (tenant, usual_tenant),
        (tenant.limits, TenantLimits()),
        (large, Pool("usual")),
        (large.speed, EngineSpeed()),
        (big, Model("usual", ())),
        (big.tiers[0], ModelTierRule(())),
        (big.routes[0], ModelRoute("usual", ())),
        (chat, ServiceClass("usual", band=1, accepts_unclassified=False)),
        (policy.headroom, HeadroomRules()),
        (policy.admission, AdmissionRules()),
        (policy.routing, RoutingRules()),
        (policy.shedding, SheddingRules()),
        (policy.degradation, DegradationRules()),
    ]

    same = {
        f"{type(ours).__name__}.{each.name}"
        for ours, theirs in parts
        for each in fields(ours)
        if getattr(ours, each.name) == getattr(theirs, each.name)
    }
    # Shares of a limit are not settings: gateways without a scheduler compute them (core/policy_share.py). The fields
    # of `Policy` come from the database. A value counts as assumed if the file does not set it. Only models that the
    # file does not list under `models` have an adapter. Only the engine `provider` makes a pool hosted.
    # Only a trial replaces the limit of a pool's endpoints.
    assert same == {
        "Limits.share",
        "Limits.total_concurrency",
        "Limits.total_tokens_per_minute",
        "Model.adapter",
        "Policy.overrides",
        "Policy.tenants_loaded",
        "Pool.hosted",
        "Pool.in_flight_replacement",
        "Pool.speed_assumed",
        "ServiceClass.ttft_assumed",
        "ServiceClass.tpot_assumed",
    }


def test_speed_may_be_a_profile_name() -> None:
    settings = settings_of(SMALL.replace("in_flight_max: 4", "in_flight_max: 4, speed: h200-llama-8b"))

    profile, speed = PROFILES["h200-llama-8b"], settings.policy.pools[0].speed
    assert (speed.step_ps, speed.chunk_tokens) == (profile.step_ps, profile.chunk_tokens)
    assert speed.prefill_ps(1000) == profile.prefill_ps(1000, computed=0)


def test_speed_may_override_single_values() -> None:
    settings = settings_of(SMALL.replace("in_flight_max: 4", "in_flight_max: 4, speed: {step: 200ms}"))

    assert settings.policy.pools[0].speed == EngineSpeed(step_ps=200_000_000_000)


def targets_of(text: str) -> list[tuple[int | None, int | None, bool, bool]]:
    classes = settings_of(text).policy.classes
    return [(each.ttft_ns, each.tpot_ns, each.ttft_assumed, each.tpot_assumed) for each in classes]


def test_default_class_targets_are_marked_as_assumed() -> None:
    assert targets_of(SMALL) == [
        (2 * SECOND, 100 * MILLISECOND, True, True),
        (15 * SECOND, 200 * MILLISECOND, True, True),
        (10 * MINUTE, SECOND, True, True),
    ]


def test_target_in_the_file_replaces_the_default() -> None:
    text = small_with_classes("interactive: {ttft: 1s}", "long: {ttft: unlimited, tpot: unlimited}")

    assert targets_of(text) == [
        (SECOND, 100 * MILLISECOND, False, True),
        (None, None, False, False),
    ]


@pytest.mark.parametrize(("queue_wait", "ttft_s"), [("1m", 60), ("10s", 2), ("1s", 2)])
def test_default_target_equals_the_queue_wait_if_the_file_sets_a_longer_wait(queue_wait: str, ttft_s: int) -> None:
    [(ttft_ns, _, assumed, _)] = targets_of(small_with_classes(f"interactive: {{queue_wait_max: {queue_wait}}}"))

    assert (ttft_ns, assumed) == (ttft_s * SECOND, True)


def test_default_batch_target_equals_its_queue_wait() -> None:
    assert targets_of(small_with_classes("batch: {queue_wait_max: 1h}")) == [(60 * MINUTE, SECOND, True, True)]


@pytest.mark.parametrize(("speed", "assumed"), [("", True), ("speed: {step: 5ms},", False), ("speed: tiny,", False)])
def test_speed_is_assumed_unless_the_file_specifies_it(speed: str, assumed: bool) -> None:
    pool = settings_of(SMALL.replace("in_flight_max: 4,", f"in_flight_max: 4, {speed}")).policy.pools[0]

    assert pool.speed_assumed is assumed


def test_parent_tenant_does_not_require_a_key() -> None:
    text = SMALL.replace("demo: {}", "a: {limits: {concurrency: 9}}\n  a/b: {}").replace("tenant: demo", "tenant: a/b")

    settings = settings_of(text)

    assert (settings.warnings, settings.anonymous_tenant) == ((), "a/b")


def test_names_may_be_yaml_keywords() -> None:
    text = SMALL.replace("smollm2", "no").replace("demo", "1.0").replace("small", "off")

    settings = settings_of(text)

    assert (settings.policy.models[0].name, settings.anonymous_tenant, settings.pools[0].name) == ("no", "1.0", "off")


def test_yaml_anchors_are_supported() -> None:
    settings = settings_of(
        """
        pools:
          a: &pool {engine: vllm, in_flight_max: 4, endpoints: [http://a]}
          b: {<<: *pool, in_flight_max: 8, endpoints: [http://b]}
        models: {m: [a, b]}
        tenants: {demo: }
        anonymous_tenant: demo
        """
    )

    assert [(pool.engine, pool.endpoints[0].in_flight_max) for pool in settings.pools] == [("vllm", 4), ("vllm", 8)]


def test_first_of_several_merged_mappings_wins() -> None:
    settings = settings_of(
        """
        pools:
          a: &a {engine: vllm, in_flight_max: 4, endpoints: [http://a]}
          b: &b {<<: *a, in_flight_max: 8, endpoints: [http://b]}
          c: {<<: [{warm_up: 1s}, *b, *a], endpoints: [http://c]}
        models: {m: [a, b, c]}
        tenants: {demo: }
        anonymous_tenant: demo
        """
    )

    assert [pool.endpoints[0].in_flight_max for pool in settings.pools] == [4, 8, 8]
    assert settings.policy.pools[2].warm_up_ns == SECOND


def test_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text("\ufeff" + SMALL, encoding="utf-8")

    assert load(path, {}, engines=ENGINES, profiles=PROFILES) == settings_of(SMALL)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist; specify the configuration file with --config, or create one with `headgate init`"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_unreadable_file_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "headgate.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigErrors) as raised:
        load(path, {}, engines=ENGINES, profiles=PROFILES)

    assert str(raised.value) == f"{path}: {said}"


def test_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="cannot be read: Is a directory"):
        load(tmp_path, {}, engines=ENGINES, profiles=PROFILES)


def test_key_secret_is_read_from_an_incomplete_file(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text("key_secret: ${S}\npools: {small: {api_key: '${NOT_SET}'}}\n")

    assert key_secret(path, {"S": "x"}) == b"x"


def test_key_secret_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(small_with(""))

    assert key_secret(path, {}) is None
