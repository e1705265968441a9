"""Traffic of a scenario.

Each entry has one source: `trace`, `servegen` or `rate`. Settings that have no effect with that source are reported as
problems.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.references import TENANT_PATH_RULE, is_tenant_path
from headgate.config.scenarios.schema import (
    DaySection,
    LengthsSection,
    RampSection,
    SimulatedTrafficSection,
    SpikeSection,
    TrafficSection,
)
from headgate.config.scenarios.traces import TraceLibrary
from headgate.config.schema_reader import available, suggestion
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Api
from headgate.model.units import Duration
from headgate.simulation.options import (
    DEFAULT_TENANTS,
    SIMULATED_APIS,
    DailyPeak,
    LengthDistribution,
    LogNormal,
    Ramp,
    RateTraffic,
    ServeGenTraffic,
    Shares,
    Spike,
    TraceTraffic,
    Traffic,
    Uniform,
)

SETTINGS_BY_SOURCE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "trace": frozenset(
            {"classes", "tenants", "tenants_from", "start", "duration", "shift", "jitter", "speed_up", "sample"}
        ),
        "servegen": frozenset({"classes", "start", "duration", "speed_up", "sample"}),
        "rate": frozenset(
            {
                *("classes", "tenants", "tenants_from", "duration", "shift", "prompt", "output"),
                *("burstiness", "ramp", "spikes", "day"),
            }
        ),
    }
)
"""Settings that are valid for each source."""


def traffic_settings(
    sections: Sequence[TrafficSection],
    duration: int | None,
    classes: Collection[str],
    library: TraceLibrary,
    report: ConfigReport,
) -> tuple[Traffic, ...]:
    """Settings of all entries. Entries with a problem, which is reported, are left out."""
    if not sections:
        report.add_problem(("traffic",), "has no entries; list at least one source of requests")
    reading = TrafficReader(duration, classes, library, report)
    found = (reading.entry(section, ("traffic", number)) for number, section in enumerate(sections))
    return tuple(each for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class TrafficReader:
    duration: int | None
    classes: Collection[str]
    library: TraceLibrary
    report: ConfigReport

    def entry(self, section: TrafficSection, place: SettingPath) -> Traffic | None:
        """Settings for one entry. If there is a problem, it is reported and the result is None."""
        kinds = [kind for kind in SETTINGS_BY_SOURCE if getattr(section, kind) is not None]
        if len(kinds) != 1:
            found = f"has {' and '.join(kinds)}" if kinds else "has no source of requests"
            self.report.add_problem(
                place, f"{found}; set exactly one of {', '.join(SETTINGS_BY_SOURCE)}", contents_valid=True
            )
            return None
        self._check_settings(section, kinds[0], place)
        if kinds[0] != "rate":
            self._check_no_api(section, kinds[0], place)
        match kinds[0]:
            case "trace":
                return self._trace(section, place)
            case "servegen":
                return self._servegen(section, place)
            case _:
                return self._rate(section, place)

    def _check_settings(self, section: TrafficSection, kind: str, place: SettingPath) -> None:
        for setting in _given_names(section):
            if setting not in SETTINGS_BY_SOURCE[kind]:
                others = " or ".join(each for each, settings in SETTINGS_BY_SOURCE.items() if setting in settings)
                self.report.add_problem((*place, setting), f"has no effect with {kind}, only with {others}; remove it")
        if section.tenants is not None and section.tenants_from is not None:
            self.report.add_problem((*place, "tenants_from"), "cannot be combined with tenants; remove one of the two")
        if section.tenants is not None and not section.tenants:
            self.report.add_problem((*place, "tenants"), "has no tenant; set one tenant, or several with their shares")
        for name in section.tenants or {}:
            if not is_tenant_path(name):
                self.report.add_problem((*place, "tenants", name), TENANT_PATH_RULE)

    def _classes(self, section: TrafficSection, place: SettingPath) -> Shares | None:
        for name in section.classes or {}:
            if name not in self.classes:
                hint = suggestion(name, self.classes, otherwise=available(self.classes))
                self.report.add_problem((*place, "classes", name), f'class "{name}" does not exist{hint}')
        if section.classes is not None and not section.classes:
            self.report.add_problem((*place, "classes"), "has no class; set one, or several with their shares")
        return _shares(section.classes)

    def _needed_classes(self, section: TrafficSection, place: SettingPath) -> Shares:
        if section.classes is None:
            problem = "missing; set the class of these requests, or several with their shares"
            self.report.add_problem((*place, "classes"), problem)
        return self._classes(section, place) or ()

    def _check_no_api(self, section: TrafficSection, kind: str, place: SettingPath) -> None:
        if isinstance(section, SimulatedTrafficSection) and section.api is not None:
            self.report.add_problem((*place, "api"), f"has no effect with {kind}, only with rate; remove it")

    def _trace(self, section: TrafficSection, place: SettingPath) -> TraceTraffic | None:
        assert section.trace is not None
        path = self.library.trace(section.trace, (*place, "trace"))
        like, classes = self._tenants_trace(section, place), self._classes(section, place)
        return path and TraceTraffic(
            location=self.report.location_text(place),
            path=path,
            classes=classes,
            tenants=_shares(section.tenants),
            tenants_from=like,
            speed_up=section.speed_up,
            shift_ns=Duration(section.shift),
            jitter_ns=Duration(section.jitter),
            keep=section.sample,
            start_ns=Duration(section.start),
            duration_ns=_duration(section.duration),
        )

    def _servegen(self, section: TrafficSection, place: SettingPath) -> ServeGenTraffic | None:
        assert section.servegen is not None
        paths = self.library.servegen(section.servegen, (*place, "servegen"))
        classes = self._needed_classes(section, place)
        return paths and ServeGenTraffic(
            rates=paths[0],
            lengths=paths[1],
            classes=classes,
            start_ns=Duration(section.start),
            duration_ns=_duration(section.duration),
            keep=section.sample,
            speed_up=section.speed_up,
        )

    def _rate(self, section: TrafficSection, place: SettingPath) -> RateTraffic:
        assert section.rate is not None
        length = section.duration or (None if self.duration is None else self.duration - section.shift)
        if length is None:
            problem = "missing; set it here, or for all traffic with the top-level duration"
            self.report.add_problem((*place, "duration"), problem)
        elif length <= 0:
            self.report.add_problem(
                (*place, "shift"), "is not before the end of duration, so no request arrives; lower it"
            )
        like, api = self._tenants_trace(section, place), self._api(section, place)
        return RateTraffic(
            api=api,
            rate=section.rate,
            shift_ns=Duration(section.shift),
            duration_ns=Duration(length or 1),
            prompt=self.lengths(section.prompt, (*place, "prompt")),
            output=self._output(section, api, place),
            classes=self._needed_classes(section, place),
            tenants=_shares(section.tenants) or (() if like else DEFAULT_TENANTS),
            tenants_from=like,
            burstiness=section.burstiness,
            ramp=section.ramp and _ramp(section.ramp),
            spikes=tuple(_spike(each) for each in section.spikes),
            day=section.day and self._day(section.day, (*place, "day")),
        )

    def _api(self, section: TrafficSection, place: SettingPath) -> Api | None:
        if not isinstance(section, SimulatedTrafficSection) or section.api is None:
            return None
        if section.api in SIMULATED_APIS:
            return Api(section.api)
        hint = suggestion(section.api, SIMULATED_APIS, otherwise=available(SIMULATED_APIS))
        self.report.add_problem((*place, "api"), f'API "{section.api}" cannot be simulated{hint}')
        return None

    def _output(self, section: TrafficSection, api: Api | None, place: SettingPath) -> LengthDistribution:
        if api in APIS_WITHOUT_OUTPUT:
            if section.output is not None:
                self.report.add_problem((*place, "output"), f"has no effect with {api}; remove it")
            return Uniform(0, 0)
        # Whether an unknown API needs an output is unknown, too.
        is_unknown = api is None and isinstance(section, SimulatedTrafficSection) and section.api is not None
        if is_unknown and section.output is None:
            return Uniform(1, 1)
        return self.lengths(section.output, (*place, "output"))

    def _day(self, section: DaySection, place: SettingPath) -> DailyPeak:
        if section.at + section.duration >= section.length:
            problem = "must be shorter than the day and end before it ends; lower at or duration, or raise length"
            self.report.add_problem(place, problem, contents_valid=True)
        return DailyPeak(
            share=section.share,
            at_ns=Duration(section.at),
            duration_ns=Duration(section.duration),
            day_ns=Duration(section.length),
        )

    def _tenants_trace(self, section: TrafficSection, place: SettingPath) -> Path | None:
        if section.tenants_from is None:
            return None
        return self.library.trace(section.tenants_from, (*place, "tenants_from"))

    def lengths(self, section: LengthsSection | None, place: SettingPath) -> LengthDistribution:
        stand_in = Uniform(1, 1)
        if section is None:
            self.report.add_problem(place, "missing; set the number of tokens, such as 200:800")
            return stand_in
        if section.uniform is not None:
            if section.median or section.p95 or section.max:
                self.report.add_problem(
                    (*place, "uniform"), "cannot be combined with median, p95 or max; remove one of the two"
                )
            return Uniform(*section.uniform)
        median, p95, most = section.median, section.p95, section.max
        if median is None or p95 is None or most is None:
            problem = "is incomplete; set a range such as 200:800, or median, p95 and max"
            self.report.add_problem(place, problem, contents_valid=True)
            return stand_in
        if not median < p95 <= most:
            self.report.add_problem(place, "median, p95 and max must be in increasing order", contents_valid=True)
        return LogNormal(median=median, p95=p95, max=most)


def _given_names(section: TrafficSection) -> Iterator[str]:
    """Names of the settings that differ from their defaults."""
    without = TrafficSection()
    for name, setting in zip(TrafficSection.__struct_fields__, TrafficSection.__struct_encode_fields__, strict=True):
        if setting not in SETTINGS_BY_SOURCE and getattr(section, name) != getattr(without, name):
            yield setting


def _ramp(section: RampSection) -> Ramp:
    return Ramp(to=section.to, at_ns=Duration(section.at), duration_ns=Duration(section.duration))


def _spike(section: SpikeSection) -> Spike:
    return Spike(factor=section.factor, at_ns=Duration(section.at), duration_ns=Duration(section.duration))


def _shares(shares: Mapping[str, float] | None) -> Shares | None:
    return None if shares is None else tuple(shares.items())


def _duration(length: int | None) -> Duration | None:
    return None if length is None else Duration(length)
