"""The configuration after it was read and checked: the root object, which holds the options of every part.

Nothing here knows about YAML, units in text or environment variables, and a secret is never part of how a value prints
itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.control.options import NotificationOptions
from headgate.edge.options import EdgeLimits
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.options import EndpointOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.hosts.cell.options import CellOptions
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.policy import BatchRules, Policy
from headgate.model.scaling import ScalingRules
from headgate.model.stage import Stage
from headgate.model.units import ClassName, Duration, PoolName, TenantId
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PoolSettings:
    name: PoolName
    engine: str
    """The dialect that its endpoints speak."""
    served_model: str
    """What its engines call the model."""
    endpoints: tuple[EndpointOptions, ...]
    """Those that are listed; none where another fleet brings them."""
    api_key: str | None = field(default=None, repr=False)
    """What its engines ask for as a bearer token."""
    passes_priority: bool = False
    """Whether its engines schedule by priority, so that the field `priority` of a request may reach them."""
    watches_whole_answers: bool = False
    """Whether the gateway requests streams instead of whole answers from engines that support it."""
    gpu_metrics_port: int | None = None
    """Where on its endpoints' machines a DCGM exporter tells of their GPUs; None where nobody asks one."""
    fleet: DnsOptions | ProcessOptions | None = None
    """Where its endpoints come from, if they are not listed."""
    scaling: ScalingRules | None = None
    """How many endpoints there should be; None where nobody decides that here."""
    batching: BatchRules | None = None
    """When requests are asked together; None where each is asked by itself."""


@dataclass(frozen=True, slots=True)
class AdminKey:
    """An operator, and what they may do."""

    name: str
    digest: bytes = field(repr=False)
    permissions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    listen: Address
    admin_listen: Address
    admin_hosts: tuple[str, ...]
    """Host names by which operators reach the admin listener, besides addresses and localhost."""
    scaler_listen: Address | None
    """Where KEDA asks how many endpoints are wanted; None where nobody does."""
    drain_grace_ns: Duration
    limits: EdgeLimits
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
    cell: CellOptions | None
    """None where this gateway has a scheduler of its own."""
    hash: str
    """Names this configuration: the same in every process that runs it, different after any change.

    In a cell that is all but where each of its gateways listens and stands."""
    database: DatabaseOptions | None = None
    """None where the file alone says who may call."""
    admin_keys: tuple[AdminKey, ...] = ()
    """Who may change anything by the admin listener; nobody where there are none."""
    ledger: LedgerOptions | None = None
    """None where nothing is written down; needs a database."""
    notices: NotificationOptions | None = None
    tracing: TracingOptions | None = None
    """None where no traces are sent."""
    records: RecordsOptions | None = None
    """None where what became of requests is known only as long as this process lives."""
    state_folder: str | None = None
    """A folder of this machine in which the gateway keeps learned speeds across restarts; None if it keeps none."""
    stage_budgets: Mapping[ClassName, Mapping[Stage, Duration]] = field(
        default_factory=dict[ClassName, Mapping[Stage, Duration]]
    )
    """How long each stage of a request may take, by class; only what the file says."""
    objectives: Mapping[ClassName, Objectives] = field(default_factory=dict[ClassName, Objectives])
    """Classes of which something is promised."""
    warnings: tuple[str, ...] = ()
    """What is allowed but probably not meant, each with where it stands and the next step."""

    @property
    def batch_rules(self) -> dict[PoolName, BatchRules]:
        return {pool.name: pool.batching for pool in self.pools if pool.batching is not None}

    @property
    def scaling_rules(self) -> dict[PoolName, ScalingRules]:
        return {pool.name: pool.scaling for pool in self.pools if pool.scaling is not None}

    @property
    def first_token_ns(self) -> dict[ClassName, Duration]:
        return {each.name: each.ttft_ns for each in self.policy.classes if each.ttft_ns is not None}

    @property
    def metadata_names(self) -> tuple[str, ...]:
        """Metadata keys that the gateway reads: those of the ledger and those of class rules."""
        of_rules = (name for rule in self.policy.class_rules for name, _ in rule.metadata)
        return tuple(dict.fromkeys((*(() if self.ledger is None else self.ledger.metadata), *of_rules)))

    @property
    def sample_ppm(self) -> int | None:
        return None if self.tracing is None else self.tracing.sample_ppm
