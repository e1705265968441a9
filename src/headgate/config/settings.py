"""Gateway settings: the validated configuration, with the options for every component.

The settings do not depend on YAML, textual units or environment variables. Secrets are excluded from their `repr`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from headgate.config.route_inputs import mirrored_models, route_inputs
from headgate.control.options import FileStamp, NotificationOptions, ReloadTrigger
from headgate.edge.options import EdgeLimits
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.options import EndpointOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.hosts.cell.options import CellOptions
from headgate.identity.options import IssuerOptions, OperatorTokenOptions
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.policy import BatchRules, Model, Policy
from headgate.model.routes import RouteInputs
from headgate.model.scaling import ScalingRules
from headgate.model.stage import Stage
from headgate.model.units import ClassName, Duration, ModelName, PoolName, TenantId
from headgate.ports.admin_roles import Role
from headgate.ports.api_key import ApiKey
from headgate.ports.tls import ClientTlsOptions, ServerTlsOptions
from headgate.telemetry.audit.options import AuditOptions
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions

HTTPS: Final = "https"


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """A LoRA adapter of a pool."""

    name: str
    """Name of the adapter in the engines."""
    model: str
    """Name of the model for callers."""
    source: str | None = None
    """Path or repository from which the engines load the adapter. None if they have it already."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    name: PoolName
    engine: str
    """Dialect of the endpoints' engines."""
    served_model: str
    """Model name used by the engines."""
    endpoints: tuple[EndpointOptions, ...]
    """Static endpoints; empty for other fleets."""
    api_key: str | None = field(default=None, repr=False)
    """Key sent to the engines."""
    api_key_header: str | None = None
    """Header that contains only the key. None for `Authorization: Bearer KEY`."""
    anthropic_betas: tuple[str, ...] = ()
    """Values of the header `anthropic-beta` that a hosted provider may receive."""
    tls: ClientTlsOptions | None = None
    """How engines with an `https` URL are verified. None for the system's authorities, without a client certificate."""
    forward_priority: bool = False
    """Whether to forward the `priority` field, for engines that schedule by priority."""
    always_stream_upstream: bool = False
    """Whether the gateway streams from engines even if the client wants a non-streaming response."""
    gpu_metrics_port: int | None = None
    """Port of the DCGM exporter on the endpoints' hosts; None if GPU metrics are not read."""
    fleet: DnsOptions | ProcessOptions | None = None
    """Options for a fleet that is not static."""
    scaling: ScalingRules | None = None
    """Autoscaling rules; None without autoscaling."""
    batching: BatchRules | None = None
    """Batching rules; None without batching."""

    adapters: tuple[AdapterSettings, ...] = ()
    """Declared LoRA adapters."""
    discover_adapters: bool = False
    """Whether each adapter that an engine lists is a model."""

    @property
    def engine_key(self) -> ApiKey | None:
        """Key for the engines, with its header."""
        return None if self.api_key is None else ApiKey(self.api_key, self.api_key_header or "")

    @property
    def uses_tls(self) -> bool:
        """Whether an endpoint may have an `https` URL."""
        if self.fleet is not None:
            return self.fleet.scheme == HTTPS
        return any(each.url.startswith(f"{HTTPS}://") for each in self.endpoints)


@dataclass(frozen=True, slots=True)
class AdminKey:
    """An operator's key hash and permissions."""

    name: str
    digest: bytes = field(repr=False)
    permissions: tuple[str, ...]
    """The role's permissions if a role is set."""
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    listen: Address
    admin_listen: Address
    admin_allowed_hosts: tuple[str, ...]
    """Host names allowed on the admin listener, in addition to IP addresses and localhost."""
    scaler_listen: Address | None
    """Address of the KEDA external scaler; None if there is none."""
    drain_grace_ns: Duration
    limits: EdgeLimits
    key_secrets: tuple[bytes, ...] = field(repr=False)
    """Secrets used to hash keys. New keys are hashed with the first one. Empty if no tenant has a key."""
    keys: Mapping[bytes, TenantId] = field(repr=False)
    """The tenant for each key digest."""
    anonymous_tenant: TenantId | None
    """Tenant of requests without a key; None to reject them."""
    pools: tuple[PoolSettings, ...]
    policy: Policy
    error_docs_url: str
    """Base URL of the error documentation, without a trailing slash; empty if there is none."""
    quote_engine_errors: bool
    """Whether engine error messages are quoted in responses and in the log."""
    zone: str
    """Zone of this gateway; empty if not configured."""
    cell: CellOptions | None
    """None if this gateway has its own scheduler."""
    hash: str
    """Configuration hash. It is the same in every process that uses this configuration, and changes with any setting.

    In a cell, it excludes the members' addresses, zones and names.
    """
    issuers: tuple[IssuerOptions, ...] = ()
    """Issuers whose tokens are accepted in addition to API keys."""
    operators: OperatorTokenOptions | None = None
    """Tokens that are accepted in addition to operator keys. Requires an issuer."""
    listen_tls: ServerTlsOptions | None = None
    """None if clients connect without TLS."""
    admin_listen_tls: ServerTlsOptions | None = None
    admin_client_tls: ClientTlsOptions | None = None
    """Options for calls to the admin listeners of this cell's gateways; None if this process's own has no TLS."""
    database: DatabaseOptions | None = None
    """None if all tenants are in the file."""
    admin_keys: tuple[AdminKey, ...] = ()
    """Operators with access to the admin API."""
    ledger: LedgerOptions | None = None
    """None without a ledger. A ledger requires a database."""
    notifications: NotificationOptions | None = None
    tracing: TracingOptions | None = None
    """None if no traces are sent."""
    records: RecordsOptions | None = None
    """None if request records are kept only in memory."""
    audit: AuditOptions | None = None
    """None if the read log is kept only in memory."""
    state_directory: str | None = None
    """Local directory in which learned speeds are kept across restarts. If None, they are kept only in memory."""
    stage_budgets: Mapping[ClassName, Mapping[Stage, Duration]] = field(
        default_factory=dict[ClassName, Mapping[Stage, Duration]]
    )
    """Time budget for each stage, by class. Contains only configured stages."""
    objectives: Mapping[ClassName, Objectives] = field(default_factory=dict[ClassName, Objectives])
    """Objectives by class, for classes that have any."""
    warnings: tuple[str, ...] = ()
    """Warnings about valid but probably unintended settings, each with its location and the next step."""

    reload: ReloadTrigger = ReloadTrigger.WATCH
    files: Mapping[Path, FileStamp] = field(default_factory=dict[Path, FileStamp], repr=False, compare=False)
    """Stamps of the configuration file and of the files that `${file:PATH}` refers to, as they were read."""

    key_secret_ids: tuple[str, ...] = ()
    """Fingerprints of the key secrets, for display."""

    @property
    def key_secret(self) -> bytes | None:
        """Secret for new keys."""
        return self.key_secrets[0] if self.key_secrets else None

    @property
    def batch_rules(self) -> dict[PoolName, BatchRules]:
        return {pool.name: pool.batching for pool in self.pools if pool.batching is not None}

    @property
    def scaling_rules(self) -> dict[PoolName, ScalingRules]:
        return {pool.name: pool.scaling for pool in self.pools if pool.scaling is not None}

    @property
    def latency_targets_ns(self) -> dict[ClassName, Duration]:
        """Stricter of the TTFT and e2e targets of each class that has one, which limits its batch wait."""
        targets = ((each.name, each.latency_target_ns) for each in self.policy.classes)
        return {name: target_ns for name, target_ns in targets if target_ns is not None}

    @property
    def metadata_names(self) -> tuple[str, ...]:
        """Metadata keys that the gateway reads: those for the ledger and those for class rules."""
        of_rules = (name for rule in self.policy.class_rules for name, _ in rule.metadata)
        return tuple(dict.fromkeys((*(() if self.ledger is None else self.ledger.metadata_keys), *of_rules)))

    @property
    def session_fields(self) -> tuple[str, ...] | None:
        """Body fields that may name a session. None if sessions are not used."""
        routing = self.policy.routing
        return routing.session_fields if routing.session_preference_ns else None

    @property
    def route_inputs(self) -> RouteInputs | None:
        """Parts of requests that the routes of models need. None if they need nothing."""
        return route_inputs(self.policy.models)

    @property
    def mirrored_models(self) -> dict[ModelName, Model] | None:
        """Models with routes whose requests are copied. None if there are none."""
        return mirrored_models(self.policy.models)

    @property
    def sample_ppm(self) -> int | None:
        return None if self.tracing is None else self.tracing.sample_ppm
