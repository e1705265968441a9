"""Hash of a configuration, used to compare the configurations of two processes.

The hash covers the resulting settings, not the text of the file: comments, the order of sections and explicit defaults
do not change it. Changing a secret does change it. Because metrics publish the hash, it could be used to guess a weak
secret offline. Secrets are therefore used only as the key of an HMAC, stretched with PBKDF2 to make each guess
expensive.

The gateways of a cell may have different addresses, zones, names and directories. In a cell, the hash excludes these,
so that all members report the same hash.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from headgate.config.settings import PoolSettings, Settings
from headgate.control.options import NotificationOptions, ReloadTrigger
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.hosts.cell.options import CellOptions
from headgate.identity.options import OperatorTokenOptions
from headgate.ledger.options import DatabaseOptions
from headgate.ports.tls import ClientTlsOptions
from headgate.telemetry.traces.options import TracingOptions
from headgate.wire.keys import format_digest

_PBKDF2_ITERATIONS = 100_000
_HEX_DIGITS = 16
_SECRET_HEX_DIGITS = 8
_PER_PROCESS_SETTINGS = (
    "listen",
    "admin_listen",
    "listen_tls",
    "admin_listen_tls",
    "admin_allowed_hosts",
    "scaler_listen",
    "zone",
    "reload",
)
"""Settings that may differ between the gateways in a cell."""


def fingerprint(settings: Settings) -> str:
    own = () if settings.cell is None else _PER_PROCESS_SETTINGS
    parts = {name: part for name, part in _parts(settings).items() if name not in own}
    canonical = msgspec.json.encode(parts, order="deterministic")
    return hmac.new(_key(settings), canonical, hashlib.sha256).hexdigest()[:_HEX_DIGITS]


def secret_fingerprint(secret: bytes) -> str:
    """Identifies a secret in /status and metrics. It is stretched like the secrets in the configuration hash."""
    return hashlib.pbkdf2_hmac("sha256", secret, b"headgate key secret", _PBKDF2_ITERATIONS).hex()[:_SECRET_HEX_DIGITS]


def _key(settings: Settings) -> bytes:
    """HMAC key derived from all secrets; empty if there are no secrets."""
    api_keys = {pool.name: pool.api_key for pool in settings.pools if pool.api_key is not None}
    others: list[object] = [
        {pool.name: _engine_environment(pool) for pool in settings.pools if _engine_environment(pool)},
        _store_with_secret(settings.cell),
        _database_with_secret(settings.database),
        _webhook_with_secret(settings.notifications),
        _collector_with_secret(settings.tracing),
        _client_secret(settings.operators),
    ]
    # Trailing unused kinds are removed, so that a new kind of secret does not change existing hashes.
    while others and not others[-1]:
        others.pop()
    if not settings.key_secrets and not api_keys and not others:
        return b""
    # A single secret is not in a list, because the setting was not a list at first.
    key_secrets = settings.key_secrets if len(settings.key_secrets) > 1 else settings.key_secret
    known = (key_secrets, api_keys, *others)
    secrets = msgspec.json.encode(known, order="deterministic")
    return hashlib.pbkdf2_hmac("sha256", secrets, b"headgate configuration", _PBKDF2_ITERATIONS)


def _engine_environment(pool: PoolSettings) -> Mapping[str, str]:
    """Environment variables for the pool's engines. They may contain secrets."""
    return pool.fleet.environment if isinstance(pool.fleet, ProcessOptions) else {}


def _tls_without_paths(tls: ClientTlsOptions | None) -> ClientTlsOptions | None:
    """TLS options without the directories of the files, which may differ between machines."""
    if tls is None:
        return None
    ca, certificate, key = (None if each is None else Path(each).name for each in (tls.ca, tls.certificate, tls.key))
    return ClientTlsOptions(ca, certificate, key, tls.server_name)


def _fleet_without_environment(pool: PoolSettings) -> DnsOptions | ProcessOptions | None:
    return replace(pool.fleet, environment={}) if isinstance(pool.fleet, ProcessOptions) else pool.fleet


def _store_with_secret(cell: CellOptions | None) -> str | None:
    return None if cell is None or cell.store == cell.store_shown else cell.store


def _database_with_secret(database: DatabaseOptions | None) -> str | None:
    return None if database is None or database.url == database.url_redacted else database.url


def _webhook_with_secret(options: NotificationOptions | None) -> str | None:
    return None if options is None or options.webhook == options.webhook_shown else options.webhook


def _collector_with_secret(tracing: TracingOptions | None) -> tuple[str, Mapping[str, str]] | None:
    """Collector URL and headers. The URL's path and the headers may contain secrets."""
    return None if tracing is None else (tracing.endpoint, tracing.headers)


def _client_secret(operators: OperatorTokenOptions | None) -> str | None:
    return None if operators is None or operators.login is None else operators.login.client_secret


def _parts(settings: Settings) -> dict[str, object]:
    """All settings except secrets. Classes keep their order, because it is significant. Everything else is sorted."""
    pools = [
        replace(
            pool,
            api_key=None,
            tls=_tls_without_paths(pool.tls) if settings.cell is not None else pool.tls,
            endpoints=tuple(sorted(pool.endpoints, key=lambda each: each.id)),
            fleet=_fleet_without_environment(pool),
        )
        for pool in settings.pools
    ]
    policy = settings.policy
    parts: dict[str, object] = {
        "listen": settings.listen,
        "admin_listen": settings.admin_listen,
        "admin_allowed_hosts": sorted(settings.admin_allowed_hosts),
        "scaler_listen": settings.scaler_listen,
        "drain_grace_ns": settings.drain_grace_ns,
        "limits": settings.limits,
        "error_docs_url": settings.error_docs_url,
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
        # The directory may differ between machines.
        parts["ledger"] = settings.ledger if settings.cell is None else replace(settings.ledger, spool_directory="")
    if settings.notifications is not None:
        parts["notifications"] = replace(settings.notifications, webhook="")
    if settings.tracing is not None:
        parts["tracing"] = replace(settings.tracing, endpoint="", headers=dict.fromkeys(settings.tracing.headers, ""))
    parts |= _directory_parts(settings) | _tls_parts(settings) | _issuer_parts(settings)
    if settings.stage_budgets:
        parts["stage_budgets"] = settings.stage_budgets
    if settings.objectives:
        parts["objectives"] = settings.objectives
    if settings.reload is not ReloadTrigger.WATCH:
        parts["reload"] = settings.reload
    if settings.cell is not None:
        parts["cell"] = replace(settings.cell, store="", member_name=None)
    return parts


def _directory_parts(settings: Settings) -> dict[str, object]:
    """Settings of local files. In a cell, the directories may differ between machines."""
    parts: dict[str, object] = {}
    if settings.records is not None:
        parts["records"] = settings.records if settings.cell is None else replace(settings.records, directory="")
    if settings.audit is not None:
        parts["audit"] = settings.audit if settings.cell is None else replace(settings.audit, directory="")
    if settings.state_directory is not None and settings.cell is None:
        parts["state_directory"] = settings.state_directory
    return parts


def _issuer_parts(settings: Settings) -> dict[str, object]:
    issuers = [
        replace(each, tls=_tls_without_paths(each.tls)) if settings.cell is not None else each
        for each in sorted(settings.issuers, key=lambda each: each.name)
    ]
    parts: dict[str, object] = {"issuers": issuers} if issuers else {}
    if (operators := settings.operators) is not None:
        login = None if operators.login is None else replace(operators.login, client_secret=None)
        parts["operators"] = replace(operators, login=login)
    return parts


def _tls_parts(settings: Settings) -> dict[str, object]:
    admin = (settings.admin_listen_tls, settings.admin_client_tls)
    known = {"listen_tls": settings.listen_tls, "admin_listen_tls": admin if admin[0] else None}
    return {name: part for name, part in known.items() if part is not None}
