"""Do two processes run the same configuration?

The hash is over what the configuration comes to, not over its text: comments, order of
sections and spelled-out defaults do not change it. A changed secret does, yet the hash stands
in metrics, where anyone who knows the rest of the file could try guesses of a weak secret
against it. So secrets enter only as the key of an HMAC, stretched to make each guess dear.

Gateways of one cell may listen and stand at different places and are called differently: where there is a cell the hash
leaves that out, so that all of them name their configuration alike.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from headgate.config.settings import PoolSettings, Settings
from headgate.control.options import NotificationOptions
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.hosts.cell.options import CellOptions
from headgate.ledger.options import DatabaseOptions
from headgate.telemetry.traces.options import TracingOptions
from headgate.wire.keys import format_digest

_STRETCH = 100_000
_HEX_DIGITS = 16
_OF_ONE_PROCESS = ("listen", "admin_listen", "admin_hosts", "scaler_listen", "zone")
"""What gateways of one cell need not have alike."""


def fingerprint(settings: Settings) -> str:
    own = () if settings.cell is None else _OF_ONE_PROCESS
    parts = {name: part for name, part in _parts(settings).items() if name not in own}
    canonical = msgspec.json.encode(parts, order="deterministic")
    return hmac.new(_key(settings), canonical, hashlib.sha256).hexdigest()[:_HEX_DIGITS]


def _key(settings: Settings) -> bytes:
    """All secrets together; nothing where there are none."""
    api_keys = {pool.name: pool.api_key for pool in settings.pools if pool.api_key is not None}
    others: list[object] = [
        {pool.name: _variables(pool) for pool in settings.pools if _variables(pool)},
        _store_with_secret(settings.cell),
        _database_with_secret(settings.database),
        _webhook_with_secret(settings.notices),
        _collector_with_secret(settings.tracing),
    ]
    # What nobody uses leaves no trace, so that a new kind of secret changes no hash of those who have none.
    while others and not others[-1]:
        others.pop()
    if settings.key_secret is None and not api_keys and not others:
        return b""
    known = (settings.key_secret, api_keys, *others)
    secrets = msgspec.json.encode(known, order="deterministic")
    return hashlib.pbkdf2_hmac("sha256", secrets, b"headgate configuration", _STRETCH)


def _variables(pool: PoolSettings) -> Mapping[str, str]:
    """What its engines get in their environment, which may hold keys."""
    return pool.fleet.environment if isinstance(pool.fleet, ProcessOptions) else {}


def _without_variables(pool: PoolSettings) -> DnsOptions | ProcessOptions | None:
    return replace(pool.fleet, environment={}) if isinstance(pool.fleet, ProcessOptions) else pool.fleet


def _store_with_secret(cell: CellOptions | None) -> str | None:
    return None if cell is None or cell.store == cell.store_shown else cell.store


def _database_with_secret(database: DatabaseOptions | None) -> str | None:
    return None if database is None or database.url == database.url_shown else database.url


def _webhook_with_secret(notices: NotificationOptions | None) -> str | None:
    return None if notices is None or notices.webhook == notices.webhook_shown else notices.webhook


def _collector_with_secret(tracing: TracingOptions | None) -> tuple[str, Mapping[str, str]] | None:
    """Where spans go, with what goes along: the headers, and what stands after the host, may be secrets."""
    return None if tracing is None else (tracing.endpoint, tracing.headers)


def _parts(settings: Settings) -> dict[str, object]:
    """Everything but the secrets. The order of classes has a meaning and is kept; other orders have none."""
    pools = [
        replace(
            pool,
            api_key=None,
            endpoints=tuple(sorted(pool.endpoints, key=lambda each: each.id)),
            fleet=_without_variables(pool),
        )
        for pool in settings.pools
    ]
    policy = settings.policy
    parts: dict[str, object] = {
        "listen": settings.listen,
        "admin_listen": settings.admin_listen,
        "admin_hosts": sorted(settings.admin_hosts),
        "scaler_listen": settings.scaler_listen,
        "drain_grace_ns": settings.drain_grace_ns,
        "limits": settings.limits,
        "error_docs": settings.error_docs,
        "quote_engine_errors": settings.quote_engine_errors,
        "zone": settings.zone,
        "keys": {format_digest(digest): tenant for digest, tenant in settings.keys.items()},
        "anonymous_tenant": settings.anonymous_tenant,
        "pools": sorted(pools, key=lambda each: each.name),
        "policy": replace(
            policy,
            pools=tuple(sorted(policy.pools, key=lambda each: each.name)),
            models=tuple(sorted(policy.models, key=lambda each: each.name)),
            tenants=tuple(sorted(policy.tenants, key=lambda each: each.id)),
        ),
    }
    if settings.database is not None:
        parts["database"] = replace(settings.database, url="")
    if settings.admin_keys:
        parts["admin_keys"] = {
            each.name: (format_digest(each.digest), sorted(each.permissions)) for each in settings.admin_keys
        }
    if settings.ledger is not None:
        # Which folder is at hand differs from machine to machine.
        parts["ledger"] = settings.ledger if settings.cell is None else replace(settings.ledger, spool="")
    if settings.notices is not None:
        parts["notices"] = replace(settings.notices, webhook="")
    if settings.tracing is not None:
        parts["tracing"] = replace(settings.tracing, endpoint="", headers=dict.fromkeys(settings.tracing.headers, ""))
    if settings.records is not None:
        parts["records"] = settings.records if settings.cell is None else replace(settings.records, folder="")
    if settings.state_folder is not None and settings.cell is None:
        parts["state_folder"] = settings.state_folder
    if settings.stage_budgets:
        parts["stage_budgets"] = settings.stage_budgets
    if settings.objectives:
        parts["objectives"] = settings.objectives
    if settings.cell is not None:
        parts["cell"] = replace(settings.cell, store="", member=None)
    return parts
