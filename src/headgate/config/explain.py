"""What does a configuration mean, in a few lines that a person can check at a glance?"""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict
from decimal import Decimal

from headgate.config.class_rules import class_table
from headgate.config.quantities import address_text, day_text, duration_text, fine_text, size_text, usd_text
from headgate.config.setting_types import UNLIMITED
from headgate.config.settings import PoolSettings, Settings
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.hosts.cell.options import CellOptions
from headgate.ledger.options import LedgerOptions
from headgate.model.caps import Caps
from headgate.model.limits import Limits
from headgate.model.money import Budget, Price
from headgate.model.policy import Model, Pool, Promise, ServiceClass
from headgate.model.speed import EngineSpeed
from headgate.model.stage import Stage
from headgate.model.units import Duration
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions

_RULES = ("retry", "health", "headroom", "admission", "routing", "shedding", "ladder")
"""The parts of the policy that hold for all alike."""


def explain(settings: Settings) -> Iterator[str]:
    """One line per thing that the file names. Tenants are counted, since there may be thousands."""
    yield f"configuration {settings.hash}"
    yield f"listens on {address_text(*settings.listen)}, for admins on {address_text(*settings.admin_listen)}"
    if settings.zone:
        yield f"stands in zone {settings.zone}"
    if settings.cell is not None:
        yield _cell(settings.cell)
    if settings.database is not None:
        yield f"tenants and keys also from {settings.database.url_shown}; where both name one, the file's counts"
    if settings.ledger is not None:
        yield _ledger(settings.ledger, settings.policy.unit)
    if settings.notices is not None:
        yield f"notices of budgets go to {settings.notices.webhook_shown}"
    if settings.tracing is not None:
        yield _tracing(settings.tracing)
    if settings.records is not None:
        yield _records(settings.records)
    yield from _state(settings)
    if settings.admin_keys:
        operators = ", ".join(f"{each.name} ({', '.join(each.permissions)})" for each in settings.admin_keys)
        yield f"operators with a key: {operators}"
    known = {pool.name: pool for pool in settings.policy.pools}
    for pool in settings.pools:
        yield _pool(pool) + _known(known[pool.name])
    for model in settings.policy.models:
        yield f"model {model.name}: served by {_names(model.pools)}{_rungs(model)}"
    for service_class in settings.policy.classes:
        name = service_class.name
        budgets, promised = settings.stage_budgets.get(name, {}), settings.objectives.get(name, Objectives())
        yield _service_class(service_class) + _stage_budgets(budgets) + _objectives(promised)
    yield "the class of a request, by the first of these that applies (`headgate classify REQUEST.json` shows which):"
    steps = list(class_table(settings.policy))
    yield from (f"  {name:<{max(len(each) for each, _ in steps)}}  {said}" for name, said in steps)
    anonymous = f'; without a key: tenant "{settings.anonymous_tenant}"' if settings.anonymous_tenant else ""
    tenants, limited = settings.policy.tenants, [each for each in settings.policy.tenants if each.limits != Limits()]
    limits = f", {len(limited):,} with limits" if limited else ""
    spending = [each for each in tenants if each.budgets]
    limits += f", {len(spending):,} with budgets" if spending else ""
    yield f"callers: {_count(tenants, 'tenant')}{limits}, {_count(settings.keys, 'key')}{anonymous}"


def as_data(settings: Settings) -> dict[str, object]:
    """The same for machines, without secrets or hashes of keys. Numbers are in the units of the core."""
    known = {pool.name: _without_name(pool) for pool in settings.policy.pools}
    return {
        "hash": settings.hash,
        "listen": address_text(*settings.listen),
        "admin_listen": address_text(*settings.admin_listen),
        "admin_hosts": list(settings.admin_hosts),
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
        "zone": settings.zone,
        "cell": None if settings.cell is None else _cell_data(settings.cell),
        "database": None if settings.database is None else settings.database.url_shown,
        "ledger": None if settings.ledger is None else {**asdict(settings.ledger), "unit": settings.policy.unit},
        "notices": None if settings.notices is None else settings.notices.webhook_shown,
        "tracing": None if settings.tracing is None else _tracing_data(settings.tracing),
        "records": None if settings.records is None else asdict(settings.records),
        "state_folder": settings.state_folder,
        "stage_budgets": settings.stage_budgets,
        "objectives": {name: asdict(each) for name, each in settings.objectives.items()},
        "operators": {each.name: each.permissions for each in settings.admin_keys},
        "tenants": len(settings.policy.tenants),
        "keys": len(settings.keys),
        "anonymous_tenant": settings.anonymous_tenant,
        "warnings": settings.warnings,
    }


def _cell(cell: CellOptions) -> str:
    who = f"{cell.members:,} gateway{'' if cell.members == 1 else 's'}"
    named = f"as {cell.member}" if cell.member else "called after its host and port"
    by = "one of them schedules" if cell.gateways_schedule else "`headgate scheduler` schedules, so keep one running"
    return f"cell {cell.name}: {who} share one queue through {cell.store_shown}, this one {named}; {by}"


def _cell_data(cell: CellOptions) -> dict[str, object]:
    """The address of the store only as everybody may see it."""
    told = asdict(cell)
    told["store"] = told.pop("store_shown")
    return told


def _tracing(tracing: TracingOptions) -> str:
    kept = f"{_percent(tracing.sample_ppm)} of all, {_percent(tracing.slowest_ppm)} slowest of each class"
    bound = f"{tracing.kept_per_second_max:,} a second at most"
    return f"traces go to {_host(tracing)}: refusals, errors, {kept}, {bound}, named by {tracing.names}"


def _tracing_data(tracing: TracingOptions) -> dict[str, object]:
    """Headers by name; they and what stands after the host may be secrets."""
    return {**asdict(tracing), "endpoint": _host(tracing), "headers": sorted(tracing.headers)}


def _host(tracing: TracingOptions) -> str:
    scheme, _, rest = tracing.endpoint.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _records(records: RecordsOptions) -> str:
    kept = f"{duration_text(records.retention_ns)} or {size_text(records.bytes_max)}"
    return f"what became of requests is kept in {records.folder} for {kept}, whichever is less"


def _state(settings: Settings) -> Iterator[str]:
    if settings.state_folder is not None and settings.cell is None:
        yield f"learned speeds are kept in {settings.state_folder}"


def _stage_budgets(budgets: Mapping[Stage, Duration]) -> str:
    said = [f"{stage.value} {duration_text(length)}" for stage, length in budgets.items()]
    return f", budget of its stages: {', '.join(said)}" if said else ""


def _objectives(promised: Objectives) -> str:
    said: list[str] = []
    if promised.ttft_ppm is not None:
        said.append(f"{_percent(promised.ttft_ppm)} begin in time")
    if promised.duration_ns is not None and promised.duration_ppm is not None:
        said.append(f"{_percent(promised.duration_ppm)} done within {duration_text(promised.duration_ns)}")
    if promised.served_ppm is not None:
        said.append(f"{_percent(promised.served_ppm)} served")
    if promised.cost_per_1k_tokens is not None:
        said.append(f"${usd_text(promised.cost_per_1k_tokens)} a thousand tokens at most")
    return f", objectives: {', '.join(said)}" if said else ""


def _percent(ppm: int) -> str:
    return f"{Decimal(ppm) / 10_000:f} %"


def _fleet(pool: PoolSettings) -> dict[str, object]:
    """Where the endpoints come from. Variables of engines are named; their values may be secrets."""
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
    return f"pool {pool.name}: {_endpoints(pool)}, as {pool.served_model}{_scaled(pool)}{_batched(pool)}"


def _endpoints(pool: PoolSettings) -> str:
    match pool.fleet:
        case DnsOptions(name=name, port=port):
            what = f"services of {name}" if port is None else f"addresses of {name} at port {port}"
            return f"the {what} as endpoints of {pool.engine}, {pool.fleet.in_flight_max} in flight on each at most"
        case ProcessOptions():
            each = f"{pool.fleet.in_flight_max} in flight on each at most"
            number = f"{pool.fleet.endpoints:,} process{'' if pool.fleet.endpoints == 1 else 'es'}"
            where = "here" if pool.fleet.ray is None else f"in the Ray cluster at {pool.fleet.ray.address}"
            return f"{number} of {pool.engine} started {where}, {each}"
        case None:
            places = sum(endpoint.in_flight_max for endpoint in pool.endpoints)
            return f"{_count(pool.endpoints, 'endpoint')} of {pool.engine}, {places} in flight at most"


def _scaled(pool: PoolSettings) -> str:
    rules = pool.scaling
    return "" if rules is None else f", scaled from {rules.endpoints_min} to {rules.endpoints_max} endpoints"


def _batched(pool: PoolSettings) -> str:
    rules = pool.batching
    if rules is None:
        return ""
    return f", inputs asked {rules.inputs_max} at a time after {duration_text(rules.delay_ns_max)} at most"


def _known(pool: Pool) -> str:
    """What the scheduler was told of its engines, and what it is meant for."""
    told = "" if pool.speed == EngineSpeed() else f", a step takes {fine_text(pool.speed.step_ps)}"
    if pool.kv_tokens is not None:
        told += f", {pool.kv_tokens:,} KV tokens each"
    told += _range("prompts", pool.prompt_tokens_min, pool.prompt_tokens_max)
    told += _range("answers", pool.output_tokens_min, pool.output_tokens_max)
    return told + "".join(f", costs {_price(each)}" for each in pool.prices)


def _range(what: str, least: int, most: int | None) -> str:
    if not least and most is None:
        return ""
    least_text = f" from {least:,}" if least else ""
    most_text = "" if most is None else f" up to {most:,}"
    return f", for {what}{least_text}{most_text} tokens"


def _rungs(model: Model) -> str:
    rungs = f", by {_count(model.rungs, 'rung')}" if model.rungs else ""
    return rungs + (f", else as {_names(model.fallbacks)}" if model.fallbacks else "")


def _service_class(each: ServiceClass) -> str:
    waits = duration_text(each.queue_wait_ns_max)
    return (
        f"class {each.name}: band {each.band}, takes {_taken(each)}, waits {waits} at most"
        f"{_where(each)}{_promised(each)}{_spent(each)}{_capped(each.caps)}"
    )


def _promised(each: ServiceClass) -> str:
    said: list[str] = []
    if each.ttft_ns is not None:
        said.append(f"begins within {duration_text(each.ttft_ns)}")
    if each.tpot_ns is not None:
        said.append(f"{duration_text(each.tpot_ns)} per token")
    if each.floor_percent:
        said.append(f"{each.floor_percent} % of the work at least")
    if each.reserve_percent:
        said.append(f"{each.reserve_percent} % of the places kept free for it")
    if each.promise is not Promise.LATENCY:
        said.append(f"promises {each.promise}")
    if each.variants:
        said.append(f"gives way at level {_names(tuple(str(variant.level) for variant in each.variants))}")
    if each.hedges:
        said.append("hedges")
    return "".join(f", {part}" for part in said)


def _spent(each: ServiceClass) -> str:
    said = [_budget(budget) for budget in each.budgets]
    if each.cost_max is not None:
        said.append(f"${usd_text(each.cost_max)} a request at most")
    if each.unit_cost_max is not None:
        said.append(f"${usd_text(each.unit_cost_max)} a unit at most")
    return "".join(f", {part}" for part in said)


def _budget(each: Budget) -> str:
    return f"${usd_text(each.limit)} a {each.period}" + ("" if each.hard else " and then gives up quality")


def _price(each: Price) -> str:
    since = f" from {day_text(each.since)}" if each.since else ""
    if each.input_tokens or each.cached_tokens or each.output_tokens:
        tokens = (each.input_tokens, each.cached_tokens, each.output_tokens)
        return f"${' / $'.join(usd_text(price) for price in tokens)} a million input / cached / output tokens{since}"
    return f"${usd_text(each.hour)} an hour of each endpoint ({each.kind}){since}"


def _ledger(ledger: LedgerOptions, unit: str | None) -> str:
    kept = f", with metadata {_names(ledger.metadata)}" if ledger.metadata else ""
    units = f", units by {unit}" if unit else ""
    idle = "shared among its tenants" if ledger.shares_idle else "the platform's"
    on_failure = "rejected" if ledger.refuses_unrecorded else "served without a record"
    waits = f"up to {size_text(ledger.spool_bytes_max)} wait in {ledger.spool}"
    return (
        f"every attempt is written down for {ledger.retention_days:,} days{kept}{units}; {waits} while the database is "
        f"away; idle time is {idle}; if the disk fails, requests are {on_failure}"
    )


def _taken(each: ServiceClass) -> str:
    ways = [f"service_tier {_names(each.service_tiers)}"] if each.service_tiers else []
    if each.unnamed and each.prompt_tokens_max is not None:
        ways.append(f"prompts up to {each.prompt_tokens_max:,} tokens")
    elif each.unnamed:
        ways.append("prompts of any length")
    return " and ".join(ways) or "those who name it"


def _where(each: ServiceClass) -> str:
    return f", on {_names(each.pools)}" if each.pools else ""


def _capped(caps: Caps) -> str:
    """The caps that differ from the usual ones, as the file would write them."""
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
