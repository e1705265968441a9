"""Schema of the configuration file.

Each section is a struct and each setting a field, documented in docs/reference/configuration.md. A field's type
determines how its text is parsed (quantities.py). Defaults are in the core's units.

A section with `SHORTHAND` may be written as just the value of that setting: `m: small` means `m: {pools: [small]}`.

Pools, classes and token issuers are in pool_schema.py, class_schema.py and identity_schema.py.
"""

from typing import Annotated, ClassVar

from msgspec import Meta

from headgate.config.class_schema import BudgetsSection, ClassRuleSection, ClassSection
from headgate.config.identity_schema import IdentitySection
from headgate.config.pool_schema import PoolSection
from headgate.config.section import Section
from headgate.config.setting_types import (
    DEGRADATION_LEVELS,
    PPM_PER_PERCENT,
    PRESSURE_PER_PERCENT,
    UNLIMITED,
    AddressText,
    AdminKeyHash,
    AuditDirectory,
    Bytes,
    CertificateFile,
    CertificateKeyFile,
    CollectorUrl,
    Count,
    DatabaseUrl,
    Days,
    DurationOrZero,
    HistorySize,
    LargePercent,
    LargePercentCap,
    Percent,
    Positive,
    PositiveDuration,
    RecordsDirectory,
    Secret,
    SpoolDirectory,
    StorageBytes,
    StoreUrl,
    WebhookUrl,
)
from headgate.control.options import ReloadTrigger
from headgate.edge.options import EdgeLimits
from headgate.hosts.cell.options import CellOptions
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.policy import AdmissionRules, DegradationRules, HeadroomRules, RoutingRules, SheddingRules
from headgate.model.units import MINUTE, SECOND
from headgate.telemetry.audit.options import AuditOptions
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions

# Sources of the default values.
_HEADROOM = HeadroomRules()
_ROUTING = RoutingRules()
_SHEDDING = SheddingRules()
_DEGRADATION = DegradationRules()
_EDGE = EdgeLimits()
_CELL = CellOptions("", "")
_DATABASE = DatabaseOptions("", "")
_LEDGER = LedgerOptions("")
_TRACING = TracingOptions("")
_RECORDS = RecordsOptions("")
_AUDIT = AuditOptions("")


class LimitsSection(Section, frozen=True):
    body_bytes_max: Bytes = _EDGE.body_bytes_max
    audio_body_bytes_max: Bytes | None = None
    total_body_bytes_max: Bytes = _EDGE.total_body_bytes_max
    unverified_body_bytes_max: Bytes = _EDGE.unverified_body_bytes_max
    requests_open_max: Positive = _EDGE.requests_open_max
    mirrors_open_max: Positive = _EDGE.mirrors_open_max
    connections_open_max: Positive = _EDGE.connections_open_max
    unauthenticated_connections_max: Positive = _EDGE.unauthenticated_connections_max
    header_bytes_max: Bytes = _EDGE.header_bytes_max
    header_count_max: Positive = _EDGE.header_count_max
    field_bytes_max: Bytes = _EDGE.field_bytes_max
    header_timeout: PositiveDuration = _EDGE.header_timeout_ns
    body_timeout: PositiveDuration = _EDGE.body_timeout_ns
    keepalive_timeout: PositiveDuration = _EDGE.keepalive_timeout_ns
    send_timeout: PositiveDuration = _EDGE.send_timeout_ns


class ListenTlsSection(Section, frozen=True):
    certificate: CertificateFile
    key: CertificateKeyFile
    client_ca: str | None = None


class AdminListenTlsSection(Section, frozen=True):
    certificate: CertificateFile
    key: CertificateKeyFile
    client_ca: str | None = None
    ca: str | None = None
    server_name: str | None = None


class TierSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "pools"

    pools: Annotated[list[str], Meta(extra={"next": "list the pools of the model that serve this tier"})]
    classes: list[str] = []
    plans: list[str] = []
    prompt_tokens_max: Positive | None = None
    name: str | None = None


class RouteMatchSection(Section, frozen=True):
    tenants: list[str] = []
    plans: list[str] = []
    classes: list[str] = []
    headers: dict[str, list[str]] = {}


class MirrorFractionSection(Section, frozen=True):
    numerator: Annotated[int, Meta(ge=0, extra={"next": "set the number of copied requests, such as 5"})]
    denominator: Positive = 100


class MirrorSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "pools"

    pools: list[str] = []
    tier: str | None = None
    model: str | None = None
    percent: Percent | None = None
    fraction: MirrorFractionSection | None = None


class RouteSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "pools"

    pools: list[str] = []
    tier: str | None = None
    model: str | None = None
    weight: Count = 1
    match: RouteMatchSection = RouteMatchSection()
    name: str | None = None
    mirror: MirrorSection | None = None


class OverflowSection(Section, frozen=True):
    pools: Annotated[list[str], Meta(extra={"next": "list the pools that serve requests that would wait too long"})]
    after: Annotated[
        DurationOrZero, Meta(extra={"next": "set the queue wait above which a request overflows, such as 2s"})
    ]
    classes: list[str] = []


class ModelSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "pools"

    pools: Annotated[list[str], Meta(extra={"next": "list the pools that serve this model"})]
    tiers: list[TierSection] = []
    fallbacks: list[str] = []
    routes: list[RouteSection] = []
    sticky: str = "request"
    overflow: OverflowSection | None = None


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
    data_residency: str = "any"


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
    adapter_load_penalty: DurationOrZero = _ROUTING.adapter_load_penalty_ns
    cross_zone_penalty: DurationOrZero = _ROUTING.cross_zone_penalty_ns
    metrics_stale_after: PositiveDuration = _ROUTING.metrics_stale_ns
    prefix_affinity: bool = _ROUTING.prefix_affinity
    session_preference: DurationOrZero = _ROUTING.session_preference_ns
    session_fields: list[str] | None = None


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
    share_floor_percent: Percent = _CELL.share_floor_ppm // PPM_PER_PERCENT


class DatabaseSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "url"

    url: DatabaseUrl
    poll_interval: PositiveDuration = _DATABASE.poll_interval_ns


class LedgerSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "spool_directory"

    spool_directory: SpoolDirectory
    spool_bytes_max: StorageBytes = _LEDGER.spool_bytes_max
    retention: Days = _LEDGER.retention_days
    roll_up: str = "none"
    metadata_keys: list[str] = []
    unit_key: str | None = None
    idle_cost: str = "platform"
    on_disk_failure: str = "serve"


class NotificationsSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "webhook"

    webhook: WebhookUrl


class AdminKeySection(Section, frozen=True):
    key: AdminKeyHash
    permissions: list[str] | None = None
    role: str | None = None


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


class AuditSection(Section, frozen=True):
    directory: AuditDirectory
    bytes_max: StorageBytes = _AUDIT.bytes_max


class ConfigFile(Section, frozen=True):
    pools: Annotated[dict[str, PoolSection], Meta(extra={"next": "define at least one pool"})]
    models: Annotated[dict[str, ModelSection], Meta(extra={"next": "define at least one model with its pools"})]
    listen: AddressText = ("127.0.0.1", 8080)
    admin_listen: AddressText = ("127.0.0.1", 9090)
    listen_tls: ListenTlsSection | None = None
    admin_listen_tls: AdminListenTlsSection | None = None
    admin_allowed_hosts: list[str] = []
    scaler_listen: AddressText | None = None
    drain_grace: DurationOrZero = 30 * SECOND
    reload: str = ReloadTrigger.WATCH.value
    error_docs_url: str | None = None
    quote_engine_errors: bool = False
    key_secret: list[Secret] = []
    anonymous_tenant: str | None = None
    identity: IdentitySection | None = None
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
    audit: AuditSection | None = None
    notifications: NotificationsSection | None = None
    state_directory: str | None = None
