"""What does the configuration come to, once it has been read and found right?

Plain values for whoever composes the product. Nothing here knows about YAML, units in text or
environment variables any more, and a secret is never part of how a value prints itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headgate.model.money import NanoUsd
from headgate.model.policy import BatchRules, Policy
from headgate.model.scaling import ScalingRules
from headgate.model.stage import Stage
from headgate.model.units import ClassName, Duration, EndpointId, PoolName, TenantId


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process takes on, whatever the classes say."""

    body_bytes_max: int
    bodies_bytes_max: int
    """What the bodies of all open requests may take together."""
    requests_open_max: int
    connections_open_max: int
    """A new connection beyond these is closed at once."""
    head_bytes_max: int
    headers_max: int
    """How many header lines a request may have."""
    head_ns_max: Duration
    """How long a request's head may take, from its first byte, and a new connection to send that byte."""
    receive_ns_max: Duration
    """How long a request's body may take, from the end of its head."""
    idle_ns_max: Duration
    """How long a connection may stay open between two requests."""
    client_stall_ns_max: Duration
    """How long a caller may leave its answer unread before it is cut off."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    id: EndpointId
    url: str
    """Scheme, host and port where given; no path, no trailing slash."""
    in_flight_max: int
    device: str = ""
    """Endpoints that name the same one share its capacity; empty means one of its own."""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """Endpoints are what a name stands for."""

    name: str
    port: int | None
    """None asks for services (SRV), which bring their ports."""
    nameserver: Address | None
    """None is the system's."""
    in_flight_max: int
    every_ns: Duration
    misses_max: int
    empty_ns_max: Duration
    zone: str = ""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """In which Ray cluster processes run, and what each takes of a node."""

    python: str
    address: str
    cpus: float
    gpus: float
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Endpoints are processes that this gateway starts."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    folder: str | None
    logs: str | None
    """None makes a folder of its own for each start of the gateway."""
    ports: tuple[int, int]
    in_flight_max: int
    endpoints: int
    """With how many it begins; and stays, where nothing scales it."""
    start_ns_max: Duration
    stop_ns_max: Duration
    restart_ns: Duration
    restart_ns_max: Duration
    device: str = ""
    zone: str = ""
    ray: RaySettings | None = None
    """None runs them on the gateway's own machine."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    name: PoolName
    engine: str
    """The dialect that its endpoints speak."""
    served_model: str
    """What its engines call the model."""
    endpoints: tuple[EndpointSettings, ...]
    """Those that are listed; none where another fleet brings them."""
    api_key: str | None = field(default=None, repr=False)
    """What its engines ask for as a bearer token."""
    passes_priority: bool = False
    """Whether its engines schedule by priority, so that the field `priority` of a request may reach them."""
    gpu_metrics_port: int | None = None
    """Where on its endpoints' machines a DCGM exporter tells of their GPUs; None where nobody asks one."""
    fleet: DnsSettings | ProcessSettings | None = None
    """Where its endpoints come from, if they are not listed."""
    scaling: ScalingRules | None = None
    """How many endpoints there should be; None where nobody decides that here."""
    batching: BatchRules | None = None
    """When requests are asked together; None where each is asked by itself."""


@dataclass(frozen=True, slots=True)
class CellSettings:
    """With whom this gateway shares a queue."""

    store: str = field(repr=False)
    """The whole address, with port and database, and the password where there is one."""
    store_shown: str
    """The same for everybody to see."""
    name: str
    """The cell's; several may share a store."""
    member: str | None
    """This process's; None where it is called after its host and port."""
    members: int
    """How many gateways there will be: by it a gateway divides that has not heard of any scheduler yet."""
    gateways_schedule: bool
    """Whether a gateway may be the scheduler, or only a process that does nothing else."""


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Where tenants and keys are kept beside the file."""

    url: str = field(repr=False)
    """The whole address, with the password where there is one."""
    url_shown: str
    """The same for everybody to see."""
    poll_ns: Duration
    """How often it is asked whether a change was missed."""


@dataclass(frozen=True, slots=True)
class AdminKey:
    """An operator, and what they may do."""

    name: str
    digest: bytes = field(repr=False)
    permissions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """What is written down of requests and endpoints, and where it waits while the database is away."""

    spool: str
    """A folder of this machine, in which each process has files of its own."""
    spool_bytes_max: int
    retention_days: int
    """So long single rows are kept; their sums by the day stay."""
    metadata: tuple[str, ...]
    """Of what callers send as metadata, these keys."""
    shares_idle: bool
    """Whether reports share the idle time of a pool among its tenants by their weights."""


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """Who is told that a budget is spent."""

    webhook: str = field(repr=False)
    """May hold a secret; never shown."""
    webhook_shown: str


TRACE_NAMES: Final = ("gen_ai", "gen_ai_1_36", "plain")


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Where traces go, and which are kept."""

    endpoint: str
    """The whole address that spans are posted to."""
    headers: Mapping[str, str] = field(repr=False)
    """What goes along with each post; may hold secrets."""
    sample_ppm: int
    """Of all requests, so many in a million are kept, whatever became of them."""
    slowest_ppm: int
    """Of each class, so many of the slowest are kept."""
    kept_per_second_max: int
    names: str
    """By which version of OpenTelemetry's conventions for generative AI spans are named, or by none: `TRACE_NAMES`."""


@dataclass(frozen=True, slots=True)
class RecordsSettings:
    """Where records of requests outlive the process, and for how long."""

    folder: str
    retention_ns: Duration
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Objectives:
    """What is promised of a class over a month. Parts in a million of requests; None where nothing is promised."""

    ttft_ppm: int | None = None
    """Of streams, those whose first token comes within the class's `ttft`."""
    duration_ns: Duration | None = None
    duration_ppm: int | None = None
    """Of requests that completed, those that took no longer than `duration_ns`."""
    served_ppm: int | None = None
    """Of requests that were no mistake of the caller, those that were served."""
    cost_per_1k_tokens: NanoUsd | None = None
    """What a thousand tokens, in and out, may cost on the average of an hour."""


@dataclass(frozen=True, slots=True)
class Settings:
    listen: Address
    admin_listen: Address
    scaler_listen: Address | None
    """Where KEDA asks how many endpoints are wanted; None where nobody does."""
    drain_grace_ns: Duration
    limits: Limits
    key_secret: bytes | None = field(repr=False)
    """The secret under which callers' keys are hashed; None where no tenant has a key."""
    keys: Mapping[bytes, TenantId] = field(repr=False)
    """Digest of a caller's key -> whose it is."""
    anonymous_tenant: TenantId | None
    """Whose the requests without a key are; None refuses them."""
    pools: tuple[PoolSettings, ...]
    policy: Policy
    error_docs: str
    """Below this address callers find the pages about outcomes; empty if there are none. No slash at its end."""
    quote_engine_errors: bool
    """Whether what engines say of their errors is repeated to callers and in the log."""
    zone: str
    """Where this gateway stands; empty where nobody says."""
    cell: CellSettings | None
    """None where this gateway has a scheduler of its own."""
    hash: str
    """Names this configuration: the same in every process that runs it, different after any change.

    In a cell that is all but where each of its gateways listens and stands."""
    database: DatabaseSettings | None = None
    """None where the file alone says who may call."""
    admin_keys: tuple[AdminKey, ...] = ()
    """Who may change anything by the admin listener; nobody where there are none."""
    ledger: LedgerSettings | None = None
    """None where nothing is written down; needs a database."""
    notices: NoticeSettings | None = None
    tracing: TracingSettings | None = None
    """None where no traces are sent."""
    records: RecordsSettings | None = None
    """None where what became of requests is known only as long as this process lives."""
    stage_budgets: Mapping[ClassName, Mapping[Stage, Duration]] = field(
        default_factory=dict[ClassName, Mapping[Stage, Duration]]
    )
    """How long each stage of a request may take, by class; only what the file says."""
    objectives: Mapping[ClassName, Objectives] = field(default_factory=dict[ClassName, Objectives])
    """Classes of which something is promised."""
    warnings: tuple[str, ...] = ()
    """What is allowed but probably not meant, each with where it stands and the next step."""
