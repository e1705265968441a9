"""Reads a workload file of `headgate loadtest`.

Its `traffic`, `callers` and `duration` mean the same as in a scenario. Classes and tenants need no definition, because
the server under test defines them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field, structs

from headgate.config import schema_reader, yaml_document
from headgate.config.environment import References
from headgate.config.load import read_text
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.scenarios.load import caller_behaviour
from headgate.config.scenarios.schema import CallersSection, LengthsSection, TrafficSection
from headgate.config.scenarios.traces import TraceLibrary
from headgate.config.scenarios.traffic import traffic_settings
from headgate.config.schema_reader import available, suggestion
from headgate.config.section import Section
from headgate.config.setting_types import PositiveDuration, Secret
from headgate.loadtest.options import (
    CONVERSATION_APIS,
    LOADTEST_APIS,
    UNNAMED,
    LoadTestWorkload,
    SessionShape,
    WorkloadSource,
)
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Api
from headgate.model.units import SECOND, ClassName, Duration, TenantId
from headgate.simulation.options import RateTraffic, Traffic

PREFIXES_MAX = 1_000
"""Maximum number of different prefixes of a source."""
MISSING_HINT = "docs/guides/load-testing.md describes the format"


class PrefixSection(Section, frozen=True):
    tokens: Annotated[int, Meta(ge=1, le=1_000_000, extra={"next": "set the length of the prefix in tokens"})]
    prompts: Annotated[int, Meta(ge=1, le=PREFIXES_MAX)] = 1


class SessionsSection(Section, frozen=True):
    turns: Annotated[
        tuple[int, int], Meta(extra={"reads": "range", "next": "set the number of turns of a session, such as 2:6"})
    ]
    think_time: PositiveDuration = 5 * SECOND


class WorkloadTrafficSection(TrafficSection, frozen=True):
    api: str = "chat"
    tier: str | None = None
    prefix: PrefixSection | None = None
    sessions: SessionsSection | None = None


class WorkloadTenantSection(Section, frozen=True):
    key: Secret | None = None


class WorkloadFile(Section, frozen=True):
    traffic: Annotated[list[WorkloadTrafficSection], Meta(extra={"next": "list at least one source of requests"})]
    duration: PositiveDuration | None = None
    callers: dict[str, CallersSection] = field(default_factory=dict[str, CallersSection])
    tenants: dict[str, WorkloadTenantSection] = field(default_factory=dict[str, WorkloadTenantSection])


def load_workload(path: Path, environ: Mapping[str, str]) -> LoadTestWorkload:
    """Reads the file. Raises `ConfigErrors` with all problems."""
    return parse_workload(read_text(path, missing=MISSING_HINT), path, environ)


def parse_workload(text: str, path: Path, environ: Mapping[str, str]) -> LoadTestWorkload:
    """Like `load_workload`, for the text of the file at this path."""
    report = ConfigReport(str(path))
    tree = yaml_document.parse(text, report)
    file = schema_reader.read(tree, WorkloadFile, References(environ, path.parent), report)
    sections = [_with_defaults(section) for section in file.traffic]
    classes = {*file.callers, *(name for section in sections for name in section.classes or ())}
    traffic = traffic_settings(sections, file.duration, classes, TraceLibrary(path.parent, environ, report), report)
    _check_tenants(file, report)
    for number, section in enumerate(file.traffic):
        _check_source(section, ("traffic", number), report)
    report.raise_if_invalid()
    return LoadTestWorkload(
        sources=tuple(_source(section, each) for section, each in zip(sections, traffic, strict=True)),
        callers={ClassName(name): caller_behaviour(section) for name, section in file.callers.items()},
        keys={TenantId(name): section.key for name, section in file.tenants.items() if section.key is not None},
        duration_ns=None if file.duration is None else Duration(file.duration),
    )


def _with_defaults(section: WorkloadTrafficSection) -> WorkloadTrafficSection:
    """Adds what only a scenario needs: a class, and the length of an output that the API does not generate."""
    if section.classes is None and section.trace is None:
        section = structs.replace(section, classes={UNNAMED: 1.0})
    if section.output is None and section.rate is not None and section.api in APIS_WITHOUT_OUTPUT:
        section = structs.replace(section, output=LengthsSection(uniform=(1, 1)))
    return section


def _check_source(section: WorkloadTrafficSection, place: SettingPath, report: ConfigReport) -> None:
    if section.api not in LOADTEST_APIS:
        hint = suggestion(section.api, LOADTEST_APIS, otherwise=available(LOADTEST_APIS))
        report.add_problem((*place, "api"), f'API "{section.api}" does not exist{hint}')
    if section.sessions is None:
        return
    if section.rate is None:
        report.add_problem((*place, "sessions"), "has no effect without rate; remove it")
    if section.api not in CONVERSATION_APIS:
        report.add_problem(
            (*place, "sessions"),
            f"has no effect with {section.api}, only with {', '.join(CONVERSATION_APIS)}; remove it",
        )


def _check_tenants(file: WorkloadFile, report: ConfigReport) -> None:
    known = {name for section in file.traffic for name in section.tenants or ()}
    if not all(section.tenants for section in file.traffic):
        return  # A trace can contain any tenant.
    for name in file.tenants:
        if name not in known:
            report.add_problem(
                ("tenants", name), f"sends no requests{suggestion(name, known, otherwise='; remove it')}"
            )


def _source(section: WorkloadTrafficSection, traffic: Traffic) -> WorkloadSource:
    session = None
    if section.sessions is not None:
        assert isinstance(traffic, RateTraffic)
        session = SessionShape(
            turns=section.sessions.turns,
            think_time_s=section.sessions.think_time / SECOND,
            prompt=traffic.prompt,
            output=traffic.output,
        )
    return WorkloadSource(
        traffic=traffic,
        api=Api(section.api),
        tier=section.tier,
        prefix_tokens=section.prefix.tokens if section.prefix else 0,
        prefix_prompts=section.prefix.prompts if section.prefix else 1,
        session=session,
    )
