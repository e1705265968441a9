"""Loads a scenario file.

The steps are those of the gateway's configuration file (config/load.py): parse the YAML, read it according to the
schema, check references and build the settings. Each step runs even if an earlier one found problems.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from headgate.config import schema_reader, yaml_document
from headgate.config.classes import service_classes
from headgate.config.engine_profiles import ProfileFinder
from headgate.config.environment import References
from headgate.config.load import read_text
from headgate.config.models import check_models, models
from headgate.config.money import check_no_costs
from headgate.config.policy_rules import (
    admission_rules,
    degradation_rules,
    headroom_rules,
    health_rules,
    retry_rules,
    routing_rules,
    shedding_rules,
)
from headgate.config.problems import ConfigErrors, ConfigProblem, ConfigReport
from headgate.config.quantities import duration_text
from headgate.config.references import NAME_RULE, check_classes, check_tenant_paths, is_name
from headgate.config.scenarios.alternatives import AlternativeReport, with_alternative
from headgate.config.scenarios.engines import engine_settings, policy_pools, pool_scaling
from headgate.config.scenarios.faults import fault_settings
from headgate.config.scenarios.schema import CallersSection, ScenarioFile
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.config.scenarios.traces import TraceLibrary
from headgate.config.scenarios.traffic import traffic_settings
from headgate.config.schema_reader import available, suggestion
from headgate.config.tenants import check_limits, limits, plan
from headgate.config.yaml_document import Tree
from headgate.model.engine_profile import EngineProfile
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import ClassName, Duration, ModelName, PoolName, TenantId
from headgate.simulation.options import CallerBehaviour

MODEL = ModelName("model")
"""Model used in all requests if the file does not define one. All pools serve it."""

STATIC_CAP = "static-cap"
"""Baseline scheduler with a fixed concurrency limit per engine."""


MISSING_HINT = (
    "the scenarios/ directory in Headgate's source has examples; docs/reference/scenarios.md describes the format"
)
"""Hint for a file that does not exist."""

FILES_SHOWN_MAX = 10


def load(
    path: Path, environ: Mapping[str, str], *, profiles: Mapping[str, EngineProfile], schedulers: Collection[str]
) -> ScenarioSettings:
    """Reads the file. `profiles` and `schedulers` are the names it may use. Raises `ConfigErrors` with all problems."""
    if path.is_dir():
        raise ConfigErrors((ConfigProblem(str(path), None, "", f"is a directory; {_file_hint(path)}"),))
    text = read_text(path, missing=MISSING_HINT)
    return parse(text, path, environ, profiles=profiles, schedulers=schedulers)


def parse(
    text: str,
    path: Path,
    environ: Mapping[str, str],
    *,
    profiles: Mapping[str, EngineProfile],
    schedulers: Collection[str],
) -> ScenarioSettings:
    """Like `load`, for the text of the file at this path."""
    report = ConfigReport(str(path))
    tree = yaml_document.parse(text, report)
    return read_tree(tree, path, environ, report, profiles=profiles, schedulers=schedulers)


def read_tree(
    tree: Tree,
    path: Path,
    environ: Mapping[str, str],
    report: ConfigReport,
    *,
    profiles: Mapping[str, EngineProfile],
    schedulers: Collection[str],
) -> ScenarioSettings:
    """Like `parse`, for a parsed file. The report has its lines and the problems found so far."""
    references = References(environ, path.parent)
    file = schema_reader.read(tree, ScenarioFile, references, report)

    def settings_of(file: ScenarioFile, report: ConfigReport) -> ScenarioSettings:
        finder = ProfileFinder(profiles, path.parent, report, references.files)
        traces = TraceLibrary(path.parent, environ, report)
        return _settings(file, path, finder, traces, report, schedulers=schedulers)

    settings = settings_of(file, report)
    alternatives = tuple(
        (name, settings_of(with_alternative(file, each), AlternativeReport(report, name, each)))
        for name, each in file.alternatives.items()
    )
    report.raise_if_invalid()
    warnings = tuple(str(each) for each in report.warnings())
    return replace(settings, alternatives=alternatives, warnings=warnings)


def _settings(
    file: ScenarioFile,
    path: Path,
    finder: ProfileFinder,
    traces: TraceLibrary,
    report: ConfigReport,
    *,
    schedulers: Collection[str],
) -> ScenarioSettings:
    classes = _with_caller_targets(service_classes(file.classes, report), file)
    names = [each.name for each in classes]
    _check_names(file, names, schedulers, report)
    check_no_costs(file.classes or {}, report)
    _warn_of_late_targets(file, report)
    engines = engine_settings(file, finder, report)
    return ScenarioSettings(
        title=file.title or path.stem,
        scheduler=file.scheduler.name,
        cap=file.scheduler.cap,
        queue_length_max=file.scheduler.queue_length_max,
        policy=_policy(file, classes, policy_pools(file, engines, finder, report), report),
        model=ModelName(next(iter(file.models), MODEL)),
        engines=engines,
        scaling=pool_scaling(file, report),
        callers={name: caller_behaviour(file.callers.get(name, CallersSection())) for name in names},
        objectives={ClassName(name): share for name, share in file.objectives.items()},
        traffic=traffic_settings(file.traffic, file.duration, names, traces, report),
        zones={PoolName(name): tuple(section.zones) for name, section in file.pools.items() if section.zones},
        gpus={PoolName(name): section.gpus for name, section in file.pools.items()},
        faults=fault_settings(file, engines, report),
        duration_ns=None if file.duration is None else Duration(file.duration),
        probe_every_ns=Duration(file.probe_interval),
        scrape_every_ns=Duration(file.scrape_interval),
        progress_every_ns=Duration(file.progress_interval),
    )


def _check_names(
    file: ScenarioFile, classes: list[ClassName], schedulers: Collection[str], report: ConfigReport
) -> None:
    name = file.scheduler.name
    if name not in schedulers:
        hint = suggestion(name, schedulers, otherwise=f"; the schedulers are {', '.join(schedulers)}")
        report.add_problem(("scheduler",), f'scheduler "{name}" does not exist{hint}')
    for setting in ("cap", "queue_length_max"):
        if getattr(file.scheduler, setting) and name != STATIC_CAP:
            report.add_problem(("scheduler", setting), f"has no effect with {name}, only with {STATIC_CAP}; remove it")
    for name in file.classes or {}:
        if not is_name(name):
            report.add_problem(("classes", name), NAME_RULE, contents_valid=True)
    check_classes(file.classes or {}, file.pools, file.models or (MODEL,), report)
    check_models(file.models, file.pools, classes, report)
    check_tenant_paths(file.tenants, report)
    for setting, named in (("callers", file.callers), ("objectives", file.objectives)):
        for name in named:
            if name not in classes:
                hint = suggestion(name, classes, otherwise=available(classes))
                report.add_problem((setting, name), f'class "{name}" does not exist{hint}', contents_valid=True)
    for name, section in file.callers.items():
        for setting in ("ttft", "tpot"):
            if getattr(section, setting) is not None and not section.stream:
                problem = "has no effect without streaming (stream: false); set e2e instead"
                report.add_problem(("callers", name, setting), problem)


def _file_hint(folder: Path) -> str:
    files = sorted(each.name for each in folder.glob("*.yaml"))
    if not files:
        return "specify a scenario file"
    more = f" and {len(files) - FILES_SHOWN_MAX} more" if len(files) > FILES_SHOWN_MAX else ""
    return f"specify a file in it: {', '.join(files[:FILES_SHOWN_MAX])}{more}"


def _with_caller_targets(classes: tuple[ServiceClass, ...], file: ScenarioFile) -> tuple[ServiceClass, ...]:
    """Classes with targets. A class without a target in the file takes its callers' streaming targets, if they have
    any.
    """
    asked = {name: caller_behaviour(section) for name, section in file.callers.items()}
    return tuple(_with_targets(each, asked.get(each.name)) for each in classes)


def _with_targets(each: ServiceClass, asked: CallerBehaviour | None) -> ServiceClass:
    """Classes with these targets. The default targets of built-in classes are ignored in a scenario, because callers
    define the targets.
    """
    ttft_ns = None if each.ttft_assumed else each.ttft_ns
    tpot_ns = None if each.tpot_assumed else each.tpot_ns
    if asked is not None:
        ttft_ns, tpot_ns = ttft_ns or asked.ttft_ns, tpot_ns or asked.tpot_ns
    return replace(each, ttft_ns=ttft_ns, tpot_ns=tpot_ns, ttft_assumed=False, tpot_assumed=False)


def _warn_of_late_targets(file: ScenarioFile, report: ConfigReport) -> None:
    for name, section in (file.classes or {}).items():
        callers = file.callers.get(name, CallersSection())
        for setting, own, wanted in (("ttft", section.ttft, callers.ttft), ("e2e", section.e2e, callers.e2e)):
            if isinstance(own, int) and wanted is not None and own > wanted:
                warning = (
                    f"is longer than the callers' {setting} of {duration_text(wanted)}, so responses that are too late "
                    "for the callers are still computed; lower it, or remove it"
                )
                report.add_warning(("classes", name, setting), warning)


def _policy(
    file: ScenarioFile, classes: tuple[ServiceClass, ...], pools: tuple[Pool, ...], report: ConfigReport
) -> Policy:
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
        degradation=degradation_rules(file.degradation, report),
        fairness_depth=file.fairness_depth,
    )


def caller_behaviour(section: CallersSection) -> CallerBehaviour:
    return CallerBehaviour(
        ttft_ns=_duration(section.ttft),
        tpot_ns=_duration(section.tpot),
        e2e_ns=_duration(section.e2e),
        client_timeout_ns=_duration(section.client_timeout),
        retries=section.retries,
        stream=section.stream,
    )


def _duration(length: int | None) -> Duration | None:
    return None if length is None else Duration(length)
