"""What may stand in the file?

One struct per section, one field per setting; docs/reference/configuration.md says what each
means, and a test holds the two together. A field's type says how its text is read
(quantities.py) and its default is already in the unit of the core.

A section with `SHORT` may be written as that one setting alone: `smollm2: small` is
`smollm2: {pools: [small]}`.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from headgate.config.setting_types import (
    LEVELS,
    THOUSANDTHS,
    UNLIMITED,
    AddressText,
    AdminKey,
    BudgetUsd,
    Bytes,
    Collector,
    Count,
    CountCap,
    DatabaseUrl,
    Day,
    Days,
    Dollars,
    EngineName,
    Fine,
    FineStep,
    Lasting,
    LastingOrNone,
    LastingTarget,
    Moment,
    Objective,
    Part,
    Percent,
    Permissions,
    PortRange,
    Positive,
    PositiveCap,
    RecordsFolder,
    Remembered,
    Secret,
    Spool,
    SpoolBytes,
    StoreUrl,
    Url,
    Usd,
    Webhook,
)
from headgate.edge.options import EdgeLimits
from headgate.hosts.cell.options import CellOptions
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.policy import AdmissionRules, BatchRules, HeadroomRules, LadderRules, RoutingRules, SheddingRules
from headgate.model.scaling import ScalingRules
from headgate.model.units import MINUTE, SECOND
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions

# Their defaults are the defaults of the settings.
_HEADROOM, _ROUTING, _SHEDDING, _LADDER = HeadroomRules(), RoutingRules(), SheddingRules(), LadderRules()
_SCALING = ScalingRules()
_BATCHING = BatchRules()
_EDGE = EdgeLimits()
_CELL, _DATABASE, _LEDGER = CellOptions("", ""), DatabaseOptions("", ""), LedgerOptions("")
_TRACING, _RECORDS = TracingOptions(""), RecordsOptions("")
_PPM = 10_000
"""Parts per million in a percent."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    SHORT: ClassVar[str | None] = None


class LimitsSection(Section, frozen=True):
    body_bytes_max: Bytes = _EDGE.body_bytes_max
    bodies_bytes_max: Bytes = _EDGE.bodies_bytes_max
    requests_open_max: Positive = _EDGE.requests_open_max
    connections_open_max: Positive = _EDGE.connections_open_max
    unauthenticated_connections_max: Positive = _EDGE.unauthenticated_connections_max
    head_bytes_max: Bytes = _EDGE.head_bytes_max
    headers_max: Positive = _EDGE.headers_max
    field_bytes_max: Bytes = _EDGE.field_bytes_max
    head_max: Lasting = _EDGE.head_ns_max
    receive_max: Lasting = _EDGE.receive_ns_max
    idle_max: Lasting = _EDGE.idle_ns_max
    client_stall_max: Lasting = _EDGE.client_stall_ns_max


class EndpointSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "url"

    url: Url
    name: str | None = None
    in_flight_max: Positive | None = None
    device: str | None = None
    zone: str | None = None


class SpeedSection(Section, frozen=True):
    """Each number left out is that of the profile named in `like`, else the usual one (speeds.py)."""

    SHORT: ClassVar[str | None] = "like"

    like: str | None = None
    step: FineStep | None = None
    prefill_token: Fine | None = None
    decode_sequence: Fine | None = None
    kv_token: Fine | None = None
    attention: Fine | None = None
    chunk_tokens: Positive | None = None


class FleetSection(Section, frozen=True):
    """Which settings belong to which kind, and what each comes to where it is left out, is in fleets.py."""

    SHORT: ClassVar[str | None] = "kind"

    kind: str = "static"
    name: str | None = None
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    nameserver: AddressText | None = None
    every: Lasting | None = None
    misses_max: Positive | None = None
    empty_after: Lasting | None = None
    starting_name: str | None = None
    command: list[str] | None = None
    environment: dict[str, Secret] | None = None
    folder: str | None = None
    logs: str | None = None
    ports: PortRange | None = None
    python: str | None = None
    address: str | None = None
    cpus: Annotated[float, Meta(ge=0.0)] | None = None
    gpus: Annotated[float, Meta(ge=0.0)] | None = None
    resources: dict[str, Annotated[float, Meta(gt=0.0)]] | None = None
    endpoints: Count | None = None
    start_max: Lasting | None = None
    stop_max: LastingOrNone | None = None
    restart: Lasting | None = None
    restart_max: Lasting | None = None
    device: str | None = None
    zone: str | None = None


class KnownEventSection(Section, frozen=True):
    name: Annotated[str, Meta(extra={"next": "say what happens then, such as launch"})]
    begins: Moment
    ends: Moment
    endpoints_min: Annotated[int, Meta(ge=1, extra={"next": "say how many endpoints are wanted meanwhile"})]


class ScalingSection(Section, frozen=True):
    endpoints_max: Annotated[int, Meta(ge=1, extra={"next": "say how many endpoints there may be"})]
    endpoints_min: Count = _SCALING.endpoints_min
    warm_min: Count = _SCALING.warm_min
    load_percent: Annotated[int, Meta(ge=1, le=150)] = _SCALING.load_percent
    kv_percent: Annotated[int, Meta(ge=1, le=100)] = _SCALING.kv_percent
    period: Lasting = _SCALING.period_ns
    cold_start: Lasting = _SCALING.cold_start_ns
    settle: LastingOrNone = _SCALING.settle_ns
    step_percent: Annotated[int, Meta(ge=1, le=100)] = _SCALING.step_percent
    panic_percent: Annotated[int, Meta(ge=100, le=10_000)] = _SCALING.panic_percent
    idle: Lasting = _SCALING.idle_ns
    hold_max: Positive = _SCALING.hold_max
    hourly_dollars: Dollars = 0.0
    budget_dollars: Dollars | None = None
    calendar: list[KnownEventSection] = []
    correction_percent_min: Annotated[int, Meta(ge=10, le=100)] = _SCALING.correction_percent_min
    correction_percent_max: Annotated[int, Meta(ge=100, le=1_000)] = _SCALING.correction_percent_max


class BatchingSection(Section, frozen=True):
    max_batch: Annotated[int, Meta(ge=2, le=2_048)] = _BATCHING.inputs_max
    preferred: list[int] = []
    max_delay: LastingOrNone = _BATCHING.delay_ns_max
    budget_percent: Percent = _BATCHING.budget_percent
    max_tokens: Positive = _BATCHING.tokens_max
    parallel: Annotated[int, Meta(ge=1, le=64)] = _BATCHING.parallel
    max_calls: Positive | None = _BATCHING.calls_max


class PriceSection(Section, frozen=True, rename={"since": "from"}):
    """By the hour of an endpoint or by the token, never both (money.py)."""

    since: Day | None = None
    per_hour: Usd | None = None
    kind: str | None = None
    input: Usd | None = None
    cached: Usd | None = None
    output: Usd | None = None


class BudgetSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "usd"

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
    warm_up: LastingOrNone = 30 * SECOND
    passes_priority: bool = False
    watches_whole_answers: bool = False
    gpu_metrics_port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    speed: SpeedSection = SpeedSection()
    kv_tokens: Positive | None = None
    prompt_tokens_min: Count = 0
    prompt_tokens_max: Positive | None = None
    output_tokens_min: Count = 0
    output_tokens_max: Positive | None = None
    prices: Annotated[list[PriceSection], Meta(extra={"alone": True})] = []


class RungSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "pools"

    pools: Annotated[list[str], Meta(extra={"next": "name the pools of the model that serve this rung"})]
    classes: list[str] = []
    plans: list[str] = []
    prompt_tokens_max: Positive | None = None
    named: str | None = None


class ModelSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "pools"

    pools: Annotated[list[str], Meta(extra={"next": "name the pools that serve this model"})]
    rungs: list[RungSection] = []
    fallbacks: list[str] = []


class CapsSection(Section, frozen=True):
    """Each cap left out is that of the default class of this name, else of any class (caps.py)."""

    prompt_tokens: PositiveCap | None = None
    trims_prompt: bool | None = None
    output_tokens: PositiveCap | None = None
    n: PositiveCap | None = None
    best_of: PositiveCap | None = None
    logprobs: CountCap | None = None
    prompt_logprobs: CountCap | None = None
    reasoning_effort: str | None = None
    image_detail: str | None = None
    prompts: PositiveCap | None = None
    inputs: PositiveCap | None = None


class VariantSection(Section, frozen=True):
    """What it leaves out stays as the class has it."""

    level: Annotated[int, Meta(ge=1, le=LEVELS, extra={"next": "say from which level of the ladder on, 1 to 6"})]
    caps: CapsSection = CapsSection()
    model: str | None = None


class StageBudgetSection(Section, frozen=True):
    """How much of a request's time each of its stages may take; none that is left out is looked at (sight.py)."""

    ingress: Lasting | None = None
    auth: Lasting | None = None
    classify: Lasting | None = None
    queue: Lasting | None = None
    route: Lasting | None = None
    connect: Lasting | None = None
    prefill: Lasting | None = None
    decode: Lasting | None = None
    post_processing: Lasting | None = None
    settle: Lasting | None = None


class ObjectivesSection(Section, frozen=True):
    """What is promised of a class over a month, by which alerts are made (sight.py)."""

    ttft_percent: Objective | None = None
    duration: Lasting | None = None
    duration_percent: Objective | None = None
    served_percent: Objective | None = None
    cost_per_1k_tokens: Usd | None = None


class ClassSection(Section, frozen=True):
    """Each setting left out is that of the default class of this name, else of any class (classes.py)."""

    band: Count | None = None
    service_tiers: list[str] | None = None
    prompt_tokens_max: Positive | None = None
    unnamed: bool | None = None
    pools: list[str] | None = None
    queue_wait_max: Lasting | None = None
    queue_length_max: Positive | None = None
    queue_length_per_tenant_max: Positive | None = None
    first_token_max: Lasting | None = None
    idle_max: Lasting | None = None
    total_max: Lasting | None = None
    caps: CapsSection = CapsSection()
    ttft: LastingTarget | None = None
    tpot: LastingTarget | None = None
    floor_percent: Percent | None = None
    reserve_percent: Percent | None = None
    promise: str | None = None
    variants: list[VariantSection] | None = None
    hedges: bool | None = None
    start_wait: Lasting | None = None
    budgets: BudgetsSection = BudgetsSection()
    max_cost_per_request: Usd | None = None
    max_cost_per_unit: Usd | None = None
    stage_budget: StageBudgetSection = StageBudgetSection()
    objectives: ObjectivesSection = ObjectivesSection()


class ClassRuleSection(Section, frozen=True):
    class_name: Annotated[str, Meta(extra={"next": "name the class of the requests that it fits"})] = field(
        name="class"
    )
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
    tenant_percent: Percent = 10
    tenant_burst: Count = 10
    cost_after_silence: Positive = 2
    pool_percent: Percent = 20
    pool_window: Lasting = 10 * SECOND
    pool_extra_min: Count = 10


class HealthSection(Section, frozen=True):
    failures_max: Positive = 3
    stall_max: Lasting = 30 * SECOND
    eject: Lasting = 10 * SECOND
    eject_max: Lasting = 5 * MINUTE
    slow_start: LastingOrNone = 10 * SECOND
    zone_percent: Percent = 60


class HeadroomSection(Section, frozen=True):
    pending_percent: Part = _HEADROOM.pending_percent
    measured_percent: Part = _HEADROOM.measured_percent
    predicted_percent: Part = _HEADROOM.predicted_percent
    kv_percent: Percent = _HEADROOM.kv_percent
    long_tokens: Positive = _HEADROOM.long_tokens
    long_percent: Percent = _HEADROOM.long_percent


class AdmissionSection(Section, frozen=True):
    certainty_percent: Part | Literal["unlimited"] = AdmissionRules().certainty_percent or UNLIMITED


class RoutingSection(Section, frozen=True):
    other_zone: LastingOrNone = _ROUTING.other_zone_ns
    stale_after: Lasting = _ROUTING.stale_ns
    prefix: bool = _ROUTING.prefix


class SheddingSection(Section, frozen=True):
    enabled: bool = _SHEDDING.enabled
    period: Lasting = _SHEDDING.period_ns
    pressure_percent: Part = _SHEDDING.pressure // THOUSANDTHS
    proportional_gain: Count = _SHEDDING.proportional_gain
    integral_gain: Count = _SHEDDING.integral_gain
    percent_max: Percent = _SHEDDING.percent_max
    arrivals: Remembered = _SHEDDING.arrivals


class LadderSection(Section, frozen=True):
    enabled: bool = _LADDER.enabled
    climb_above_percent: Part = _LADDER.climb_above // THOUSANDTHS
    climb_after: Lasting = _LADDER.climb_after_ns
    descend_below_percent: Part = _LADDER.descend_below // THOUSANDTHS
    descend_after: Lasting = _LADDER.descend_after_ns
    level_max: Annotated[int, Meta(ge=0, le=LEVELS)] = _LADDER.level_max
    easy_tokens: Count = _LADDER.easy_tokens


class CellSection(Section, frozen=True):
    store: StoreUrl
    name: str = _CELL.name
    member: str | None = _CELL.member
    members: Positive = _CELL.members
    gateways_schedule: bool = _CELL.gateways_schedule


class DatabaseSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "url"

    url: DatabaseUrl
    poll: Lasting = _DATABASE.poll_ns


class LedgerSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "spool"

    spool: Spool
    spool_max: SpoolBytes = _LEDGER.spool_bytes_max
    retention: Days = _LEDGER.retention_days
    metadata: list[str] = []
    unit: str | None = None
    idle: str = "platform"
    when_disk_fails: str = "serve"


class NoticesSection(Section, frozen=True):
    SHORT: ClassVar[str | None] = "webhook"

    webhook: Webhook


class AdminKeySection(Section, frozen=True):
    key: AdminKey
    permissions: Permissions


class TracingSection(Section, frozen=True):
    endpoint: Collector
    headers: dict[str, Secret] = {}
    sample_percent: Annotated[float, Meta(ge=0.0, le=100.0)] = _TRACING.sample_ppm / _PPM
    slowest_percent: Annotated[float, Meta(ge=0.0, le=100.0)] = _TRACING.slowest_ppm / _PPM
    kept_per_second_max: Positive = _TRACING.kept_per_second_max
    names: str = _TRACING.names


class RecordsSection(Section, frozen=True):
    folder: RecordsFolder
    retention: Lasting = _RECORDS.retention_ns
    bytes_max: SpoolBytes = _RECORDS.bytes_max


class File(Section, frozen=True):
    pools: Annotated[dict[str, PoolSection], Meta(extra={"next": "name at least one pool of endpoints"})]
    models: Annotated[dict[str, ModelSection], Meta(extra={"next": "name at least one model and its pools"})]
    listen: AddressText = ("127.0.0.1", 8080)
    admin_listen: AddressText = ("127.0.0.1", 9090)
    admin_hosts: list[str] = []
    scaler_listen: AddressText | None = None
    drain_grace: LastingOrNone = 30 * SECOND
    error_docs: str | None = None
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
    ladder: LadderSection = LadderSection()
    fairness_depth: Positive = 1
    zone: str | None = None
    cell: CellSection | None = None
    database: DatabaseSection | None = None
    admin_keys: dict[str, AdminKeySection] = {}
    ledger: LedgerSection | None = None
    tracing: TracingSection | None = None
    records: RecordsSection | None = None
    notices: NoticesSection | None = None
    state_folder: str | None = None
