"""What does the configuration file come to?

Five steps, each of which goes on where the one before found something wrong, so that one run
names everything: text to a tree (document.py), tree to the schema's shape (shape.py), the names
against each other (references.py, classes.py, pools.py, tenants.py), all of it to settings,
and the settings to their hash (fingerprint.py).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from headgate.config import document, shape
from headgate.config.accounts import tenants
from headgate.config.cell import cell_options
from headgate.config.class_rules import class_rules
from headgate.config.classes import service_classes
from headgate.config.database import admin_keys, database_options
from headgate.config.error_docs import error_docs
from headgate.config.fingerprint import fingerprint
from headgate.config.fleets import check_starts
from headgate.config.ledger import ledger_options, notification_options, unit
from headgate.config.limits import limits
from headgate.config.models import check_models, models
from headgate.config.money import check_money
from headgate.config.pools import pool_settings, pools
from headgate.config.problems import ConfigErrors, Problem, Report
from headgate.config.references import check_names, check_references
from headgate.config.rules import (
    admission_rules,
    headroom_rules,
    health_rules,
    ladder_rules,
    retry_rules,
    routing_rules,
    shedding_rules,
)
from headgate.config.schema import File
from headgate.config.settings import Address, Settings
from headgate.config.sight import objectives, records_options, stage_budgets, state_folder, tracing_options
from headgate.config.speeds import SpeedFigures
from headgate.config.tenants import callers
from headgate.model.policy import Policy, ServiceClass
from headgate.model.units import Duration

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")


def load(
    path: Path, environ: Mapping[str, str], *, engines: Collection[str], profiles: Mapping[str, SpeedFigures]
) -> Settings:
    """Reads the file; `engines` and `profiles` are what a pool may name. Raises `ConfigErrors` with all problems."""
    return parse(read_text(path), str(path), environ, engines=engines, profiles=profiles)


def parse(
    text: str,
    name: str,
    environ: Mapping[str, str],
    *,
    engines: Collection[str],
    profiles: Mapping[str, SpeedFigures],
) -> Settings:
    """As `load`, for a text that is at hand; `name` is how messages call it."""
    report = Report(name)
    file = shape.read(document.parse(text, report), File, environ, report)
    settings = _settings(file, engines, profiles, report)
    report.raise_if_wrong()
    settings = replace(settings, warnings=tuple(str(each) for each in report.warnings()))
    return replace(settings, hash=fingerprint(settings))


def key_secret(path: Path, environ: Mapping[str, str]) -> bytes | None:
    """The secret alone, from a file that may be unfinished otherwise. Raises `ConfigErrors`."""
    secret = _alone("key_secret", path, environ).key_secret
    return None if secret is None else secret.encode()


def admin_listen(path: Path, environ: Mapping[str, str]) -> Address:
    """That address alone: whoever asks a running gateway need not have the secrets it runs with. As `key_secret`."""
    return Address(*_alone("admin_listen", path, environ).admin_listen)


def database_url(path: Path, environ: Mapping[str, str]) -> str | None:
    """That address alone, whole; None where the file names none. As `key_secret`."""
    database = _alone("database", path, environ).database
    return None if database is None else database.url


def _alone(setting: str, path: Path, environ: Mapping[str, str]) -> File:
    """The file as if only this setting stood in it."""
    report = Report(str(path))
    tree = document.parse(read_text(path), report)
    report.raise_if_wrong()
    value = tree.get(setting) if isinstance(tree, dict) else None
    file = shape.read({setting: value, "pools": {}, "models": {}}, File, environ, report)
    report.raise_if_wrong()
    return file


def read_text(path: Path, *, missing: str = "name the configuration file, or let `headgate init` write one") -> str:
    """`missing` says what to do where the file does not exist. Raises `ConfigErrors`."""
    try:
        # Line ends stay as they are, so that whoever edits the text gives them back.
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        problem = f"does not exist; {missing}"
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise ConfigErrors((Problem(str(path), None, "", problem),))


def _settings(file: File, engines: Collection[str], profiles: Mapping[str, SpeedFigures], report: Report) -> Settings:
    check_names(file, report)
    classes = service_classes(file.classes, report)
    check_models(file.models, file.pools, [each.name for each in classes], report)
    check_references(file, classes, report)
    check_starts(file.pools, classes, report)
    check_money(file, classes, report)
    who = callers(file, report)
    engine_pools = pool_settings(file, engines, report)
    _check_numbers(file, report)
    return Settings(
        listen=Address(*file.listen),
        admin_listen=Address(*file.admin_listen),
        admin_hosts=tuple(file.admin_hosts),
        scaler_listen=None if file.scaler_listen is None else Address(*file.scaler_listen),
        drain_grace_ns=Duration(file.drain_grace),
        limits=limits(file, report),
        key_secret=who.key_secret,
        keys=who.keys,
        anonymous_tenant=who.anonymous_tenant,
        pools=engine_pools,
        policy=_policy(file, classes, profiles, report),
        error_docs=error_docs(file, report),
        quote_engine_errors=file.quote_engine_errors,
        zone=file.zone or "",
        cell=cell_options(file, report),
        database=database_options(file, report),
        admin_keys=admin_keys(file, report),
        ledger=ledger_options(file, report),
        notices=notification_options(file, report),
        tracing=tracing_options(file, report),
        records=records_options(file, report),
        state_folder=state_folder(file, report),
        stage_budgets=stage_budgets(file, classes, report),
        objectives=objectives(file, classes, report),
        hash="",
    )


def _check_numbers(file: File, report: Report) -> None:
    if file.listen == file.admin_listen and file.listen[1] != 0:
        report.problem(("admin_listen",), "is the same as listen; give the admin listener a port of its own")
    if file.scaler_listen in (file.listen, file.admin_listen) and file.scaler_listen[1] != 0:
        report.problem(("scaler_listen",), "is the address of another listener; give it a port of its own")
    for number, name in enumerate(file.admin_hosts):
        if not _HOST_NAME.fullmatch(name):
            report.problem(("admin_hosts", number), "is not a host name; write it without scheme and port")


def _policy(
    file: File, classes: tuple[ServiceClass, ...], profiles: Mapping[str, SpeedFigures], report: Report
) -> Policy:
    return Policy(
        classes=classes,
        tenants=tenants(file.tenants, report),
        pools=pools(file.pools, profiles, report),
        models=models(file.models, report),
        retry=retry_rules(file.retry),
        health=health_rules(file.health, report),
        headroom=headroom_rules(file.headroom),
        admission=admission_rules(file.admission),
        routing=routing_rules(file.routing),
        shedding=shedding_rules(file.shedding),
        ladder=ladder_rules(file.ladder, report),
        fairness_depth=file.fairness_depth,
        unit=unit(file),
        class_rules=class_rules(file, classes, report),
    )
