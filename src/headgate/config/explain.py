"""What does a configuration mean, in a few lines that a person can check at a glance?"""

from collections.abc import Iterator, Sized
from dataclasses import asdict

from headgate.config.quantities import address_text, duration_text
from headgate.config.schema import UNLIMITED
from headgate.config.settings import PoolSettings, Settings
from headgate.model.caps import Caps
from headgate.model.policy import ServiceClass


def explain(settings: Settings) -> Iterator[str]:
    """One line per thing that the file names. Tenants are counted, since there may be thousands."""
    yield f"configuration {settings.hash}"
    yield f"listens on {address_text(*settings.listen)}, for admins on {address_text(*settings.admin_listen)}"
    for pool in settings.pools:
        yield _pool(pool)
    for model in settings.policy.models:
        yield f"model {model.name}: served by {_names(model.pools)}"
    for service_class in settings.policy.classes:
        yield _service_class(service_class)
    anonymous = f'; without a key: tenant "{settings.anonymous_tenant}"' if settings.anonymous_tenant else ""
    yield f"callers: {_count(settings.policy.tenants, 'tenant')}, {_count(settings.keys, 'key')}{anonymous}"


def as_data(settings: Settings) -> dict[str, object]:
    """The same for machines, without secrets or hashes of keys."""
    return {
        "hash": settings.hash,
        "listen": address_text(*settings.listen),
        "admin_listen": address_text(*settings.admin_listen),
        "pools": {
            pool.name: {
                "engine": pool.engine,
                "served_model": pool.served_model,
                "endpoints": [
                    {"id": each.id, "url": each.url, "in_flight_max": each.in_flight_max} for each in pool.endpoints
                ],
            }
            for pool in settings.pools
        },
        "models": {model.name: {"pools": model.pools} for model in settings.policy.models},
        "classes": {
            each.name: {"band": each.band, "pools": each.pools, "caps": asdict(each.caps)}
            for each in settings.policy.classes
        },
        "tenants": len(settings.policy.tenants),
        "keys": len(settings.keys),
        "anonymous_tenant": settings.anonymous_tenant,
        "warnings": settings.warnings,
    }


def _pool(pool: PoolSettings) -> str:
    places = sum(endpoint.in_flight_max for endpoint in pool.endpoints)
    endpoints = _count(pool.endpoints, "endpoint")
    return f"pool {pool.name}: {endpoints} of {pool.engine}, {places} in flight at most, as {pool.served_model}"


def _service_class(each: ServiceClass) -> str:
    return (
        f"class {each.name}: band {each.band}, takes {_taken(each)}, "
        f"waits {duration_text(each.queue_wait_ns_max)} at most{_where(each)}{_capped(each.caps)}"
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
