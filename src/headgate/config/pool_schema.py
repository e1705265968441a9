"""Schema of `pools.NAME` in the configuration file."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from headgate.config.section import Section
from headgate.config.setting_types import (
    AddressText,
    Count,
    Day,
    Dollars,
    DurationOrZero,
    EngineName,
    Percent,
    PortRange,
    Positive,
    PositiveDuration,
    Secret,
    ShortDuration,
    StepDuration,
    Timestamp,
    Url,
    Usd,
)
from headgate.model.policy import BatchRules
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND

HOSTED_ENGINE: Final = "provider"
"""Engine type of hosted providers."""

# Sources of the default values.
_SCALING = ScalingRules()
_BATCHING = BatchRules()


class EndpointSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "url"

    url: Url
    name: str | None = None
    in_flight_max: Positive | None = None
    device: str | None = None
    zone: str | None = None


class EngineTlsSection(Section, frozen=True):
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None


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
    scheme: str | None = None
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


class AdapterSection(Section, frozen=True):
    SHORTHAND: ClassVar[str | None] = "name"

    name: str
    model: str | None = None
    source: str | None = None


class PoolSection(Section, frozen=True):
    engine: EngineName
    endpoints: list[EndpointSection] = []
    fleet: FleetSection = FleetSection()
    scaling: ScalingSection | None = None
    batching: BatchingSection | None = None
    in_flight_max: Positive | None = None
    served_model: str | None = None
    adapters: list[AdapterSection] = []
    discover_adapters: bool = False
    max_lora: Positive | None = None
    api_key: Secret | None = None
    api_key_header: str | None = None
    anthropic_betas: list[str] = []
    tls: EngineTlsSection | None = None
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
