"""Fleet and scaling options for a pool.

All fleet types share one section. A setting that belongs to another type is an error, as is a missing setting that the
type requires.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from headgate.config.class_schema import ClassSection
from headgate.config.fill import fill, given_settings
from headgate.config.pool_schema import FleetSection, PoolSection, ScalingSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.schema_reader import available, suggestion
from headgate.config.setting_types import PPM_PER_PERCENT
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.ray.options import RayOptions
from headgate.model.policy import ServiceClass
from headgate.model.scaling import ScalingRules, ScheduledEvent
from headgate.model.units import Duration, Instant, format_seconds
from headgate.ports.fleet import COMMAND_PLACEHOLDERS

STATIC: Final = "static"
DNS: Final = "dns"
PROCESSES: Final = "processes"
RAY: Final = "ray"
_RAY_SETTINGS: Final = frozenset({"python", "address", "cpus", "gpus", "resources"})
SETTINGS_BY_KIND: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        STATIC: frozenset(),
        DNS: frozenset(
            {"name", "port", "scheme", "nameserver", "resolve_interval", "misses_max", "empty_after", "zone"}
            | {"not_ready_name"}
        ),
        PROCESSES: frozenset(
            {
                "command",
                "environment",
                "scheme",
                "working_directory",
                "log_directory",
                "port_range",
                "endpoint_count",
                "start_timeout",
                "stop_timeout",
                "restart_backoff",
            }
            | {"restart_backoff_max", "device", "zone"}
        ),
        RAY: frozenset(
            {
                "command",
                "environment",
                "scheme",
                "log_directory",
                "endpoint_count",
                "start_timeout",
                "stop_timeout",
                "restart_backoff",
                "restart_backoff_max",
                "zone",
            }
            | _RAY_SETTINGS
        ),
    }
)
"""Settings that are valid for each fleet type."""

_MICRODOLLARS: Final = 1_000_000
_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\.?$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def is_dns_name(text: str) -> bool:
    return _DNS_NAME.fullmatch(text) is not None


def fleet_options(pool: str, section: PoolSection, report: ConfigReport) -> DnsOptions | ProcessOptions | None:
    """Fleet options; None for a static fleet or an unknown type."""
    fleet, place = section.fleet, ("pools", pool, "fleet")
    if fleet.kind not in SETTINGS_BY_KIND:
        hint = suggestion(fleet.kind, SETTINGS_BY_KIND, otherwise=f"; the kinds are {', '.join(SETTINGS_BY_KIND)}")
        report.add_problem((*place, "kind"), f'kind "{fleet.kind}" does not exist{hint}', contents_valid=True)
        return None
    _check_kind_settings(fleet, place, report)
    if fleet.kind == STATIC:
        return None
    if section.endpoints:
        wrong = f"cannot be combined with a fleet of kind {fleet.kind}; remove one of the two"
        report.add_problem(("pools", pool, "endpoints"), wrong)
    for setting, text in (("device", fleet.device), ("zone", fleet.zone)):
        if text is not None and not _NAME.fullmatch(_PLACEHOLDER.sub("x", text)):
            report.add_problem((*place, setting), "must have only letters, digits, and . _ : -")
    if fleet.scheme not in (None, "http", "https"):
        report.add_problem((*place, "scheme"), f'scheme "{fleet.scheme}" does not exist; use http or https')
    in_flight_max = section.in_flight_max
    if in_flight_max is None:
        missing = (
            "missing; set the number of concurrent requests per endpoint (llama.cpp: its --parallel; vLLM: try 64)"
        )
        report.add_problem(("pools", pool, "in_flight_max"), missing)
    if fleet.kind == DNS:
        return _dns(fleet, in_flight_max or 1, place, report)
    return _processes(fleet, section.scaling, in_flight_max or 1, place, report)


def _check_kind_settings(fleet: FleetSection, place: SettingPath, report: ConfigReport) -> None:
    for setting in FleetSection.__struct_fields__:
        if setting == "kind" or setting in SETTINGS_BY_KIND[fleet.kind] or getattr(fleet, setting) is None:
            continue
        kinds = " or ".join(kind for kind, settings in SETTINGS_BY_KIND.items() if setting in settings)
        report.add_problem((*place, setting), f"has no effect with kind {fleet.kind}, only with {kinds}; remove it")


def _dns(fleet: FleetSection, in_flight_max: int, place: SettingPath, report: ConfigReport) -> DnsOptions:
    if fleet.name is None:
        report.add_problem(
            (*place, "name"), "missing; set the DNS name of the engines, such as engines.default.svc.cluster.local"
        )
    elif not is_dns_name(fleet.name):
        report.add_problem((*place, "name"), "is not a DNS name; write it without scheme, port or path")
    elif fleet.port is None and not fleet.name.startswith("_"):
        wrong = "missing; set the port of the engines, or use an SRV name such as _http._tcp.engines.default.svc"
        report.add_problem((*place, "port"), wrong)
    elif fleet.port is not None and fleet.name.startswith("_"):
        report.add_problem(
            (*place, "port"), "has no effect with an SRV name, which includes ports; remove it, or use a host name"
        )
    if fleet.not_ready_name is not None:
        _check_not_ready_name(fleet.not_ready_name, fleet, (*place, "not_ready_name"), report)
    settings = _kind_settings(fleet) | {"name": fleet.name or "", "in_flight_max": in_flight_max}
    if (empty_after := settings.pop("empty_after", None)) is not None:
        settings["empty_max"] = empty_after
    return fill(DnsOptions, settings)


def _check_not_ready_name(name: str, fleet: FleetSection, place: SettingPath, report: ConfigReport) -> None:
    if not is_dns_name(name):
        report.add_problem(place, "is not a DNS name; write it without scheme, port or path")
    elif fleet.name is not None and name.startswith("_") != fleet.name.startswith("_"):
        report.add_problem(place, "must be an SRV name if name is one, and a host name otherwise; change one of them")
    elif name == fleet.name:
        report.add_problem(
            place, "is the same as name; use a name that includes engines that are not ready, or remove it"
        )


def _processes(
    fleet: FleetSection, scaling: ScalingSection | None, in_flight_max: int, place: SettingPath, report: ConfigReport
) -> ProcessOptions:
    environment = fleet.environment or {}
    for name in environment:
        if not _VARIABLE.fullmatch(name):
            report.add_problem((*place, "environment", name), "is not a valid variable name; use letters, digits and _")
    settings = {name: value for name, value in _kind_settings(fleet).items() if name not in _RAY_SETTINGS}
    settings |= {
        "command": _command(fleet, environment, place, report),
        "in_flight_max": in_flight_max,
        "endpoint_count": _endpoints(fleet, scaling, place, report),
        "ray": _ray(fleet, place, report) if fleet.kind == RAY else None,
    }
    options = fill(ProcessOptions, settings)
    if options.restart_backoff_ns_max < options.restart_backoff_ns:
        report.add_problem((*place, "restart_backoff_max"), "is less than restart_backoff; raise it")
    if not 1_024 <= options.port_range[0] <= options.port_range[1] <= 65_535:
        report.add_problem((*place, "port_range"), "must be between 1024 and 65535")
    return options


def _ray(fleet: FleetSection, place: SettingPath, report: ConfigReport) -> RayOptions:
    if fleet.python is None:
        report.add_problem(
            (*place, "python"), "missing; set the path of a Python interpreter with the cluster's version of Ray"
        )
    cluster = {name: value for name, value in _kind_settings(fleet).items() if name in _RAY_SETTINGS}
    return fill(RayOptions, cluster | {"python": fleet.python or ""})


def _kind_settings(fleet: FleetSection) -> dict[str, object]:
    """Settings in the file that apply to this fleet type."""
    return {name: value for name, value in given_settings(fleet).items() if name in SETTINGS_BY_KIND[fleet.kind]}


def _command(
    fleet: FleetSection, environment: Mapping[str, str], place: SettingPath, report: ConfigReport
) -> tuple[str, ...]:
    """The command's arguments.

    A command given as one string is split as a shell would, but it is not run by a shell.
    """
    words, here = fleet.command or [], (*place, "command")
    if len(words) == 1:
        try:
            words = shlex.split(words[0])
        except ValueError:
            report.add_problem(here, "has an unclosed quote; close it, or write the command as a list of arguments")
    if not words:
        report.add_problem(
            here, 'missing; set the command that starts an engine, such as "llama-server --port {port} -m FILE"'
        )
    known_words = (*COMMAND_PLACEHOLDERS, "host") if fleet.kind == RAY else COMMAND_PLACEHOLDERS
    for text in (*words, *environment.values(), fleet.device or "", fleet.zone or ""):
        unknown = [word for word in _PLACEHOLDER.findall(text) if word not in known_words]
        if unknown:
            hint = suggestion(unknown[0], known_words, otherwise=available(f"{{{word}}}" for word in known_words))
            report.add_problem(here, f"{{{unknown[0]}}} is not a known placeholder{hint}")
    if words and not any("{port}" in text for text in (*words, *environment.values())):
        report.add_problem(
            here, "does not use {port}, so all engines would listen on the same port; pass {port} to the engine"
        )
    return tuple(words)


def _endpoints(fleet: FleetSection, scaling: ScalingSection | None, place: SettingPath, report: ConfigReport) -> int:
    """Initial endpoint count."""
    if scaling is None:
        if fleet.endpoint_count == 0:
            report.add_problem((*place, "endpoint_count"), "must be at least 1 without scaling; raise it")
        return 1 if fleet.endpoint_count is None else fleet.endpoint_count
    least, most = scaling.endpoints_min, scaling.endpoints_max
    if fleet.endpoint_count is None:
        return min(max(least, scaling.warm_endpoints_min), most)
    if not least <= fleet.endpoint_count <= most:
        bounds = f"is not between scaling.endpoints_min {least} and scaling.endpoints_max {most}"
        report.add_problem((*place, "endpoint_count"), f"{bounds}; change one of them")
    return fleet.endpoint_count


# Scaling


def scaling_rules(
    pool: str, scaling: ScalingSection | None, classes: Mapping[str, ClassSection], report: ConfigReport
) -> ScalingRules | None:
    place = ("pools", pool, "scaling")
    if scaling is None:
        return None
    if scaling.endpoints_max < scaling.endpoints_min:
        wrong = f"is less than endpoints_min {scaling.endpoints_min}; raise it"
        report.add_problem((*place, "endpoints_max"), wrong)
    elif scaling.endpoints_max < scaling.warm_endpoints_min:
        wrong = f"is less than warm_endpoints_min {scaling.warm_endpoints_min}; raise it"
        report.add_problem((*place, "endpoints_max"), wrong)
    rules = ScalingRules(
        endpoints_min=scaling.endpoints_min,
        endpoints_max=scaling.endpoints_max,
        warm_endpoints_min=scaling.warm_endpoints_min,
        target_utilization_percent=scaling.target_utilization_percent,
        target_kv_percent=scaling.target_kv_percent,
        period_ns=Duration(scaling.period),
        cold_start_ns=Duration(scaling.cold_start),
        scale_down_stabilization_ns=Duration(scaling.scale_down_stabilization),
        scale_down_percent=scaling.scale_down_percent,
        panic_threshold_percent=scaling.panic_threshold_percent,
        scale_to_zero_after_ns=Duration(scaling.scale_to_zero_after),
        held_requests_max=scaling.held_requests_max,
        endpoint_microdollars_per_hour=_microdollars(scaling.endpoint_usd_per_hour),
        microdollars_per_hour_max=None if scaling.usd_per_hour_max is None else _microdollars(scaling.usd_per_hour_max),
        calendar=_calendar(scaling, place, report),
        objective_ppm=_objective_ppm(pool, classes),
        correction_percent_min=scaling.correction_percent_min,
        correction_percent_max=scaling.correction_percent_max,
    )
    _check_budget(rules, place, report)
    return rules


def check_can_scale(pool: str, section: PoolSection, report: ConfigReport) -> None:
    if section.scaling is not None and section.fleet.kind == STATIC:
        report.add_warning(
            ("pools", pool, "scaling"),
            "only reports the desired number of endpoints, because a static fleet cannot scale; use another fleet kind",
        )


def _objective_ppm(pool: str, classes: Mapping[str, ClassSection]) -> int:
    """Strictest TTFT objective among the classes that may use the pool, in parts per million."""
    percents = [
        section.objectives.ttft_percent
        for section in classes.values()
        if section.objectives.ttft_percent is not None and (not section.pools or pool in section.pools)
    ]
    return round(max(percents) * PPM_PER_PERCENT) if percents else ScalingRules().objective_ppm


def held_requests_max(scaling: ScalingSection | None) -> int:
    """Maximum number of requests held for the pool's first endpoint. 0 if the pool never scales to zero."""
    return 0 if scaling is None or scaling.endpoints_min else scaling.held_requests_max


def cold_start_ns(scaling: ScalingSection | None) -> Duration:
    return ScalingRules().cold_start_ns if scaling is None else Duration(scaling.cold_start)


def check_cold_start_waits(
    pools: Mapping[str, PoolSection], classes: Sequence[ServiceClass], report: ConfigReport
) -> None:
    """Reports pools that scale to zero although no class waits for a cold start, and classes whose wait is shorter than
    the cold start.
    """
    for name, section in pools.items():
        scaling = section.scaling
        if scaling is None or scaling.endpoints_min:
            continue
        users = [each for each in classes if not each.pools or name in each.pools]
        if not any(each.cold_start_wait_ns_max is not None for each in users):
            names = " or ".join(each.name for each in users)
            who = f"class {names}" if users else "a class that may use the pool"
            wrong = f"is 0, but no class waits for a cold start; set cold_start_wait_max on {who}, or raise it to 1"
            report.add_problem(("pools", name, "scaling", "endpoints_min"), wrong)
        for each in users:
            if each.cold_start_wait_ns_max is not None and each.cold_start_wait_ns_max < scaling.cold_start:
                takes = format_seconds(Duration(scaling.cold_start))
                warning = (
                    f"is less than pools.{name}.scaling.cold_start {takes}, so requests that wait for the first "
                    "endpoint are rejected before it is ready; raise it, or lower cold_start"
                )
                report.add_warning(("classes", each.name, "cold_start_wait_max"), warning)


def _check_budget(rules: ScalingRules, place: SettingPath, report: ConfigReport) -> None:
    if rules.microdollars_per_hour_max is None:
        return
    if rules.affordable_endpoints is None:
        missing = "missing; set the hourly price of an endpoint, or remove usd_per_hour_max"
        report.add_problem((*place, "endpoint_usd_per_hour"), missing)
        return
    here, price = (*place, "usd_per_hour_max"), f"{rules.endpoint_microdollars_per_hour / _MICRODOLLARS:g} per hour"
    if rules.affordable_endpoints < rules.endpoints_min:
        report.add_problem(here, f"is too low for endpoints_min {rules.endpoints_min} at {price}; raise it")
    elif rules.affordable_endpoints < rules.warm_endpoints_min:
        report.add_warning(
            here,
            f"is too low for warm_endpoints_min {rules.warm_endpoints_min} at {price}, so fewer stay warm; raise it",
        )
    for known in rules.calendar:
        if rules.affordable_endpoints < known.endpoints_min <= rules.endpoints_max:
            wants = f"the {known.endpoints_min} endpoints of calendar event {known.name}"
            report.add_warning(here, f"is too low for {wants} at {price}, so fewer are started; raise it")


def _calendar(scaling: ScalingSection, place: SettingPath, report: ConfigReport) -> tuple[ScheduledEvent, ...]:
    for number, each in enumerate(scaling.calendar):
        here = (*place, "calendar", number)
        if each.ends_at <= each.starts_at:
            report.add_problem((*here, "ends_at"), "is not after starts_at; change one of them")
        if each.endpoints_min > scaling.endpoints_max:
            wrong = f"is more than endpoints_max {scaling.endpoints_max}; raise endpoints_max"
            report.add_problem((*here, "endpoints_min"), wrong)
    return tuple(
        ScheduledEvent(each.name, Instant(each.starts_at), Instant(each.ends_at), each.endpoints_min)
        for each in scaling.calendar
    )


def _microdollars(dollars: float) -> int:
    return round(dollars * _MICRODOLLARS)
