"""Summary of a configuration, as text and as data."""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict, replace
from decimal import Decimal

from headgate.config.class_rules import class_table
from headgate.config.quantities import address_text, day_text, duration_text, short_duration_text, size_text, usd_text
from headgate.config.setting_types import UNLIMITED
from headgate.config.settings import PoolSettings, Settings
from headgate.control.options import ReloadTrigger
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.hosts.cell.options import CellOptions
from headgate.identity.options import OperatorTokenOptions
from headgate.ledger.options import LedgerOptions
from headgate.model.caps import Caps
from headgate.model.limits import WHOLE_PPM, Limits
from headgate.model.money import Budget, Price
from headgate.model.policy import Model, OptimizationGoal, Pool, ServiceClass
from headgate.model.routes import WHOLE_SHARE_PPM, ModelRoute
from headgate.model.speed import EngineSpeed
from headgate.model.stage import Stage
from headgate.model.units import Duration
from headgate.ports.tls import ServerTlsOptions
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions

_RULES = ("retry", "health", "headroom", "admission", "routing", "shedding", "degradation")
"""Parts of the policy that apply to all classes, tenants and pools."""


def summary_lines(settings: Settings) -> Iterator[str]:
    """One line per object in the file. Tenants are summarized by their count, because there may be thousands."""
    yield f"configuration {settings.hash}"
    yield (
        f"listens on {address_text(*settings.listen)}{_tls(settings.listen_tls)}; "
        f"admin listener on {address_text(*settings.admin_listen)}{_tls(settings.admin_listen_tls)}"
    )
    if settings.zone:
        yield f"zone {settings.zone}"
    if settings.cell is not None:
        yield _cell(settings.cell)
    if settings.database is not None:
        yield f"additional tenants and keys from {settings.database.url_redacted}; the file takes precedence"
    if settings.ledger is not None:
        yield _ledger(settings.ledger, settings.policy.unit_key)
    if settings.notifications is not None:
        yield f"budget notifications go to {settings.notifications.webhook_shown}"
    if settings.tracing is not None:
        yield _tracing(settings.tracing)
    if settings.records is not None:
        yield _records(settings.records)
    yield from _state(settings)
    yield from _operators(settings)
    yield from _tokens(settings)
    known = {pool.name: pool for pool in settings.policy.pools}
    for pool in settings.pools:
        yield _pool(pool) + _pool_limits(known[pool.name])
    for model in settings.policy.models:
        yield f"model {model.name}: served by {_names(model.pools)}{_tiers(model)}"
    for service_class in settings.policy.classes:
        name = service_class.name
        budgets, promised = settings.stage_budgets.get(name, {}), settings.objectives.get(name, Objectives())
        yield _service_class(service_class) + _stage_budgets(budgets) + _objectives(promised)
    yield "class of a request, by the first rule that applies (`headgate classify REQUEST.json` shows which):"
    steps = list(class_table(settings.policy))
    yield from (f"  {name:<{max(len(each) for each, _ in steps)}}  {said}" for name, said in steps)
    anonymous = f'; without a key: tenant "{settings.anonymous_tenant}"' if settings.anonymous_tenant else ""
    tenants, limited = settings.policy.tenants, [each for each in settings.policy.tenants if each.limits != Limits()]
    limits = f", {len(limited):,} with limits" if limited else ""
    spending = [each for each in tenants if each.budgets]
    limits += f", {len(spending):,} with budgets" if spending else ""
    yield f"callers: {_count(tenants, 'tenant')}{limits}, {_count(settings.keys, 'key')}{anonymous}"


def _operators(settings: Settings) -> Iterator[str]:
    if settings.audit is not None:
        yield f"reads of tenants' data are recorded in {settings.audit.directory}"
    if settings.admin_keys:
        operators = ", ".join(
            f"{each.name} ({each.role or ', '.join(each.permissions)})" for each in settings.admin_keys
        )
        yield f"operators with a key: {operators}"


def _tokens(settings: Settings) -> Iterator[str]:
    for issuer in settings.issuers:
        if issuer.tenant is not None:
            yield f"tokens from {issuer.issuer} are accepted for tenant {issuer.tenant}"
    if (tokens := settings.operators) is not None:
        roles = ", ".join(f"{role} ({' or '.join(values)})" for role, values in tokens.roles)
        yield f"operators with a token from {tokens.issuer}; roles by the claim {tokens.role_claim}: {roles}"
        if tokens.login is not None:
            yield f"the admin pages require a login or an operator key; redirect URL {tokens.login.redirect_url}"


def _operator_tokens(operators: OperatorTokenOptions) -> dict[str, object]:
    """The options without the client secret."""
    login = None if operators.login is None else replace(operators.login, client_secret=None)
    return asdict(replace(operators, login=login))


def summary_data(settings: Settings) -> dict[str, object]:
    """The summary as data, without secrets or key hashes. Numbers are in the core's units."""
    known = {pool.name: _without_name(pool) for pool in settings.policy.pools}
    return {
        "hash": settings.hash,
        "listen": address_text(*settings.listen),
        "admin_listen": address_text(*settings.admin_listen),
        "listen_tls": None if settings.listen_tls is None else asdict(settings.listen_tls),
        "admin_listen_tls": None if settings.admin_listen_tls is None else asdict(settings.admin_listen_tls),
        "admin_allowed_hosts": list(settings.admin_allowed_hosts),
        "scaler_listen": None if settings.scaler_listen is None else address_text(*settings.scaler_listen),
        "pools": {
            pool.name: {
                "engine": pool.engine,
                "served_model": pool.served_model,
                "endpoints": [
                    {
                        "id": each.id,
                        "url": each.url,
                        "in_flight_max": each.in_flight_max,
                        "device": each.device,
                        "zone": each.zone,
                    }
                    for each in pool.endpoints
                ],
                "fleet": _fleet(pool),
                "scaling": None if pool.scaling is None else asdict(pool.scaling),
                "batching": None if pool.batching is None else asdict(pool.batching),
                **known[pool.name],
            }
            for pool in settings.pools
        },
        "models": {each.name: _without_name(each) for each in settings.policy.models},
        "classes": {each.name: _without_name(each) for each in settings.policy.classes},
        "class_rules": [asdict(each) for each in settings.policy.class_rules],
        "rules": {name: asdict(getattr(settings.policy, name)) for name in _RULES},
        "fairness_depth": settings.policy.fairness_depth,
        "reload": settings.reload.value,
        "zone": settings.zone,
        "cell": None if settings.cell is None else _cell_data(settings.cell),
        "database": None if settings.database is None else settings.database.url_redacted,
        "issuers": [asdict(each) for each in settings.issuers],
        "operator_tokens": None if settings.operators is None else _operator_tokens(settings.operators),
        "ledger": None
        if settings.ledger is None
        else {**asdict(settings.ledger), "unit_key": settings.policy.unit_key},
        "notifications": None if settings.notifications is None else settings.notifications.webhook_shown,
        "tracing": None if settings.tracing is None else _tracing_data(settings.tracing),
        "records": None if settings.records is None else asdict(settings.records),
        "audit": None if settings.audit is None else asdict(settings.audit),
        "state_directory": settings.state_directory,
        "stage_budgets": settings.stage_budgets,
        "objectives": {name: asdict(each) for name, each in settings.objectives.items()},
        "operators": {each.name: each.permissions for each in settings.admin_keys},
        "tenants": len(settings.policy.tenants),
        "keys": len(settings.keys),
        "anonymous_tenant": settings.anonymous_tenant,
        "warnings": settings.warnings,
    }


def _cell(cell: CellOptions) -> str:
    who = f"{cell.member_count:,} gateway{'' if cell.member_count == 1 else 's'}"
    named = f"this one is {cell.member_name}" if cell.member_name else "named by host and port"
    by = (
        "one of them is the scheduler"
        if cell.gateways_are_candidates
        else "the scheduler is a separate `headgate scheduler` process, which must be running"
    )
    line = f"cell {cell.name}: {who} with a shared queue in {cell.store_shown}, {named}; {by}"
    if cell.share_floor_ppm == WHOLE_PPM:
        return line
    return f"{line}; without a lease, it uses {_percent(cell.share_floor_ppm)} of each tenant's limits"


def _cell_data(cell: CellOptions) -> dict[str, object]:
    """Cell options with a redacted store URL."""
    data = asdict(cell)
    data["store"] = data.pop("store_shown")
    return data


def _tracing(tracing: TracingOptions) -> str:
    kept = f"{_percent(tracing.sample_ppm)} of all requests, the slowest {_percent(tracing.slowest_ppm)} of each class"
    bound = f"at most {tracing.traces_per_second_max:,} per second"
    conventions = f"conventions {tracing.semantic_conventions}"
    return f"traces go to {_host(tracing)}: rejections, errors, {kept}; {bound}; {conventions}"


def _tracing_data(tracing: TracingOptions) -> dict[str, object]:
    """Tracing options with header names only. Header values and the URL's path may be secrets."""
    return {**asdict(tracing), "endpoint": _host(tracing), "headers": sorted(tracing.headers)}


def _host(tracing: TracingOptions) -> str:
    scheme, _, rest = tracing.endpoint.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _records(records: RecordsOptions) -> str:
    kept = f"{duration_text(records.retention_ns)} or up to {size_text(records.bytes_max)}"
    return f"request records in {records.directory}, kept for {kept}, whichever is reached first"


def _state(settings: Settings) -> Iterator[str]:
    if settings.reload is ReloadTrigger.SIGNAL:
        yield "reloads changed files only on SIGHUP"
    if settings.state_directory is not None and settings.cell is None:
        yield f"learned speeds in {settings.state_directory}"


def _tls(options: ServerTlsOptions | None) -> str:
    if options is None:
        return ""
    return " with TLS" if options.client_ca is None else " with TLS and client certificates"


def _stage_budgets(budgets: Mapping[Stage, Duration]) -> str:
    said = [f"{stage.value} {duration_text(length)}" for stage, length in budgets.items()]
    return f", stage budgets: {', '.join(said)}" if said else ""


def _objectives(promised: Objectives) -> str:
    said: list[str] = []
    if promised.ttft_ppm is not None:
        said.append(f"{_percent(promised.ttft_ppm)} within ttft")
    if promised.duration_ns is not None and promised.duration_ppm is not None:
        said.append(f"{_percent(promised.duration_ppm)} done within {duration_text(promised.duration_ns)}")
    if promised.availability_ppm is not None:
        said.append(f"{_percent(promised.availability_ppm)} available")
    if promised.cost_per_1k_tokens is not None:
        said.append(f"at most ${usd_text(promised.cost_per_1k_tokens)} per thousand tokens")
    return f", objectives: {', '.join(said)}" if said else ""


def _percent(ppm: int) -> str:
    return f"{Decimal(ppm) / 10_000:f} %"


def _fleet(pool: PoolSettings) -> dict[str, object]:
    """Fleet options with only the names of environment variables, because their values may be secrets."""
    match pool.fleet:
        case DnsOptions():
            return {"kind": "dns", **asdict(pool.fleet)}
        case ProcessOptions():
            kind = "processes" if pool.fleet.ray is None else "ray"
            return {"kind": kind, **asdict(pool.fleet), "environment": sorted(pool.fleet.environment)}
        case None:
            return {"kind": "static"}


def _without_name(each: Pool | Model | ServiceClass) -> dict[str, object]:
    return {name: value for name, value in asdict(each).items() if name != "name"}


def _pool(pool: PoolSettings) -> str:
    return f"pool {pool.name}: {_endpoints(pool)}, model {pool.served_model}{_scaled(pool)}{_batched(pool)}"


def _endpoints(pool: PoolSettings) -> str:
    match pool.fleet:
        case DnsOptions(name=name, port=port):
            what = f"the SRV records of {name}" if port is None else f"the addresses of {name}, port {port}"
            return f"{pool.engine} endpoints at {what}, at most {pool.fleet.in_flight_max} in flight on each"
        case ProcessOptions():
            each = f"at most {pool.fleet.in_flight_max} in flight on each"
            number = (
                f"{pool.fleet.endpoint_count:,} {pool.engine} process{'' if pool.fleet.endpoint_count == 1 else 'es'}"
            )
            where = "on this machine" if pool.fleet.ray is None else f"in the Ray cluster at {pool.fleet.ray.address}"
            return f"{number} {where}, {each}"
        case None:
            slots = sum(endpoint.in_flight_max for endpoint in pool.endpoints)
            return f"{_count(pool.endpoints, f'{pool.engine} endpoint')}, at most {slots} in flight"


def _scaled(pool: PoolSettings) -> str:
    rules = pool.scaling
    return "" if rules is None else f", scaled from {rules.endpoints_min} to {rules.endpoints_max} endpoints"


def _batched(pool: PoolSettings) -> str:
    rules = pool.batching
    if rules is None:
        return ""
    return f", batches of up to {rules.batch_size_max} inputs after at most {duration_text(rules.delay_ns_max)}"


def _pool_limits(pool: Pool) -> str:
    """A pool's configured speed, memory, lengths and prices."""
    text = "" if pool.speed == EngineSpeed() else f", a step takes {short_duration_text(pool.speed.step_ps)}"
    if pool.kv_tokens is not None:
        text += f", {pool.kv_tokens:,} KV tokens per endpoint"
    text += _range("prompts", pool.prompt_tokens_min, pool.prompt_tokens_max)
    text += _range("outputs", pool.output_tokens_min, pool.output_tokens_max)
    return text + "".join(f", price {_price(each)}" for each in pool.prices)


def _range(what: str, least: int, most: int | None) -> str:
    if not least and most is None:
        return ""
    least_text = f" from {least:,}" if least else ""
    most_text = "" if most is None else f" up to {most:,}"
    return f", for {what}{least_text}{most_text} tokens"


def _tiers(model: Model) -> str:
    tiers = f", {_count(model.tiers, 'tier')}" if model.tiers else ""
    tiers += f", {_count(model.routes, 'route')} by {model.sticky}" if model.routes else ""
    tiers += "".join(_mirror(each) for each in model.routes)
    if model.overflow is not None:
        after = duration_text(model.overflow.after_ns)
        tiers += f", overflow to {_names(model.overflow.pools)} above a wait of {after}"
    return tiers + (f", fallbacks {_names(model.fallbacks)}" if model.fallbacks else "")


def _mirror(route: ModelRoute) -> str:
    if route.mirror is None:
        return ""
    percent = 100 * route.mirror.share_ppm / WHOLE_SHARE_PPM
    return f", {percent:g} % of route {route.name} copied to {_names(route.mirror.pools)}"


def _service_class(each: ServiceClass) -> str:
    waits = duration_text(each.queue_wait_ns_max)
    return (
        f"class {each.name}: band {each.band}, for {_selected_by(each)}, waits at most {waits}"
        f"{_pools_text(each)}{_targets_text(each)}{_spending_text(each)}{_caps_text(each.caps)}"
    )


def _targets_text(each: ServiceClass) -> str:
    said: list[str] = []
    if each.ttft_ns is not None:
        said.append(f"ttft {duration_text(each.ttft_ns)}")
    if each.tpot_ns is not None:
        said.append(f"tpot {duration_text(each.tpot_ns)}")
    if each.e2e_ns is not None:
        said.append(f"e2e {duration_text(each.e2e_ns)}")
    if each.min_share_percent:
        said.append(f"at least {each.min_share_percent} % of engine time")
    if each.reserve_percent:
        said.append(f"{each.reserve_percent} % of slots reserved")
    if each.optimize_for is not OptimizationGoal.LATENCY:
        said.append(f"optimizes for {each.optimize_for}")
    if each.degradation_steps:
        said.append(f"degrades at level {_names(tuple(str(step.level) for step in each.degradation_steps))}")
    if each.hedging:
        said.append("hedging")
    return "".join(f", {part}" for part in said)


def _spending_text(each: ServiceClass) -> str:
    said = [_budget(budget) for budget in each.budgets]
    if each.cost_per_request_max is not None:
        said.append(f"at most ${usd_text(each.cost_per_request_max)} per request")
    if each.cost_per_unit_max is not None:
        said.append(f"at most ${usd_text(each.cost_per_unit_max)} per unit")
    return "".join(f", {part}" for part in said)


def _budget(each: Budget) -> str:
    return f"${usd_text(each.limit)} per {each.period}" + ("" if each.hard else ", then degraded")


def _price(each: Price) -> str:
    since = f" from {day_text(each.since)}" if each.since else ""
    if each.input_per_1m_tokens or each.cached_per_1m_tokens or each.output_per_1m_tokens:
        tokens = (each.input_per_1m_tokens, each.cached_per_1m_tokens, each.output_per_1m_tokens)
        return f"${' / $'.join(usd_text(price) for price in tokens)} per million input / cached / output tokens{since}"
    return f"${usd_text(each.per_hour)} per endpoint hour ({each.kind}){since}"


def _ledger(ledger: LedgerOptions, unit: str | None) -> str:
    after = ", then as hourly sums" if ledger.roll_up_hourly else ""
    kept = f", with metadata {_names(ledger.metadata_keys)}" if ledger.metadata_keys else ""
    units = f", units by {unit}" if unit else ""
    idle = "shared among tenants" if ledger.share_idle_cost else "paid by the platform"
    on_failure = "rejected" if ledger.reject_unrecorded else "served without a record"
    waits = f"up to {size_text(ledger.spool_bytes_max)} of rows wait in {ledger.spool_directory}"
    return (
        f"ledger of all attempts, kept for {ledger.retention_days:,} days{after}{kept}{units}; {waits} while the "
        f"database is unreachable; idle time is {idle}; if the disk fails, requests are {on_failure}"
    )


def _selected_by(each: ServiceClass) -> str:
    ways = [f"service_tier {_names(each.service_tiers)}"] if each.service_tiers else []
    if each.accepts_unclassified and each.prompt_tokens_max is not None:
        ways.append(f"prompts up to {each.prompt_tokens_max:,} tokens")
    elif each.accepts_unclassified:
        ways.append("prompts of any length")
    return " and ".join(ways) or "requests that select it"


def _pools_text(each: ServiceClass) -> str:
    return f", on {_names(each.pools)}" if each.pools else ""


def _caps_text(caps: Caps) -> str:
    """Caps that differ from the defaults, in configuration file notation."""
    usual = asdict(Caps())
    own = {name: value for name, value in asdict(caps).items() if value != usual[name]}
    return "".join(f", {name} {_cap(value)}" for name, value in own.items())


def _cap(value: object) -> str:
    match value:
        case None:
            return UNLIMITED
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _count(things: Sized, noun: str) -> str:
    number = len(things)
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
