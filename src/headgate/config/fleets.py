"""Where do a pool's endpoints come from, and how many may there be?

One section for all kinds of fleets, of which each takes some settings. A setting of another kind is a mistake, and so
is to leave out one that the kind cannot do without.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from headgate.config.fill import fill, given
from headgate.config.problems import Place, Report
from headgate.config.schema import ClassSection, FleetSection, PoolSection, ScalingSection
from headgate.config.shape import suggestion
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.ray.options import RayOptions
from headgate.model.policy import ServiceClass
from headgate.model.scaling import KnownEvent, ScalingRules
from headgate.model.units import Duration, Instant, seconds
from headgate.ports.fleet import PLACEHOLDERS

STATIC: Final = "static"
DNS: Final = "dns"
PROCESSES: Final = "processes"
RAY: Final = "ray"
_CLUSTER: Final = frozenset({"python", "address", "cpus", "gpus", "resources"})
KINDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        STATIC: frozenset(),
        DNS: frozenset({"name", "port", "nameserver", "every", "misses_max", "empty_after", "zone", "starting_name"}),
        PROCESSES: frozenset(
            {"command", "environment", "folder", "logs", "ports", "endpoints", "start_max", "stop_max", "restart"}
            | {"restart_max", "device", "zone"}
        ),
        RAY: frozenset(
            {"command", "environment", "logs", "endpoints", "start_max", "stop_max", "restart", "restart_max", "zone"}
            | _CLUSTER
        ),
    }
)
"""Which settings belong to which kind."""

_MICRODOLLARS: Final = 1_000_000
_PPM_PER_PERCENT: Final = 10_000
_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\.?$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD_IN_BRACES: Final = re.compile(r"\{([a-z_]+)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def fleet_options(pool: str, section: PoolSection, report: Report) -> DnsOptions | ProcessOptions | None:
    """None for a fleet that is listed, and where the kind is not known."""
    fleet, place = section.fleet, ("pools", pool, "fleet")
    if fleet.kind not in KINDS:
        hint = suggestion(fleet.kind, KINDS, quiet=f"; the kinds are {', '.join(KINDS)}")
        report.problem((*place, "kind"), f'kind "{fleet.kind}" is not known{hint}', read=True)
        return None
    _check_belongs(fleet, place, report)
    if fleet.kind == STATIC:
        return None
    if section.endpoints:
        wrong = f"lists endpoints, and the fleet of kind {fleet.kind} finds its own; remove one of the two"
        report.problem(("pools", pool, "endpoints"), wrong)
    for setting, text in (("device", fleet.device), ("zone", fleet.zone)):
        if text is not None and not _NAME.fullmatch(_WORD_IN_BRACES.sub("x", text)):
            report.problem((*place, setting), "a name is made of letters, digits, and . _ : -")
    in_flight_max = section.in_flight_max
    if in_flight_max is None:
        missing = (
            "missing; say how many requests an endpoint may hold at once (llama.cpp: its --parallel; vLLM: try 64)"
        )
        report.problem(("pools", pool, "in_flight_max"), missing)
    if fleet.kind == DNS:
        return _dns(fleet, in_flight_max or 1, place, report)
    return _processes(fleet, section.scaling, in_flight_max or 1, place, report)


def _check_belongs(fleet: FleetSection, place: Place, report: Report) -> None:
    for setting in FleetSection.__struct_fields__:
        if setting == "kind" or setting in KINDS[fleet.kind] or getattr(fleet, setting) is None:
            continue
        kinds = " or ".join(kind for kind, settings in KINDS.items() if setting in settings)
        report.problem((*place, setting), f"belongs to kind {kinds}, and the kind here is {fleet.kind}; remove it")


def _dns(fleet: FleetSection, in_flight_max: int, place: Place, report: Report) -> DnsOptions:
    if fleet.name is None:
        report.problem(
            (*place, "name"), "missing; write the name to resolve, such as engines.default.svc.cluster.local"
        )
    elif not _DNS_NAME.fullmatch(fleet.name):
        report.problem((*place, "name"), "is not a name that can be resolved; write it without scheme, port or path")
    elif fleet.port is None and not fleet.name.startswith("_"):
        wrong = "missing; say where its engines listen, or name a service, such as _http._tcp.engines.default.svc"
        report.problem((*place, "port"), wrong)
    elif fleet.port is not None and fleet.name.startswith("_"):
        report.problem((*place, "port"), "a service brings its ports; remove this, or name the host alone")
    if fleet.starting_name is not None:
        _check_starting_name(fleet.starting_name, fleet, (*place, "starting_name"), report)
    settings = _of_kind(fleet) | {"name": fleet.name or "", "in_flight_max": in_flight_max}
    if (empty_after := settings.pop("empty_after", None)) is not None:
        settings["empty_max"] = empty_after
    return fill(DnsOptions, settings)


def _check_starting_name(name: str, fleet: FleetSection, place: Place, report: Report) -> None:
    if not _DNS_NAME.fullmatch(name):
        report.problem(place, "is not a name that can be resolved; write it without scheme, port or path")
    elif fleet.name is not None and name.startswith("_") != fleet.name.startswith("_"):
        report.problem(place, "must be a service if name is one, and a host if name is one; change one of them")
    elif name == fleet.name:
        report.problem(place, "is the same as name; use one that lists engines before they are ready, or remove it")


def _processes(
    fleet: FleetSection, scaling: ScalingSection | None, in_flight_max: int, place: Place, report: Report
) -> ProcessOptions:
    environment = fleet.environment or {}
    for name in environment:
        if not _VARIABLE.fullmatch(name):
            report.problem((*place, "environment", name), "is no name of a variable; use letters, digits and _")
    settings = {name: value for name, value in _of_kind(fleet).items() if name not in _CLUSTER}
    settings |= {
        "command": _command(fleet, environment, place, report),
        "in_flight_max": in_flight_max,
        "endpoints": _endpoints(fleet, scaling, place, report),
        "ray": _ray(fleet, place, report) if fleet.kind == RAY else None,
    }
    options = fill(ProcessOptions, settings)
    if options.restart_ns_max < options.restart_ns:
        report.problem((*place, "restart_max"), "is less than restart, from which the pauses grow; raise it")
    if not 1_024 <= options.ports[0] <= options.ports[1] <= 65_535:
        report.problem((*place, "ports"), "are no ports that a program may take; stay between 1024 and 65535")
    return options


def _ray(fleet: FleetSection, place: Place, report: Report) -> RayOptions:
    if fleet.python is None:
        report.problem((*place, "python"), "missing; name an interpreter that has the cluster's version of Ray")
    cluster = {name: value for name, value in _of_kind(fleet).items() if name in _CLUSTER}
    return fill(RayOptions, cluster | {"python": fleet.python or ""})


def _of_kind(fleet: FleetSection) -> dict[str, object]:
    """The settings that were given and belong to the fleet's kind."""
    return {name: value for name, value in given(fleet).items() if name in KINDS[fleet.kind]}


def _command(fleet: FleetSection, environment: Mapping[str, str], place: Place, report: Report) -> tuple[str, ...]:
    """Its words; a command in one line is divided as a shell would, though none runs it."""
    words, here = fleet.command or [], (*place, "command")
    if len(words) == 1:
        try:
            words = shlex.split(words[0])
        except ValueError:
            report.problem(here, "holds a quote that is not closed; close it, or write the command as a list of words")
    if not words:
        report.problem(here, 'missing; write how an engine is started, such as "llama-server --port {port} -m FILE"')
    known_words = (*PLACEHOLDERS, "host") if fleet.kind == RAY else PLACEHOLDERS
    for text in (*words, *environment.values(), fleet.device or "", fleet.zone or ""):
        unknown = [word for word in _WORD_IN_BRACES.findall(text) if word not in known_words]
        if unknown:
            known = ", ".join(f"{{{word}}}" for word in known_words)
            hint = suggestion(unknown[0], known_words, quiet=f"; there are {known}")
            report.problem(here, f"{{{unknown[0]}}} stands for nothing{hint}")
    if words and not any("{port}" in text for text in (*words, *environment.values())):
        report.problem(here, "never says {port}, so every engine would listen at the same place; pass it to the engine")
    return tuple(words)


def _endpoints(fleet: FleetSection, scaling: ScalingSection | None, place: Place, report: Report) -> int:
    """With how many it begins."""
    if scaling is None:
        if fleet.endpoints == 0:
            report.problem((*place, "endpoints"), "must be at least 1 where no scaling starts others; raise it")
        return 1 if fleet.endpoints is None else fleet.endpoints
    least, most = scaling.endpoints_min, scaling.endpoints_max
    if fleet.endpoints is None:
        return min(max(least, scaling.warm_min), most)
    if not least <= fleet.endpoints <= most:
        bounds = f"is not between scaling.endpoints_min {least} and scaling.endpoints_max {most}"
        report.problem((*place, "endpoints"), f"{bounds}; change one of them")
    return fleet.endpoints


# How many


def scaling_rules(
    pool: str, section: PoolSection, classes: Mapping[str, ClassSection], report: Report
) -> ScalingRules | None:
    scaling, place = section.scaling, ("pools", pool, "scaling")
    if scaling is None:
        return None
    if section.fleet.kind == STATIC:
        report.warn(place, "how many endpoints are wanted is only told, since those of a list stay; use another fleet")
    if scaling.endpoints_max < scaling.endpoints_min:
        wrong = f"is less than endpoints_min {scaling.endpoints_min}, so nothing is between them; raise it"
        report.problem((*place, "endpoints_max"), wrong)
    elif scaling.endpoints_max < scaling.warm_min:
        wrong = f"is less than warm_min {scaling.warm_min}, which could never be kept; raise it"
        report.problem((*place, "endpoints_max"), wrong)
    rules = ScalingRules(
        endpoints_min=scaling.endpoints_min,
        endpoints_max=scaling.endpoints_max,
        warm_min=scaling.warm_min,
        load_percent=scaling.load_percent,
        kv_percent=scaling.kv_percent,
        period_ns=Duration(scaling.period),
        cold_start_ns=Duration(scaling.cold_start),
        settle_ns=Duration(scaling.settle),
        step_percent=scaling.step_percent,
        panic_percent=scaling.panic_percent,
        idle_ns=Duration(scaling.idle),
        hold_max=scaling.hold_max,
        hourly_microdollars=_microdollars(scaling.hourly_dollars),
        budget_microdollars=None if scaling.budget_dollars is None else _microdollars(scaling.budget_dollars),
        calendar=_calendar(scaling, place, report),
        objective_ppm=_objective_ppm(pool, classes),
        correction_percent_min=scaling.correction_percent_min,
        correction_percent_max=scaling.correction_percent_max,
    )
    _check_budget(rules, place, report)
    return rules


def _objective_ppm(pool: str, classes: Mapping[str, ClassSection]) -> int:
    """The strictest objective for the first token of the classes that may use the pool."""
    percents = [
        section.objectives.ttft_percent
        for section in classes.values()
        if section.objectives.ttft_percent is not None and (not section.pools or pool in section.pools)
    ]
    return round(max(percents) * _PPM_PER_PERCENT) if percents else ScalingRules().objective_ppm


def hold_max(scaling: ScalingSection | None) -> int:
    """So many requests may be held for the pool's first endpoint; 0 where it is meant to have one always."""
    return 0 if scaling is None or scaling.endpoints_min else scaling.hold_max


def cold_start_ns(scaling: ScalingSection | None) -> Duration:
    return ScalingRules().cold_start_ns if scaling is None else Duration(scaling.cold_start)


def check_starts(pools: Mapping[str, PoolSection], classes: Sequence[ServiceClass], report: Report) -> None:
    """Whether those can wait for an endpoint to start who ask for a pool that has none."""
    for name, section in pools.items():
        scaling = section.scaling
        if scaling is None or scaling.endpoints_min:
            continue
        users = [each for each in classes if not each.pools or name in each.pools]
        if not any(each.start_wait_ns is not None for each in users):
            names = " or ".join(each.name for each in users)
            who = f"class {names}" if users else "a class that may use the pool"
            wrong = f"is 0, and nobody waits for an endpoint to start; set start_wait on {who}, or raise this to 1"
            report.problem(("pools", name, "scaling", "endpoints_min"), wrong)
        for each in users:
            if each.start_wait_ns is not None and each.start_wait_ns < scaling.cold_start:
                takes = seconds(Duration(scaling.cold_start))
                warning = (
                    f"is less than the {takes} that pools.{name}.scaling.cold_start says, so those who wait for its "
                    "first endpoint are refused before it serves; raise it, or correct the other"
                )
                report.warn(("classes", each.name, "start_wait"), warning)


def _check_budget(rules: ScalingRules, place: Place, report: Report) -> None:
    if rules.budget_microdollars is None:
        return
    if rules.affordable is None:
        missing = "missing; say what an endpoint costs an hour, or remove budget_dollars"
        report.problem((*place, "hourly_dollars"), missing)
        return
    here, price = (*place, "budget_dollars"), f"{rules.hourly_microdollars / _MICRODOLLARS:g} an hour"
    if rules.affordable < rules.endpoints_min:
        report.problem(here, f"does not pay for endpoints_min {rules.endpoints_min} at {price}; raise it")
    elif rules.affordable < rules.warm_min:
        report.warn(here, f"does not pay for warm_min {rules.warm_min} at {price}, so fewer are kept; raise it")
    for known in rules.calendar:
        if rules.affordable < known.endpoints_min <= rules.endpoints_max:
            wants = f"the {known.endpoints_min} endpoints of {known.name} in calendar"
            report.warn(here, f"does not pay for {wants} at {price}, so fewer are there; raise it")


def _calendar(scaling: ScalingSection, place: Place, report: Report) -> tuple[KnownEvent, ...]:
    for number, each in enumerate(scaling.calendar):
        here = (*place, "calendar", number)
        if each.ends <= each.begins:
            report.problem((*here, "ends"), "is not after begins; change one of them")
        if each.endpoints_min > scaling.endpoints_max:
            wrong = f"is more than endpoints_max {scaling.endpoints_max}, so it could not be met; raise that one"
            report.problem((*here, "endpoints_min"), wrong)
    return tuple(
        KnownEvent(each.name, Instant(each.begins), Instant(each.ends), each.endpoints_min) for each in scaling.calendar
    )


def _microdollars(dollars: float) -> int:
    return round(dollars * _MICRODOLLARS)
