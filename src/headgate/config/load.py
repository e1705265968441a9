"""Loads the configuration file.

Loading has five steps: parse the YAML (yaml_document.py), read it according to the schema (schema_reader.py), check
references between sections (references.py, classes.py, pools.py, tenants.py), build the settings, and compute their
hash (fingerprint.py). Each step runs even if an earlier one found problems, so that a single run reports all of them.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from headgate.config import schema_reader, yaml_document
from headgate.config.adapters import adapter_models
from headgate.config.api_keys import caller_auth
from headgate.config.cell import cell_options
from headgate.config.class_rules import class_rules
from headgate.config.classes import service_classes
from headgate.config.database import admin_keys, database_options
from headgate.config.engine_profiles import ProfileFinder
from headgate.config.enum_values import parse_enum
from headgate.config.environment import References, read_file
from headgate.config.error_docs import error_docs
from headgate.config.fingerprint import fingerprint, secret_fingerprint
from headgate.config.fleets import check_cold_start_waits
from headgate.config.identity import issuers, operator_tokens
from headgate.config.ledger import ledger_options, notification_options, unit_key
from headgate.config.limits import edge_limits
from headgate.config.listener_tls import admin_client_tls, check_admin_tls, server_tls
from headgate.config.models import check_models, models
from headgate.config.money import check_money
from headgate.config.observability import (
    audit_options,
    objectives,
    records_options,
    stage_budgets,
    state_directory,
    tracing_options,
)
from headgate.config.policy_rules import (
    admission_rules,
    degradation_rules,
    headroom_rules,
    health_rules,
    retry_rules,
    routing_rules,
    shedding_rules,
)
from headgate.config.pools import policy_pools, pool_settings
from headgate.config.problems import ConfigErrors, ConfigProblem, ConfigReport
from headgate.config.references import check_names, check_references
from headgate.config.routes import check_mirror_pools
from headgate.config.schema import ConfigFile
from headgate.config.settings import Address, Settings
from headgate.config.tenants import tenants
from headgate.control.options import FileStamp, ReloadTrigger, file_stamp
from headgate.model.engine_profile import EngineProfile
from headgate.model.policy import Policy, ServiceClass
from headgate.model.tenant import tenant_table
from headgate.model.units import Duration
from headgate.ports.tls import ClientTlsOptions

_MISSING_HINT = "specify the configuration file with --config, or create one with `headgate init`"
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")


def load(
    path: Path, environ: Mapping[str, str], *, engines: Collection[str], profiles: Mapping[str, EngineProfile]
) -> Settings:
    """Reads the file. `engines` and `profiles` are those that a pool may use by name.

    Raises `ConfigErrors` with all problems.
    """
    text, stamp = _read(path, _MISSING_HINT)
    own = {path: stamp}
    try:
        settings = parse(text, str(path), environ, engines=engines, profiles=profiles)
    except ConfigErrors as errors:
        raise ConfigErrors(errors.problems, {**own, **errors.files}) from None
    return replace(settings, files={**own, **settings.files})


def parse(
    text: str,
    name: str,
    environ: Mapping[str, str],
    *,
    engines: Collection[str],
    profiles: Mapping[str, EngineProfile],
) -> Settings:
    """Like `load`, for the text of a file. `name` is the file name used in messages."""
    report = ConfigReport(name)
    references = References(environ, Path(name).parent)
    report.files = references.files
    file = schema_reader.read(yaml_document.parse(text, report), ConfigFile, references, report)
    settings = _settings(file, engines, ProfileFinder(profiles, Path(name).parent, report, references.files), report)
    report.raise_if_invalid()
    settings = replace(settings, warnings=tuple(str(each) for each in report.warnings()), files=references.files)
    ids = tuple(secret_fingerprint(each) for each in settings.key_secrets)
    return replace(settings, hash=fingerprint(settings), key_secret_ids=ids)


def key_secret(path: Path, environ: Mapping[str, str]) -> bytes | None:
    """Reads only the secret for new keys; the rest of the file may be incomplete. Raises `ConfigErrors`."""
    secrets = _load_single("key_secret", path, environ).key_secret
    return secrets[0].encode() if secrets else None


def admin_listen(path: Path, environ: Mapping[str, str]) -> Address:
    """Reads only `admin_listen`, so that the gateway's secrets do not have to be set. Raises `ConfigErrors`."""
    return Address(*_load_single("admin_listen", path, environ).admin_listen)


def admin_tls(path: Path, environ: Mapping[str, str]) -> ClientTlsOptions | None:
    """Reads only `admin_listen_tls`; None if the admin listener has no TLS. Raises `ConfigErrors`."""
    return admin_client_tls(_load_single("admin_listen_tls", path, environ).admin_listen_tls, str(path))


def database_url(path: Path, environ: Mapping[str, str]) -> str | None:
    """Reads only the database URL, with its password; None if the file has none. Raises `ConfigErrors`."""
    database = _load_single("database", path, environ).database
    return None if database is None else database.url


def _load_single(setting: str, path: Path, environ: Mapping[str, str]) -> ConfigFile:
    """Loads the file as if it contained only this setting."""
    report = ConfigReport(str(path))
    tree = yaml_document.parse(read_text(path), report)
    report.raise_if_invalid()
    value = tree.get(setting) if isinstance(tree, dict) else None
    references = References(environ, path.parent)
    file = schema_reader.read({setting: value, "pools": {}, "models": {}}, ConfigFile, references, report)
    report.raise_if_invalid()
    return file


def read_text(path: Path, *, missing: str = _MISSING_HINT) -> str:
    """Reads the file. `missing` is the hint for a file that does not exist. Raises `ConfigErrors`."""
    return _read(path, missing)[0]


def _read(path: Path, missing: str) -> tuple[str, FileStamp]:
    try:
        content, stamp = read_file(path)
        # Line endings are preserved for callers that edit the text.
        return content.decode("utf-8-sig"), stamp
    except FileNotFoundError:
        problem = f"does not exist; {missing}"
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise ConfigErrors((ConfigProblem(str(path), None, "", problem),), {path: file_stamp(path)})


def _settings(file: ConfigFile, engines: Collection[str], profiles: ProfileFinder, report: ConfigReport) -> Settings:
    check_names(file, report)
    classes = service_classes(file.classes, report)
    check_models(file.models, file.pools, [each.name for each in classes], report)
    check_mirror_pools(file.models, file.pools, report)
    check_references(file, classes, report)
    check_cold_start_waits(file.pools, classes, report)
    check_money(file, classes, report)
    who = caller_auth(file, report)
    engine_pools = pool_settings(file, engines, report)
    _check_listeners(file, report)
    return Settings(
        listen=Address(*file.listen),
        admin_listen=Address(*file.admin_listen),
        listen_tls=server_tls(file.listen_tls, report.file),
        admin_listen_tls=server_tls(file.admin_listen_tls, report.file),
        admin_client_tls=admin_client_tls(file.admin_listen_tls, report.file),
        admin_allowed_hosts=tuple(file.admin_allowed_hosts),
        scaler_listen=None if file.scaler_listen is None else Address(*file.scaler_listen),
        drain_grace_ns=Duration(file.drain_grace),
        limits=edge_limits(file, report),
        key_secrets=who.key_secrets,
        keys=who.keys,
        anonymous_tenant=who.anonymous_tenant,
        issuers=issuers(file, report),
        operators=operator_tokens(file, report),
        pools=engine_pools,
        policy=_policy(file, classes, profiles, report),
        error_docs_url=error_docs(file, report),
        quote_engine_errors=file.quote_engine_errors,
        zone=file.zone or "",
        cell=cell_options(file, report),
        database=database_options(file, report),
        admin_keys=admin_keys(file, report),
        ledger=ledger_options(file, report),
        notifications=notification_options(file, report),
        tracing=tracing_options(file, report),
        records=records_options(file, report),
        audit=audit_options(file, report),
        state_directory=state_directory(file, report),
        stage_budgets=stage_budgets(file, classes, report),
        objectives=objectives(file, classes, report),
        reload=parse_enum(ReloadTrigger, file.reload, ReloadTrigger.WATCH, ("reload",), report),
        hash="",
    )


def _check_listeners(file: ConfigFile, report: ConfigReport) -> None:
    if file.listen == file.admin_listen and file.listen[1] != 0:
        report.add_problem(("admin_listen",), "is the same as listen; choose another port")
    check_admin_tls(file.admin_listen_tls, report)
    if file.scaler_listen in (file.listen, file.admin_listen) and file.scaler_listen[1] != 0:
        report.add_problem(("scaler_listen",), "is the address of another listener; choose another port")
    for number, name in enumerate(file.admin_allowed_hosts):
        if not _HOST_NAME.fullmatch(name):
            report.add_problem(("admin_allowed_hosts", number), "is not a host name; write it without scheme and port")


def _policy(
    file: ConfigFile, classes: tuple[ServiceClass, ...], profiles: ProfileFinder, report: ConfigReport
) -> Policy:
    return Policy(
        classes=classes,
        tenants=tenant_table(tenants(file.tenants, report)),
        pools=policy_pools(file.pools, profiles, report),
        models=(*models(file.models, report), *adapter_models(file.pools, file.models, report)),
        retry=retry_rules(file.retry),
        health=health_rules(file.health, report),
        headroom=headroom_rules(file.headroom),
        admission=admission_rules(file.admission),
        routing=routing_rules(file.routing),
        shedding=shedding_rules(file.shedding),
        degradation=degradation_rules(file.degradation, report),
        fairness_depth=file.fairness_depth,
        unit_key=unit_key(file),
        class_rules=class_rules(file, classes, report),
    )
