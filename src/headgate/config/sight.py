"""How is it seen what becomes of requests: traces, records, the time that each stage may take, what is promised?

Left out, no trace is sent and records end with the process. What the address of a collector or its headers hold may be
a secret: no message repeats them.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from headgate.config.fill import fill, given
from headgate.config.problems import Report
from headgate.config.quantities import duration_text
from headgate.config.schema import File
from headgate.config.shape import suggestion
from headgate.model.policy import ServiceClass
from headgate.model.stage import TO_FIRST_TOKEN, Stage
from headgate.model.units import ClassName, Duration
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import Names, TracingOptions

_PATH: Final = "/v1/traces"
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


def tracing_options(file: File, report: Report) -> TracingOptions | None:
    tracing = file.tracing
    if tracing is None:
        return None
    if tracing.names not in tuple(Names):
        hint = suggestion(tracing.names, Names, quiet=f"; there is {', '.join(Names)}")
        report.problem(("tracing", "names"), f'no names are called "{tracing.names}" here{hint}')
    for name, value in tracing.headers.items():
        if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
            report.problem(("tracing", "headers"), "cannot be sent as a header; use letters, digits and - in its name")
    return fill(TracingOptions, given(tracing) | {"endpoint": _collector(tracing.endpoint, report)})


def _collector(text: str, report: Report) -> str:
    """The whole address that spans are posted to; empty where it is wrong, which is reported."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host = None
        url = urlsplit("")
    if url.username is not None or url.password is not None:
        wrong = "holds a name or a password; send what the collector asks for by headers"
        report.problem(("tracing", "endpoint"), wrong)
        return ""
    if url.scheme not in ("http", "https") or not host or url.query or url.fragment or re.search(r"[\s\\]", text):
        report.problem(("tracing", "endpoint"), "is no address that traces can be posted to; write http://HOST:4318")
        return ""
    return text if url.path.rstrip("/") else text.rstrip("/") + _PATH


def records_options(file: File, report: Report) -> RecordsOptions | None:
    records = file.records
    if records is None:
        return None
    if not report.is_wrong(("records", "folder")) and not PurePath(records.folder).is_absolute():
        wrong = "is not a whole path, so a start from another folder would not find what was kept; begin it with /"
        report.problem(("records", "folder"), wrong)
    return fill(RecordsOptions, given(records))


def state_folder(file: File, report: Report) -> str | None:
    folder, place = file.state_folder, ("state_folder",)
    if folder is None or report.is_wrong(place):
        return None
    if not PurePath(folder).is_absolute():
        report.problem(place, "must be an absolute path; begin it with /")
    elif file.cell is not None:
        report.warn(place, "is not used, since the snapshot of the cell has what was learned; leave it out")
    return folder


def stage_budgets(
    file: File, classes: tuple[ServiceClass, ...], report: Report
) -> dict[ClassName, Mapping[Stage, Duration]]:
    ttfts = {each.name: each.ttft_ns for each in classes}
    budgets: dict[ClassName, Mapping[Stage, Duration]] = {}
    for name, section in (file.classes or {}).items():
        of_class = {stage: getattr(section.stage_budget, stage.value) for stage in Stage}
        if allowed := {stage: Duration(length) for stage, length in of_class.items() if length is not None}:
            budgets[ClassName(name)] = allowed
            _check_sum(name, allowed, ttfts.get(ClassName(name)), report)
    return budgets


def _check_sum(name: str, allowed: Mapping[Stage, Duration], ttft_ns: Duration | None, report: Report) -> None:
    """A first token can be late though no stage was."""
    before = sum(length for stage, length in allowed.items() if stage in TO_FIRST_TOKEN)
    if ttft_ns is not None and before > ttft_ns:
        both = f"up to the first token they come to {duration_text(before)}, and ttft is {duration_text(ttft_ns)}"
        report.warn(("classes", name, "stage_budget"), f"{both}; shorten some, or allow a longer ttft")


def objectives(file: File, classes: tuple[ServiceClass, ...], report: Report) -> dict[ClassName, Objectives]:
    ttfts = {each.name: each.ttft_ns for each in classes}
    found: dict[ClassName, Objectives] = {}
    for name, section in (file.classes or {}).items():
        promised, place = section.objectives, ("classes", name, "objectives")
        if promised.ttft_percent is not None and ttfts.get(ClassName(name)) is None:
            report.problem((*place, "ttft_percent"), "has no target to be measured by; set ttft of the class")
        if (promised.duration is None) != (promised.duration_percent is None):
            report.problem(place, "duration and duration_percent say something only together; write both, or neither")
        if settings := given(promised):
            found[ClassName(name)] = fill(Objectives, settings)
    return found
