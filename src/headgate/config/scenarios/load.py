"""What does a scenario's file come to?

The same steps as for the gateway's file (config/load.py), each of which goes on where the one before found something
wrong: text to a tree, tree to the shape of the schema, names against each other, all of it to settings.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from headgate.config import document, shape
from headgate.config.classes import service_classes
from headgate.config.load import read_text
from headgate.config.problems import ConfigErrors, Problem, Report
from headgate.config.quantities import duration_text
from headgate.config.references import References, is_name
from headgate.config.rules import health_rules, retry_rules
from headgate.config.scenarios.engines import engine_settings
from headgate.config.scenarios.faults import fault_settings
from headgate.config.scenarios.schema import CallersSection, ScenarioFile, SchedulerSection
from headgate.config.scenarios.settings import CallerSettings, EngineLimits, ScenarioSettings
from headgate.config.scenarios.traces import Library
from headgate.config.scenarios.traffic import traffic_settings
from headgate.config.shape import suggestion
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.units import ClassName, Duration, ModelName, PoolName

MODEL = ModelName("model")
"""What every simulated request asks for; all pools serve it."""

CAPPED = "static-cap"
"""The scheduler that takes a cap."""


MISSING = (
    "scenarios to begin with are in the folder scenarios/ of Headgate's source checkout; "
    "docs/reference/scenarios.md there says what stands in one"
)
"""What to do where the file does not exist."""

FILES_SHOWN_MAX = 10

WAIT_PER_TTFT_MAX = 2
"""A class that lets requests wait longer than so many times what callers give the first token is hardly meant."""


def load(
    path: Path, environ: Mapping[str, str], *, profiles: Mapping[str, EngineLimits], schedulers: Collection[str]
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
    profiles: Mapping[str, EngineLimits],
    schedulers: Collection[str],
) -> ScenarioSettings:
    """As `load`, for a text that is at hand as if it stood in the file of this path."""
    report = Report(str(path))
    file = shape.read(document.parse(text, report), ScenarioFile, environ, report)
    classes = service_classes(file.classes, report)
    names = [each.name for each in classes]
    _check_names(file, names, schedulers, report)
    _warn_of_waits(file, classes, report)
    engines = engine_settings(file, profiles, report)
    settings = ScenarioSettings(
        title=file.title or path.stem,
        scheduler=file.scheduler.name,
        cap=file.scheduler.cap,
        waiting_max=file.scheduler.waiting_max,
        policy=_policy(file, classes, report),
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
            report.problem(("classes", name), "a name is made of up to 64 letters, digits, and . _ -", read=True)
    check = References(report)
    for name, section in (file.classes or {}).items():
        check.all_known(section.pools or [], file.pools, "pool", ("classes", name, "pools"))
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


def _warn_of_waits(file: ScenarioFile, classes: tuple[ServiceClass, ...], report: Report) -> None:
    """Only Headgate's own scheduler goes by how long a class may wait."""
    if file.scheduler.name != SchedulerSection().name:
        return
    for each in classes:
        section = file.callers.get(each.name)
        if section is None or section.ttft is None or not section.stream:
            continue
        if each.queue_wait_ns_max > WAIT_PER_TTFT_MAX * section.ttft:
            wait, ttft = duration_text(each.queue_wait_ns_max), duration_text(section.ttft)
            warning = (
                f"the class lets requests wait for {wait}, so they may wait longer than their target and then be "
                f"computed for nothing; set queue_wait_max of classes.{each.name} below ttft, {ttft}"
            )
            report.warn(("callers", each.name, "ttft"), warning)


def _policy(file: ScenarioFile, classes: tuple[ServiceClass, ...], report: Report) -> Policy:
    pools = tuple(Pool(PoolName(name), Duration(section.warm_up)) for name, section in file.pools.items())
    return Policy(
        classes=classes,
        pools=pools,
        models=(Model(MODEL, tuple(each.name for each in pools)),),
        retry=retry_rules(file.retry),
        health=health_rules(file.health, report),
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
