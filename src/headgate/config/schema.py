"""Schema of the configuration file.

Each section is a struct and each setting a field, documented in docs/reference/configuration.md. A field's type
determines how its text is parsed (quantities.py). Defaults are in the core's units.

A section with `SHORTHAND` may be written as just the value of that setting: `m: small` means `m: {pools: [small]}`.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from headgate.config.setting_types import (
    DEGRADATION_LEVELS,
    PPM_PER_PERCENT,
    PRESSURE_PER_PERCENT,
    UNLIMITED,
    AddressText,
    AdminKeyHash,
    BudgetUsd,
    Bytes,
    CollectorUrl,
    Count,
    CountCap,
    DatabaseUrl,
    Day,
    Days,
    Dollars,
    DurationOrZero,
    DurationTarget,
    EngineName,
    HistorySize,
    LargePercent,
    LargePercentCap,
    ObjectivePercent,
    Percent,
    Permissions,
    PortRange,
    Positive,
    PositiveCap,
    PositiveDuration,
    RecordsDirectory,
    Secret,
    ShortDuration,
    SpoolDirectory,
    StepDuration,
    StorageBytes,
    StoreUrl,
    Timestamp,
    Url,
    Usd,
    WebhookUrl,
)
from headgate.edge.options import EdgeLimits
from headgate.hosts.cell.options import CellOptions
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.policy import (
    AdmissionRules,
    BatchRules,
    DegradationRules,
    HeadroomRules,
    RoutingRules,
    SheddingRules,
)
from headgate.model.scaling import ScalingRules
from headgate.model.units import MINUTE, SECOND
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions

# Sources of the default values.
_HEADROOM, _ROUTING, _SHEDDING, _DEGRADATION = HeadroomRules(), RoutingRules(), SheddingRules(), DegradationRules()
_SCALING, _BATCHING, _EDGE = ScalingRules(), BatchRules(), EdgeLimits()
_CELL, _DATABASE, _LEDGER = CellOptions("", ""), DatabaseOptions("", ""), LedgerOptions("")
_TRACING, _RECORDS = TracingOptions(""), RecordsOptions("")


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    SHORTHAND: ClassVar[str | None] = None


class LimitsSection(Section, frozen=True):
    body_bytes_max: Bytes = _EDGE.body_bytes_max
    total_body_bytes_max: Bytes = _EDGE.total_body_bytes_max
    requests_open_max: Positive = _EDGE.requests_open_max
    connections_open_max: Positive = _EDGE.connections_open_max
    unauthenticated_connections_max: Positive = _EDGE.unauthenticated_connections_max
    header_bytes_max: Bytes = _EDGE.header_bytes_max
    header_count_max: Positive = _EDGE.header_count_max
    field_bytes_max: Bytes = _EDGE.field_bytes_max
    header_timeout: PositiveDuration = _EDGE.header_timeout_ns
    body_timeout: PositiveDuration = _EDGE.body_timeout_ns
    keepalive_timeout: PositiveDuration = _EDGE.keepalive_timeout_ns
    send_timeout: PositiveDuration = _EDGE.send_timeout_ns


class EndpointSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "url"

    url: Url
    name: str | None = None
    in_flight_max: Positive | None = None
    device: str | None = None
    zone: str | None = None


class SpeedSection(Section, frozen=True):
    """Engine speed. Omitted values come from `profile` or have their defaults (speeds.py)."""

    SHORTHAND: ClassVar[str | None] = "profile"

    profile: str | None = None
    step: StepDuration | None = None
    prefill_token: ShortDuration | None = None
    decode_sequence: ShortDuration | None = None
    kv_token: ShortDuration | None = None
    attention: ShortDuration | None = None
    chunk_tokens: Positive | None = None


class FleetSection(Section, frozen=True):
    """A pool's fleet. Each fleet type has its own settings and defaults (fleets.py)."""

    SHORTHAND: ClassVar[str | None] = "kind"

    kind: str = "static"
    name: str | None = None
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    nameserver: AddressText | None = None
    resolve_interval: PositiveDuration | None = None
    misses_max: Positive | None = None
    empty_after: PositiveDuration | None = None
    not_ready_name: str | None = None
    command: list[str] | None = None
    environment: dict[str, Secret] | None = None
    working_directory: str | None = None
    log_directory: str | None = None
    port_range: PortRange | None = None
    python: str | None = None
    address: str | None = None
    cpus: Annotated[float, Meta(ge=0.0)] | None = None
    gpus: Annotated[float, Meta(ge=0.0)] | None = None
    resources: dict[str, Annotated[float, Meta(gt=0.0)]] | None = None
    endpoint_count: Count | None = None
    start_timeout: PositiveDuration | None = None
    stop_timeout: DurationOrZero | None = None
    restart_backoff: PositiveDuration | None = None
    restart_backoff_max: PositiveDuration | None = None
    device: str | None = None
    zone: str | None = None


class CalendarEventSection(Section, frozen=True):
    name: Annotated[str, Meta(extra={"next": "set the name of the event, such as launch"})]
    starts_at: Timestamp
    ends_at: Timestamp
    endpoints_min: Annotated[int, Meta(ge=1, extra={"next": "set the minimum number of endpoints during the event"})]


class ScalingSection(Section, frozen=True):
    endpoints_max: Annotated[int, Meta(ge=1, extra={"next": "set the maximum number of endpoints"})]
    endpoints_min: Count = _SCALING.endpoints_min
    warm_endpoints_min: Count = _SCALING.warm_endpoints_min
    target_utilization_percent: Annotated[int, Meta(ge=1, le=150)] = _SCALING.target_utilization_percent
    target_kv_percent: Annotated[int, Meta(ge=1, le=100)] = _SCALING.target_kv_percent
    period: PositiveDuration = _SCALING.period_ns
    cold_start: PositiveDuration = _SCALING.cold_start_ns
    scale_down_stabilization: DurationOrZero = _SCALING.scale_down_stabilization_ns
    scale_down_percent: Annotated[int, Meta(ge=1, le=100)] = _SCALING.scale_down_percent
    panic_threshold_percent: Annotated[int, Meta(ge=100, le=10_000)] = _SCALING.panic_threshold_percent
    scale_to_zero_after: PositiveDuration = _SCALING.scale_to_zero_after_ns
    held_requests_max: Positive = _SCALING.held_requests_max
    endpoint_usd_per_hour: Dollars = 0.0
    usd_per_hour_max: Dollars | None = None
    calendar: list[CalendarEventSection] = []
    correction_percent_min: Annotated[int, Meta(ge=10, le=100)] = _SCALING.correction_percent_min
    correction_percent_max: Annotated[int, Meta(ge=100, le=1_000)] = _SCALING.correction_percent_max


class BatchingSection(Section, frozen=True):
    batch_size_max: Annotated[int, Meta(ge=2, le=2_048)] = _BATCHING.batch_size_max
    preferred_batch_sizes: list[int] = []
    delay_max: DurationOrZero = _BATCHING.delay_ns_max
    delay_ttft_percent_max: Percent = _BATCHING.delay_ttft_percent_max
    tokens_max: Positive = _BATCHING.tokens_max
    calls_per_request_max: Annotated[int, Meta(ge=1, le=64)] = _BATCHING.calls_per_request_max
    calls_max: Positive | None = _BATCHING.calls_max


class PriceSection(Section, frozen=True, rename={"since": "from"}):
    """Price per endpoint hour or per token, never both (money.py)."""

    since: Day | None = None
    per_hour: Usd | None = None
    kind: str | None = None
    input_per_1m_tokens: Usd | None = None
    cached_per_1m_tokens: Usd | None = None
    output_per_1m_tokens: Usd | None = None


class BudgetSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "usd"

    usd: BudgetUsd
    kind: str = "hard"


class BudgetsSection(Section, frozen=True):
    day: BudgetSection | None = None
    month: BudgetSection | None = None


class PoolSection(Section, frozen=True):
    engine: EngineName
    endpoints: list[EndpointSection] = []
    fleet: FleetSection = FleetSection()
    scaling: ScalingSection | None = None
    batching: BatchingSection | None = None
    in_flight_max: Positive | None = None
    served_model: str | None = None
    api_key: Secret | None = None
    warm_up: DurationOrZero = 30 * SECOND
    forward_priority: bool = False
    always_stream_upstream: bool = False
    gpu_metrics_port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    speed: SpeedSection = SpeedSection()
    kv_tokens: Positive | None = None
    prompt_tokens_min: Count = 0
    prompt_tokens_max: Positive | None = None
    output_tokens_min: Count = 0
    output_tokens_max: Positive | None = None
    prices: Annotated[list[PriceSection], Meta(extra={"alone": True})] = []


class TierSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "pools"

    pools: Annotated[list[str], Meta(extra={"next": "list the pools of the model that serve this tier"})]
    classes: list[str] = []
    plans: list[str] = []
    prompt_tokens_max: Positive | None = None
    name: str | None = None


class ModelSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "pools"

    pools: Annotated[list[str], Meta(extra={"next": "list the pools that serve this model"})]
    tiers: list[TierSection] = []
    fallbacks: list[str] = []


class CapsSection(Section, frozen=True):
    """A class's caps. An omitted cap is inherited from the default class of the same name, or else from caps.py."""

    prompt_tokens: PositiveCap | None = None
    trim_prompt: bool | None = None
    output_tokens: PositiveCap | None = None
    n: PositiveCap | None = None
    best_of: PositiveCap | None = None
    logprobs: CountCap | None = None
    prompt_logprobs: CountCap | None = None
    reasoning_effort: str | None = None
    image_detail: str | None = None
    prompts: PositiveCap | None = None
    inputs: PositiveCap | None = None


class DegradationStepSection(Section, frozen=True):
    """Changes that apply to a class from a given degradation level upward. Omitted settings are unchanged."""

    level: Annotated[int, Meta(ge=1, le=DEGRADATION_LEVELS, extra={"next": "set the degradation level, 1 to 6"})]
    caps: CapsSection = CapsSection()
    model: str | None = None


class StageBudgetSection(Section, frozen=True):
    """Time budget for each stage of a request. Stages without a budget are not checked (observability.py)."""

    ingress: PositiveDuration | None = None
    auth: PositiveDuration | None = None
    classify: PositiveDuration | None = None
    queue: PositiveDuration | None = None
    route: PositiveDuration | None = None
    connect: PositiveDuration | None = None
    prefill: PositiveDuration | None = None
    decode: PositiveDuration | None = None
    post_processing: PositiveDuration | None = None
    settle: PositiveDuration | None = None


class ObjectivesSection(Section, frozen=True):
    """A class's monthly objectives, on which its alerts are based (observability.py)."""

    ttft_percent: ObjectivePercent | None = None
    duration: PositiveDuration | None = None
    duration_percent: ObjectivePercent | None = None
    availability_percent: ObjectivePercent | None = None
    cost_per_1k_tokens: Usd | None = None


class ClassSection(Section, frozen=True):
    """Service class. Omitted settings come from the default class of this name or have their defaults (classes.py)."""

    priority_band: Count | None = None
    service_tiers: list[str] | None = None
    prompt_tokens_max: Positive | None = None
    accepts_unclassified: bool | None = None
    pools: list[str] | None = None
    queue_wait_max: PositiveDuration | None = None
    queue_length_max: Positive | None = None
    queue_length_per_tenant_max: Positive | None = None
    first_token_timeout: PositiveDuration | None = None
    stream_idle_timeout: PositiveDuration | None = None
    attempt_timeout: PositiveDuration | None = None
    caps: CapsSection = CapsSection()
    ttft: DurationTarget | None = None
    tpot: DurationTarget | None = None
    min_share_percent: Percent | None = None
    reserve_percent: Percent | None = None
    optimize_for: str | None = None
    degradation_steps: list[DegradationStepSection] | None = None
    hedging: bool | None = None
    cold_start_wait_max: PositiveDuration | None = None
    budgets: BudgetsSection = BudgetsSection()
    cost_per_request_max: Usd | None = None
    cost_per_unit_max: Usd | None = None
    stage_budget: StageBudgetSection = StageBudgetSection()
    objectives: ObjectivesSection = ObjectivesSection()


class ClassRuleSection(Section, frozen=True):
    class_name: Annotated[str, Meta(extra={"next": "set the class of the matching requests"})] = field(name="class")
    plans: list[str] = []
    tenants: list[str] = []
    stream: bool | None = None
    apis: list[str] = []
    metadata: dict[str, list[str]] = {}
    prompt_tokens_max: Positive | None = None


class TenantLimitsSection(Section, frozen=True):
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    concurrency: Positive | None = None


class TenantSection(Section, frozen=True):
    keys: list[Secret] = []
    classes: list[str] = []
    models: list[str] = []
    weight: Positive = 100
    plan: str = "standard"
    limits: TenantLimitsSection = TenantLimitsSection()
    budgets: BudgetsSection = BudgetsSection()


class RetrySection(Section, frozen=True):
    attempts_max: Positive = 3
    tenant_budget_percent: Percent = 10
    tenant_budget_burst: Count = 10
    timeout_cost: Positive = 2
    pool_budget_percent: Percent = 20
    pool_budget_window: PositiveDuration = 10 * SECOND
    pool_retries_min: Count = 10


class HealthSection(Section, frozen=True):
    consecutive_failures_max: Positive = 3
    stall_timeout: PositiveDuration = 30 * SECOND
    ejection_time: PositiveDuration = 10 * SECOND
    ejection_time_max: PositiveDuration = 5 * MINUTE
    slow_start: DurationOrZero = 10 * SECOND
    zone_ejection_percent: Percent = 60


class HeadroomSection(Section, frozen=True):
    pending_prefill_percent: LargePercent = _HEADROOM.pending_prefill_percent
    measured_tpot_percent: LargePercent = _HEADROOM.measured_tpot_percent
    predicted_tpot_percent: LargePercent = _HEADROOM.predicted_tpot_percent
    kv_percent: Percent = _HEADROOM.kv_percent
    long_prompt_tokens: Positive = _HEADROOM.long_prompt_tokens
    long_lane_percent: Percent = _HEADROOM.long_lane_percent


class AdmissionSection(Section, frozen=True):
    predicted_wait_percent_max: LargePercentCap = AdmissionRules().predicted_wait_percent_max or UNLIMITED


class RoutingSection(Section, frozen=True):
    cross_zone_penalty: DurationOrZero = _ROUTING.cross_zone_penalty_ns
    metrics_stale_after: PositiveDuration = _ROUTING.metrics_stale_ns
    prefix_affinity: bool = _ROUTING.prefix_affinity


class SheddingSection(Section, frozen=True):
    enabled: bool = _SHEDDING.enabled
    period: PositiveDuration = _SHEDDING.period_ns
    target_pressure_percent: LargePercent = _SHEDDING.target_pressure // PRESSURE_PER_PERCENT
    proportional_gain: Count = _SHEDDING.proportional_gain
    integral_gain: Count = _SHEDDING.integral_gain
    shed_percent_max: Percent = _SHEDDING.shed_percent_max
    arrival_window: HistorySize = _SHEDDING.arrival_window


class DegradationSection(Section, frozen=True):
    enabled: bool = _DEGRADATION.enabled
    escalate_above_percent: LargePercent = _DEGRADATION.escalate_above // PRESSURE_PER_PERCENT
    escalate_after: PositiveDuration = _DEGRADATION.escalate_after_ns
    recover_below_percent: LargePercent = _DEGRADATION.recover_below // PRESSURE_PER_PERCENT
    recover_after: PositiveDuration = _DEGRADATION.recover_after_ns
    level_max: Annotated[int, Meta(ge=0, le=DEGRADATION_LEVELS)] = _DEGRADATION.level_max
    downgrade_prompt_tokens_max: Count = _DEGRADATION.downgrade_prompt_tokens_max


class CellSection(Section, frozen=True):
    store: StoreUrl
    name: str = _CELL.name
    member_name: str | None = _CELL.member_name
    member_count: Positive = _CELL.member_count
    gateways_are_candidates: bool = _CELL.gateways_are_candidates


class DatabaseSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "url"

    url: DatabaseUrl
    poll_interval: PositiveDuration = _DATABASE.poll_interval_ns


class LedgerSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "spool_directory"

    spool_directory: SpoolDirectory
    spool_bytes_max: StorageBytes = _LEDGER.spool_bytes_max
    retention: Days = _LEDGER.retention_days
    metadata_keys: list[str] = []
    unit_key: str | None = None
    idle_cost: str = "platform"
    on_disk_failure: str = "serve"


class NotificationsSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "webhook"

    webhook: WebhookUrl


class AdminKeySection(Section, frozen=True):
    key: AdminKeyHash
    permissions: Permissions


class TracingSection(Section, frozen=True):
    endpoint: CollectorUrl
    headers: dict[str, Secret] = {}
    sample_percent: Annotated[float, Meta(ge=0.0, le=100.0)] = _TRACING.sample_ppm / PPM_PER_PERCENT
    slowest_percent: Annotated[float, Meta(ge=0.0, le=100.0)] = _TRACING.slowest_ppm / PPM_PER_PERCENT
    traces_per_second_max: Positive = _TRACING.traces_per_second_max
    semantic_conventions: str = _TRACING.semantic_conventions


class RecordsSection(Section, frozen=True):
    directory: RecordsDirectory
    retention: PositiveDuration = _RECORDS.retention_ns
    bytes_max: StorageBytes = _RECORDS.bytes_max


class ConfigFile(Section, frozen=True):
    pools: Annotated[dict[str, PoolSection], Meta(extra={"next": "define at least one pool"})]
    models: Annotated[dict[str, ModelSection], Meta(extra={"next": "define at least one model with its pools"})]
    listen: AddressText = ("127.0.0.1", 8080)
    admin_listen: AddressText = ("127.0.0.1", 9090)
    admin_allowed_hosts: list[str] = []
    scaler_listen: AddressText | None = None
    drain_grace: DurationOrZero = 30 * SECOND
    error_docs_url: str | None = None
    quote_engine_errors: bool = False
    key_secret: Secret | None = None
    anonymous_tenant: str | None = None
    tenants: dict[str, TenantSection] = {}
    classes: dict[str, ClassSection] | None = None
    class_rules: list[ClassRuleSection] | None = None
    limits: LimitsSection = LimitsSection()
    retry: RetrySection = RetrySection()
    health: HealthSection = HealthSection()
    headroom: HeadroomSection = HeadroomSection()
    admission: AdmissionSection = AdmissionSection()
    routing: RoutingSection = RoutingSection()
    shedding: SheddingSection = SheddingSection()
    degradation: DegradationSection = DegradationSection()
    fairness_depth: Positive = 1
    zone: str | None = None
    cell: CellSection | None = None
    database: DatabaseSection | None = None
    admin_keys: dict[str, AdminKeySection] = {}
    ledger: LedgerSection | None = None
    tracing: TracingSection | None = None
    records: RecordsSection | None = None
    notifications: NotificationsSection | None = None
    state_directory: str | None = None
