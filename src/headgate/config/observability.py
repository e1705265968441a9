"""Options for traces, records, stage budgets and objectives.

Without them, no traces are sent and records are lost when the process exits. A collector's URL and headers may contain
secrets, so no message quotes them.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from headgate.config.fill import fill, given_settings
from headgate.config.problems import ConfigReport
from headgate.config.quantities import duration_text
from headgate.config.schema import ConfigFile
from headgate.config.schema_reader import available, suggestion
from headgate.model.policy import ServiceClass
from headgate.model.stage import STAGES_TO_FIRST_TOKEN, Stage
from headgate.model.units import ClassName, Duration
from headgate.telemetry.audit.options import AuditOptions
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import NamingConvention, TracingOptions

_PATH: Final = "/v1/traces"
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


def tracing_options(file: ConfigFile, report: ConfigReport) -> TracingOptions | None:
    tracing = file.tracing
    if tracing is None:
        return None
    if tracing.semantic_conventions not in tuple(NamingConvention):
        hint = suggestion(tracing.semantic_conventions, NamingConvention, otherwise=available(NamingConvention))
        report.add_problem(
            ("tracing", "semantic_conventions"), f'"{tracing.semantic_conventions}" is not a valid value{hint}'
        )
    for name, value in tracing.headers.items():
        if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
            report.add_problem(
                ("tracing", "headers"),
                "has an invalid header; use letters, digits and - in its name and printable ASCII in its value",
            )
    return fill(TracingOptions, given_settings(tracing) | {"endpoint": _collector_url(tracing.endpoint, report)})


def _collector_url(text: str, report: ConfigReport) -> str:
    """Complete URL for spans; empty if the URL is invalid, which is reported."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host = None
        url = urlsplit("")
    if url.username is not None or url.password is not None:
        wrong = "has credentials; use tracing.headers instead"
        report.add_problem(("tracing", "endpoint"), wrong)
        return ""
    if url.scheme not in ("http", "https") or not host or url.query or url.fragment or re.search(r"[\s\\]", text):
        report.add_problem(("tracing", "endpoint"), "is not a valid collector URL; write it as http://HOST:4318")
        return ""
    return text if url.path.rstrip("/") else text.rstrip("/") + _PATH


def records_options(file: ConfigFile, report: ConfigReport) -> RecordsOptions | None:
    records = file.records
    if records is None:
        return None
    if not report.has_problem(("records", "directory")) and not PurePath(records.directory).is_absolute():
        wrong = "must be an absolute path; start it with /"
        report.add_problem(("records", "directory"), wrong)
    return fill(RecordsOptions, given_settings(records))


def audit_options(file: ConfigFile, report: ConfigReport) -> AuditOptions | None:
    if file.audit is None:
        return None
    place = ("audit", "directory")
    if not report.has_problem(place) and not PurePath(file.audit.directory).is_absolute():
        report.add_problem(place, "must be an absolute path; start it with /")
    return fill(AuditOptions, given_settings(file.audit))


def state_directory(file: ConfigFile, report: ConfigReport) -> str | None:
    directory, place = file.state_directory, ("state_directory",)
    if directory is None or report.has_problem(place):
        return None
    if not PurePath(directory).is_absolute():
        report.add_problem(place, "must be an absolute path; start it with /")
    elif file.cell is not None:
        report.add_warning(place, "has no effect in a cell, which keeps learned speeds in its snapshot; remove it")
    return directory


def stage_budgets(
    file: ConfigFile, classes: tuple[ServiceClass, ...], report: ConfigReport
) -> dict[ClassName, Mapping[Stage, Duration]]:
    ttfts = {each.name: each.ttft_ns for each in classes}
    budgets: dict[ClassName, Mapping[Stage, Duration]] = {}
    for name, section in (file.classes or {}).items():
        of_class = {stage: getattr(section.stage_budget, stage.value) for stage in Stage}
        if allowed := {stage: Duration(length) for stage, length in of_class.items() if length is not None}:
            budgets[ClassName(name)] = allowed
            _check_stage_sum(name, allowed, ttfts.get(ClassName(name)), report)
    return budgets


def _check_stage_sum(
    name: str, allowed: Mapping[Stage, Duration], ttft_ns: Duration | None, report: ConfigReport
) -> None:
    """Warns if the budgets of the stages before the first token add up to more than `ttft`."""
    before = sum(length for stage, length in allowed.items() if stage in STAGES_TO_FIRST_TOKEN)
    if ttft_ns is not None and before > ttft_ns:
        both = (
            f"the stages before the first token add up to {duration_text(before)}, but ttft is {duration_text(ttft_ns)}"
        )
        report.add_warning(("classes", name, "stage_budget"), f"{both}; shorten some, or raise ttft")


def objectives(
    file: ConfigFile, classes: tuple[ServiceClass, ...], report: ConfigReport
) -> dict[ClassName, Objectives]:
    ttfts = {each.name: each.ttft_ns for each in classes}
    e2es = {each.name: each.e2e_ns for each in classes}
    found: dict[ClassName, Objectives] = {}
    for name, section in (file.classes or {}).items():
        promised, place = section.objectives, ("classes", name, "objectives")
        if promised.ttft_percent is not None and ttfts.get(ClassName(name)) is None:
            report.add_problem((*place, "ttft_percent"), "requires a ttft target; set the class's ttft")
        settings, e2e_ns = given_settings(promised), e2es.get(ClassName(name))
        if promised.duration is None and e2e_ns is not None:
            settings |= {"duration": e2e_ns}
        elif (promised.duration is None) != (promised.duration_percent is None):
            report.add_problem(place, "needs both duration and duration_percent, or neither")
        if settings:
            found[ClassName(name)] = fill(Objectives, settings)
    return found
