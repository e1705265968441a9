"""Settings in effect, with defaults filled in, under their names in the configuration file.

Two files with the same meaning have equal values, however they are written. Secrets are compared, but never shown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from headgate.config.quantities import (
    address_text,
    day_text,
    days_text,
    duration_text,
    short_duration_text,
    size_text,
    usd_text,
)
from headgate.config.settings import PoolSettings, Settings
from headgate.control.options import NotificationOptions
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.options import EndpointOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.hosts.cell.options import CellOptions
from headgate.identity.options import IssuerOptions
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.caps import Caps
from headgate.model.limits import Limits
from headgate.model.money import NANO_USD_PER_USD, Budget, Price
from headgate.model.policy import (
    ClassRule,
    DegradationRules,
    HealthRules,
    Model,
    Pool,
    RetryRules,
    RoutingRules,
    ServiceClass,
    SheddingRules,
)
from headgate.model.routes import RouteMirror
from headgate.model.scaling import ScalingRules, ScheduledEvent
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND
from headgate.telemetry.options import Objectives


class Effective(NamedTuple):
    """Value of a setting."""

    value: object
    """Compared, never shown. It may contain a secret."""
    text: str


EffectiveSettings = Mapping[str, Effective]
"""Values by path, such as `classes.interactive.ttft`. An object is listed under its own path as well."""

_Setting = tuple[str, Effective]
_PRESENT: Final = Effective("present", "")
_UNSET: Final = "not set"
_OPTIONAL_SECTIONS: Final = ("tls", "scaling", "batching", "mirror", "overflow")
_LISTS_OF_SECTIONS: Final = ("adapters", "endpoints", "prices", "tiers", "routes", "degradation_steps", "calendar")
_MICRO_USD: Final = NANO_USD_PER_USD // 1_000_000

_DERIVED: Final = frozenset(
    {
        (CellOptions, "store_shown"),
        (DatabaseOptions, "url_redacted"),
        (NotificationOptions, "webhook_shown"),
        (Limits, "share"),
        (Limits, "total_concurrency"),
        (Limits, "total_tokens_per_minute"),
        (Model, "adapter"),
        (Pool, "cold_start_ns"),
        (Pool, "discovers_adapters"),
        (Pool, "hold_max"),
        (Pool, "hosted"),
        (Pool, "in_flight_replacement"),
        (Pool, "scales"),
        (Pool, "speed_assumed"),
        (PoolSettings, "fleet"),
        (RetryRules, "cost"),
        (ScalingRules, "objective_ppm"),
        (ServiceClass, "tpot_assumed"),
        (ServiceClass, "ttft_assumed"),
    }
)
"""Fields that have no setting of their own, or that are listed elsewhere."""

_IDENTITIES: Final = frozenset(
    {
        (EndpointOptions, "id"),
        (IssuerOptions, "name"),
        (Model, "name"),
        (Pool, "name"),
        (PoolSettings, "name"),
        (ServiceClass, "name"),
        (Tenant, "id"),
    }
)
"""Fields that are part of the path."""

_REDACTED: Final = MappingProxyType({"store": "store_shown", "url": "url_redacted", "webhook": "webhook_shown"})
"""Fields that may contain a secret, each with the field that is shown instead."""

_NAMES: Final[Mapping[tuple[type, str], str]] = MappingProxyType(
    {
        (ClassRule, "service_class"): "class",
        (DegradationRules, "escalate_above"): "escalate_above_percent",
        (DegradationRules, "recover_below"): "recover_below_percent",
        (DnsOptions, "in_flight_max"): "",
        (HealthRules, "ejection_ns"): "ejection_time",
        (HealthRules, "ejection_ns_max"): "ejection_time_max",
        (HealthRules, "stall_ns_max"): "stall_timeout",
        (LedgerOptions, "reject_unrecorded"): "on_disk_failure",
        (LedgerOptions, "retention_days"): "retention",
        (LedgerOptions, "roll_up_hourly"): "roll_up",
        (LedgerOptions, "share_idle_cost"): "idle_cost",
        (Price, "since"): "from",
        (RetryRules, "credit_burst"): "tenant_budget_burst",
        (RetryRules, "credit_per_first_attempt"): "tenant_budget_percent",
        (RouteMirror, "share_ppm"): "percent",
        (RoutingRules, "metrics_stale_ns"): "metrics_stale_after",
        (ScalingRules, "endpoint_microdollars_per_hour"): "endpoint_usd_per_hour",
        (ScalingRules, "microdollars_per_hour_max"): "usd_per_hour_max",
        (ServiceClass, "band"): "priority_band",
        (ServiceClass, "first_token_ns_max"): "first_token_timeout",
        (ServiceClass, "idle_ns_max"): "stream_idle_timeout",
        (ServiceClass, "total_ns_max"): "attempt_timeout",
        (SheddingRules, "target_pressure"): "target_pressure_percent",
    }
)
"""Setting names that differ from the field's name by more than its unit."""


def _mode(off: str, on: str) -> Callable[[Any], str]:
    return lambda value: on if value else off


def _per_thousand(value: int) -> str:
    return f"{value / 10:g}"


def _credit(value: int) -> str:
    return f"{value / 100:g}"


def _micro_usd(value: int) -> str:
    return usd_text(value * _MICRO_USD)


def _utc(value: int) -> str:
    return datetime.fromtimestamp(value // SECOND, UTC).isoformat()


_TEXTS: Final[Mapping[tuple[type, str], Callable[[Any], str]]] = MappingProxyType(
    {
        (Budget, "limit"): usd_text,
        (DegradationRules, "escalate_above"): _per_thousand,
        (DegradationRules, "recover_below"): _per_thousand,
        (LedgerOptions, "reject_unrecorded"): _mode("serve", "reject"),
        (LedgerOptions, "retention_days"): days_text,
        (LedgerOptions, "roll_up_hourly"): _mode("none", "hourly"),
        (LedgerOptions, "share_idle_cost"): _mode("platform", "shared"),
        (Objectives, "cost_per_1k_tokens"): usd_text,
        (Price, "cached_per_1m_tokens"): usd_text,
        (Price, "input_per_1m_tokens"): usd_text,
        (Price, "output_per_1m_tokens"): usd_text,
        (Price, "per_hour"): usd_text,
        (Price, "since"): day_text,
        (RetryRules, "credit_burst"): _credit,
        (RetryRules, "timeout_cost"): _credit,
        (ScalingRules, "endpoint_microdollars_per_hour"): _micro_usd,
        (ScalingRules, "microdollars_per_hour_max"): _micro_usd,
        (ScheduledEvent, "ends_at"): _utc,
        (ScheduledEvent, "starts_at"): _utc,
        (ServiceClass, "cost_per_request_max"): usd_text,
        (ServiceClass, "cost_per_unit_max"): usd_text,
        (SheddingRules, "target_pressure"): _per_thousand,
    }
)
"""Formats of values whose unit is not in the field's name."""

_UNITS: Final[Sequence[tuple[str, str, Callable[[Any], str]]]] = (
    ("_ns_max", "_max", duration_text),
    ("_ns", "", duration_text),
    ("_ps", "", short_duration_text),
    ("_ppm", "_percent", lambda ppm: f"{ppm / 10_000:g}"),
    ("_bytes_max", "_bytes_max", size_text),
    ("bytes_max", "bytes_max", size_text),
)
"""Suffixes of field names, each with the suffix of the setting's name and the format of the value."""


def effective_settings(settings: Settings) -> EffectiveSettings:
    return dict(_file(settings))


def _file(settings: Settings) -> Iterator[_Setting]:
    yield from _addresses(settings)
    yield from _values(
        {
            "admin_allowed_hosts": settings.admin_allowed_hosts,
            "reload": settings.reload,
            "error_docs_url": settings.error_docs_url,
            "quote_engine_errors": settings.quote_engine_errors,
            "anonymous_tenant": settings.anonymous_tenant,
            "fairness_depth": settings.policy.fairness_depth,
            "zone": settings.zone,
            "state_directory": settings.state_directory,
        }
    )
    yield "drain_grace", Effective(settings.drain_grace_ns, duration_text(settings.drain_grace_ns))
    yield "key_secret", Effective(settings.key_secrets, _count(settings.key_secrets, "secret"))
    yield from _pools(settings)
    for model in settings.policy.models:
        if model.adapter:
            # Listed with its pools.
            continue
        yield from _object(f"models.{model.name}", model)
    yield from _classes(settings)
    for number, rule in enumerate(settings.policy.class_rules):
        yield from _object(f"class_rules[{number}]", rule)
    yield from _tenants(settings)
    policy = settings.policy
    yield from _section("limits", settings.limits)
    for name in ("retry", "health", "headroom", "admission", "routing", "shedding", "degradation"):
        yield from _section(name, getattr(policy, name))
    yield from _services(settings)


def _addresses(settings: Settings) -> Iterator[_Setting]:
    for name, address in (
        ("listen", settings.listen),
        ("admin_listen", settings.admin_listen),
        ("scaler_listen", settings.scaler_listen),
    ):
        yield name, Effective(address, _UNSET if address is None else address_text(*address))
    yield from _object("listen_tls", settings.listen_tls)
    yield from _object("admin_listen_tls", settings.admin_listen_tls)
    client = settings.admin_client_tls
    if client is not None:
        yield from _values({"admin_listen_tls.ca": client.ca, "admin_listen_tls.server_name": client.server_name})


def _pools(settings: Settings) -> Iterator[_Setting]:
    rules = {pool.name: pool for pool in settings.policy.pools}
    for pool in settings.pools:
        path = f"pools.{pool.name}"
        yield from _object(path, pool, secret=("api_key",))
        yield from _section(path, rules[pool.name])
        yield from _fleet(path, pool)


def _fleet(path: str, pool: PoolSettings) -> Iterator[_Setting]:
    fleet = pool.fleet
    kind = "static"
    if isinstance(fleet, DnsOptions):
        kind = "dns"
    elif fleet is not None:
        kind = "processes" if fleet.ray is None else "ray"
    yield f"{path}.fleet.kind", Effective(kind, kind)
    if fleet is not None:
        yield f"{path}.in_flight_max", Effective(fleet.in_flight_max, str(fleet.in_flight_max))
        yield from _section(f"{path}.fleet", fleet, secret=("environment",), skipped=("in_flight_max", "ray"))
    if isinstance(fleet, ProcessOptions) and fleet.ray is not None:
        yield from _section(f"{path}.fleet", fleet.ray)


def _classes(settings: Settings) -> Iterator[_Setting]:
    names = tuple(each.name for each in settings.policy.classes)
    # Unclassified requests get the first class that accepts them.
    yield "classes", Effective(names, ", ".join(names))
    for each in settings.policy.classes:
        path = f"classes.{each.name}"
        yield from _object(path, each, skipped=("ttft_ns", "tpot_ns", "e2e_ns"))
        for name, target, assumed in (
            ("ttft", each.ttft_ns, each.ttft_assumed),
            ("tpot", each.tpot_ns, each.tpot_assumed),
            ("e2e", each.e2e_ns, False),
        ):
            text = "unlimited" if target is None else duration_text(target)
            yield f"{path}.{name}", Effective((target, assumed), f"{text} (default)" if assumed else text)
        for stage, limit in settings.stage_budgets.get(each.name, {}).items():
            yield f"{path}.stage_budget.{stage.value}", Effective(limit, duration_text(limit))
        yield from _section(f"{path}.objectives", settings.objectives.get(each.name, Objectives()))


def _tenants(settings: Settings) -> Iterator[_Setting]:
    keys: dict[str, list[bytes]] = {}
    for digest, tenant in settings.keys.items():
        keys.setdefault(tenant, []).append(digest)
    for tenant in settings.policy.tenants:
        path = f"tenants.{tenant.id}"
        yield from _object(path, tenant)
        digests = tuple(sorted(keys.get(tenant.id, ())))
        yield f"{path}.keys", Effective(digests, _count(digests, "key"))


def _services(settings: Settings) -> Iterator[_Setting]:
    yield from _object("cell", settings.cell, secret=("store",))
    yield from _object("database", settings.database, secret=("url",))
    yield from _object("ledger", settings.ledger)
    if settings.ledger is not None:
        yield from _values({"ledger.unit_key": settings.policy.unit_key})
    yield from _object("tracing", settings.tracing, secret=("endpoint", "headers"))
    yield from _object("records", settings.records)
    yield from _object("audit", settings.audit)
    yield from _object("notifications", settings.notifications, secret=("webhook",))
    for issuer in settings.issuers:
        yield from _object(f"identity.issuers.{issuer.name}", issuer)
    if (operators := settings.operators) is not None:
        yield "identity.operators", _PRESENT
        yield from _section("identity.operators", operators, skipped=("login",))
        yield from _object("identity.operators.login", operators.login, secret=("client_secret",))
    for operator in settings.admin_keys:
        path = f"admin_keys.{operator.name}"
        yield path, _PRESENT
        yield f"{path}.key", Effective(operator.digest, "set")
        yield from _values({f"{path}.permissions": tuple(sorted(operator.permissions)), f"{path}.role": operator.role})


def _object(path: str, options: object | None, **secrets: Iterable[str]) -> Iterator[_Setting]:
    """A section that may be absent, under its path, and its settings."""
    if options is not None:
        yield path, _PRESENT
        yield from _section(path, options, **secrets)


def _section(
    path: str, options: object, *, secret: Iterable[str] = (), skipped: Iterable[str] = ()
) -> Iterator[_Setting]:
    assert is_dataclass(options)
    kind = type(options)
    for each in fields(options):
        if (kind, each.name) in _DERIVED or (kind, each.name) in _IDENTITIES or each.name in skipped:
            continue
        value = getattr(options, each.name)
        if each.name in secret:
            text = getattr(options, _REDACTED.get(each.name, ""), "set" if value else _UNSET)
            yield f"{path}.{each.name}", Effective(value, text)
        else:
            yield from _field(path, kind, each.name, value)


def _field(path: str, kind: type, name: str, value: Any) -> Iterator[_Setting]:
    setting, write = _setting(kind, name)
    inner = f"{path}.{setting}"
    if name in _OPTIONAL_SECTIONS:
        yield from _object(inner, value)
    elif value is None:
        yield inner, Effective(None, "unlimited" if kind is Caps else _UNSET)
    elif name == "budgets":
        for budget in value:
            yield from _budget(f"{inner}.{budget.period.value}", budget)
    elif name in _LISTS_OF_SECTIONS:
        for number, each in enumerate(value):
            yield from _object(f"{inner}.{each.id}" if name == "endpoints" else f"{inner}[{number}]", each)
    elif is_dataclass(value):
        yield from _section(inner, value)
    else:
        yield inner, Effective(value, write(value))


def _budget(path: str, budget: Budget) -> Iterator[_Setting]:
    yield path, _PRESENT
    yield f"{path}.usd", Effective(budget.limit, usd_text(budget.limit))
    kind = "hard" if budget.hard else "soft"
    yield f"{path}.kind", Effective(kind, kind)


def _setting(kind: type, name: str) -> tuple[str, Callable[[Any], str]]:
    """Name of a field's setting, and how its value is written."""
    setting, write = name, _text
    for end, replaced_by, unit in _UNITS:
        if name.endswith(end):
            setting, write = name.removesuffix(end) + replaced_by, unit
            break
    return _NAMES.get((kind, name), setting), _TEXTS.get((kind, name), write)


def _values(values: Mapping[str, object]) -> Iterator[_Setting]:
    for path, value in values.items():
        yield path, Effective(value, _UNSET if value is None else _text(value))


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(_text, cast("tuple[Any, ...]", value))) or "[]"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return ", ".join(f"{name}={_text(each)}" for name, each in pairs) or "{}"
    return _UNSET if value == "" else str(value)


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
