"""What does a scenario's file come to?

The same steps as for the gateway's file (config/load.py), each of which goes on where the one before found something
wrong: text to a tree, tree to the shape of the schema, names against each other, all of it to settings.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from headgate.config import document, shape
from headgate.config.accounts import check_limits, limits, plan
from headgate.config.classes import service_classes
from headgate.config.load import read_text
from headgate.config.models import check_models, models
from headgate.config.money import check_nothing_spent
from headgate.config.problems import ConfigErrors, Problem, Report
from headgate.config.quantities import duration_text
from headgate.config.references import A_NAME, check_classes, check_paths, is_name
from headgate.config.rules import (
    admission_rules,
    headroom_rules,
    health_rules,
    ladder_rules,
    retry_rules,
    routing_rules,
    shedding_rules,
)
from headgate.config.scenarios.engines import engine_settings, known_pools
from headgate.config.scenarios.faults import fault_settings
from headgate.config.scenarios.schema import CallersSection, ScenarioFile
from headgate.config.scenarios.settings import CallerSettings, EngineFigures, ScenarioSettings
from headgate.config.scenarios.traces import Library
from headgate.config.scenarios.traffic import traffic_settings
from headgate.config.shape import suggestion
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import ClassName, Duration, ModelName, TenantId

MODEL = ModelName("model")
"""What every simulated request asks for where the file names no model; all pools serve it."""

CAPPED = "static-cap"
"""The scheduler that takes a cap."""


MISSING = (
    "scenarios to begin with are in the folder scenarios/ of Headgate's source checkout; "
    "docs/reference/scenarios.md there says what stands in one"
)
"""What to do where the file does not exist."""

FILES_SHOWN_MAX = 10


def load(
    path: Path, environ: Mapping[str, str], *, profiles: Mapping[str, EngineFigures], schedulers: Collection[str]
) -> ScenarioSettings:
    """Reads the file; `profiles` and `schedulers` are what it may name. Raises `ConfigErrors` with all problems."""
    if path.is_dir():
        raise ConfigErrors((Problem(str(path), None, "", f"is a folder; {_instead(path)}"),))
    text = read_text(path, missing=MISSING)
    return parse(text, path, environ, profiles=profiles, schedulers=schedulers)


def parse(
    text: str,
    path: Path,
    environ: Mapping[str, str],
    *,
    profiles: Mapping[str, EngineFigures],
    schedulers: Collection[str],
) -> ScenarioSettings:
    """As `load`, for a text that is at hand as if it stood in the file of this path."""
    report = Report(str(path))
    file = shape.read(document.parse(text, report), ScenarioFile, environ, report)
    classes = _as_callers_want(service_classes(file.classes, report), file)
    names = [each.name for each in classes]
    _check_names(file, names, schedulers, report)
    check_nothing_spent(file.classes or {}, report)
    _warn_of_late_promises(file, report)
    engines = engine_settings(file, profiles, report)
    settings = ScenarioSettings(
        title=file.title or path.stem,
        scheduler=file.scheduler.name,
        cap=file.scheduler.cap,
        waiting_max=file.scheduler.waiting_max,
        policy=_policy(file, classes, known_pools(file, engines, profiles, report), report),
        model=ModelName(next(iter(file.models), MODEL)),
        engines=engines,
        callers={name: _callers(file.callers.get(name, CallersSection())) for name in names},
        traffic=traffic_settings(file, names, Library(path.parent, environ, report), report),
        faults=fault_settings(file, engines, report),
        duration_ns=None if file.duration is None else Duration(file.duration),
        probe_every_ns=Duration(file.probe_every),
        scrape_every_ns=Duration(file.scrape_every),
        progress_every_ns=Duration(file.progress_every),
    )
    report.raise_if_wrong()
    return replace(settings, warnings=tuple(str(each) for each in report.warnings()))


def _check_names(file: ScenarioFile, classes: list[ClassName], schedulers: Collection[str], report: Report) -> None:
    name = file.scheduler.name
    if name not in schedulers:
        hint = suggestion(name, schedulers, quiet=f"; the schedulers are {', '.join(schedulers)}")
        report.problem(("scheduler",), f'scheduler "{name}" does not exist{hint}')
    for setting in ("cap", "waiting_max"):
        if getattr(file.scheduler, setting) and name != CAPPED:
            report.problem(("scheduler", setting), f"means nothing with {name}, only with {CAPPED}; remove it")
    for name in file.classes or {}:
        if not is_name(name):
            report.problem(("classes", name), A_NAME, read=True)
    check_classes(file.classes or {}, file.pools, file.models or (MODEL,), report)
    check_models(file.models, file.pools, classes, report)
    check_paths(file.tenants, report)
    for name in file.callers:
        if name not in classes:
            hint = suggestion(name, classes, quiet=f"; there is {', '.join(classes) or 'none'}")
            report.problem(("callers", name), f'class "{name}" does not exist{hint}', read=True)
    for name, section in file.callers.items():
        for setting in ("ttft", "tpot"):
            if getattr(section, setting) is not None and not section.stream:
                problem = "means nothing where answers come whole (stream: false); set e2e instead"
                report.problem(("callers", name, setting), problem)


def _instead(folder: Path) -> str:
    files = sorted(each.name for each in folder.glob("*.yaml"))
    if not files:
        return "name a scenario's file"
    more = f" and {len(files) - FILES_SHOWN_MAX} more" if len(files) > FILES_SHOWN_MAX else ""
    return f"name a file in it: {', '.join(files[:FILES_SHOWN_MAX])}{more}"


def _as_callers_want(classes: tuple[ServiceClass, ...], file: ScenarioFile) -> tuple[ServiceClass, ...]:
    """A class for which the file gives no target promises what its callers ask of streams, if they ask anything."""
    asked = {name: _callers(section) for name, section in file.callers.items()}
    return tuple(_as_asked(each, asked.get(each.name)) for each in classes)


def _as_asked(each: ServiceClass, asked: CallerSettings | None) -> ServiceClass:
    """The defaults of built-in classes do not count in a scenario: its callers state what they want."""
    ttft_ns = None if each.ttft_assumed else each.ttft_ns
    tpot_ns = None if each.tpot_assumed else each.tpot_ns
    if asked is not None:
        ttft_ns, tpot_ns = ttft_ns or asked.ttft_ns, tpot_ns or asked.tpot_ns
    return replace(each, ttft_ns=ttft_ns, tpot_ns=tpot_ns, ttft_assumed=False, tpot_assumed=False)


def _warn_of_late_promises(file: ScenarioFile, report: Report) -> None:
    for name, section in (file.classes or {}).items():
        wanted = file.callers[name].ttft if name in file.callers else None
        if isinstance(section.ttft, int) and wanted is not None and section.ttft > wanted:
            warning = (
                f"is longer than the {duration_text(wanted)} that its callers give the first token, so what comes too "
                "late for them is computed all the same; lower it, or leave it out"
            )
            report.warn(("classes", name, "ttft"), warning)


def _policy(file: ScenarioFile, classes: tuple[ServiceClass, ...], pools: tuple[Pool, ...], report: Report) -> Policy:
    check_limits({name: section.limits for name, section in file.tenants.items()}, report)
    return Policy(
        classes=classes,
        tenants=tuple(
            Tenant(
                TenantId(name),
                weight=section.weight,
                plan=plan(section.plan, ("tenants", name), report),
                limits=limits(section.limits),
            )
            for name, section in file.tenants.items()
        ),
        pools=pools,
        models=models(file.models, report) or (Model(MODEL, tuple(each.name for each in pools)),),
        retry=retry_rules(file.retry),
        health=health_rules(file.health, report),
        headroom=headroom_rules(file.headroom),
        admission=admission_rules(file.admission),
        routing=routing_rules(file.routing),
        shedding=shedding_rules(file.shedding),
        ladder=ladder_rules(file.ladder, report),
        fairness_depth=file.fairness_depth,
    )


def _callers(section: CallersSection) -> CallerSettings:
    return CallerSettings(
        ttft_ns=_duration(section.ttft),
        tpot_ns=_duration(section.tpot),
        e2e_ns=_duration(section.e2e),
        leave_ns=_duration(section.leave_after),
        retries=section.retries,
        stream=section.stream,
    )


def _duration(length: int | None) -> Duration | None:
    return None if length is None else Duration(length)
