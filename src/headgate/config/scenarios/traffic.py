"""Which requests come, of which classes and whose?

An entry says where its requests come from by one of three settings: `trace`, `servegen` or `rate`. The others mean
something with some of these and nothing with the rest, which is said rather than passed over.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headgate.config.problems import Place, Report
from headgate.config.references import A_PATH, is_path
from headgate.config.scenarios.schema import LengthsSection, ScenarioFile, TrafficSection
from headgate.config.scenarios.settings import (
    LengthSettings,
    PoissonSettings,
    ServeGenSettings,
    Shares,
    TraceSettings,
    TrafficSettings,
)
from headgate.config.scenarios.traces import Library
from headgate.config.shape import suggestion
from headgate.model.units import Duration

KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "trace": frozenset(
            {"classes", "tenants", "tenants_like", "start", "for", "shift", "jitter", "speed_up", "keep"}
        ),
        "servegen": frozenset({"classes", "start", "for", "speed_up", "keep"}),
        "rate": frozenset({"classes", "tenants", "tenants_like", "for", "shift", "prompt", "output"}),
    }
)
"""Where requests come from -> what else may be said of them."""

EVERYONE: Shares = (("everyone", 1.0),)
"""Whose requests are, where neither the file nor a trace says."""


def traffic_settings(
    file: ScenarioFile, classes: Collection[str], library: Library, report: Report
) -> tuple[TrafficSettings, ...]:
    if not file.traffic:
        report.problem(("traffic",), "lists no source of requests; list at least one")
    reading = _Traffic(file.duration, classes, library, report)
    found = (reading.entry(section, ("traffic", number)) for number, section in enumerate(file.traffic))
    return tuple(each for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class _Traffic:
    duration: int | None
    classes: Collection[str]
    library: Library
    report: Report

    def entry(self, section: TrafficSection, place: Place) -> TrafficSettings | None:
        """None where the problem has been told."""
        kinds = [kind for kind in KINDS if getattr(section, kind) is not None]
        if len(kinds) != 1:
            says = f"says {' and '.join(kinds)}" if kinds else "does not say where its requests come from"
            self.report.problem(place, f"{says}; give exactly one of {', '.join(KINDS)}", read=True)
            return None
        self._check_settings(section, kinds[0], place)
        match kinds[0]:
            case "trace":
                return self._trace(section, place)
            case "servegen":
                return self._servegen(section, place)
            case _:
                return self._poisson(section, place)

    def _check_settings(self, section: TrafficSection, kind: str, place: Place) -> None:
        for setting in _given(section):
            if setting not in KINDS[kind]:
                others = " or ".join(each for each, settings in KINDS.items() if setting in settings)
                self.report.problem((*place, setting), f"means nothing with {kind}, only with {others}; remove it")
        if section.tenants is not None and section.tenants_like is not None:
            self.report.problem((*place, "tenants_like"), "stands beside tenants; keep one of them")
        if section.tenants is not None and not section.tenants:
            self.report.problem((*place, "tenants"), "names nobody; name one tenant, or several with their shares")
        for name in section.tenants or {}:
            if not is_path(name):
                self.report.problem((*place, "tenants", name), A_PATH)

    def _classes(self, section: TrafficSection, place: Place) -> Shares | None:
        for name in section.classes or {}:
            if name not in self.classes:
                hint = suggestion(name, self.classes, quiet=f"; there is {', '.join(self.classes) or 'none'}")
                self.report.problem((*place, "classes", name), f'class "{name}" does not exist{hint}')
        if section.classes is not None and not section.classes:
            self.report.problem((*place, "classes"), "names no class; name one, or several with their shares")
        return _shares(section.classes)

    def _needed_classes(self, section: TrafficSection, place: Place) -> Shares:
        if section.classes is None:
            problem = "missing; name the class of these requests, or several with their shares"
            self.report.problem((*place, "classes"), problem)
        return self._classes(section, place) or ()

    def _trace(self, section: TrafficSection, place: Place) -> TraceSettings | None:
        assert section.trace is not None
        path = self.library.trace(section.trace, (*place, "trace"))
        like, classes = self._like(section, place), self._classes(section, place)
        return path and TraceSettings(
            place=self.report.where(place),
            path=path,
            classes=classes,
            tenants=_shares(section.tenants),
            tenants_like=like,
            speed_up=section.speed_up,
            shift_ns=Duration(section.shift),
            jitter_ns=Duration(section.jitter),
            keep=section.keep,
            start_ns=Duration(section.start),
            length_ns=_duration(section.lasts),
        )

    def _servegen(self, section: TrafficSection, place: Place) -> ServeGenSettings | None:
        assert section.servegen is not None
        paths = self.library.servegen(section.servegen, (*place, "servegen"))
        classes = self._needed_classes(section, place)
        return paths and ServeGenSettings(
            rates=paths[0],
            lengths=paths[1],
            classes=classes,
            start_ns=Duration(section.start),
            length_ns=_duration(section.lasts),
            keep=section.keep,
            speed_up=section.speed_up,
        )

    def _poisson(self, section: TrafficSection, place: Place) -> PoissonSettings:
        assert section.rate is not None
        length = section.lasts or (None if self.duration is None else self.duration - section.shift)
        if length is None:
            problem = "missing; say how long requests arrive, here or for all traffic in duration"
            self.report.problem((*place, "for"), problem)
        elif length <= 0:
            self.report.problem(
                (*place, "shift"), "is not before the end of duration, so that nothing arrives; lower it"
            )
        like = self._like(section, place)
        return PoissonSettings(
            rate=section.rate,
            shift_ns=Duration(section.shift),
            length_ns=Duration(length or 1),
            prompt=self._lengths(section.prompt, (*place, "prompt")),
            output=self._lengths(section.output, (*place, "output")),
            classes=self._needed_classes(section, place),
            tenants=_shares(section.tenants) if like or section.tenants else EVERYONE,
            tenants_like=like,
        )

    def _like(self, section: TrafficSection, place: Place) -> Path | None:
        if section.tenants_like is None:
            return None
        return self.library.trace(section.tenants_like, (*place, "tenants_like"))

    def _lengths(self, section: LengthsSection | None, place: Place) -> LengthSettings:
        stand_in = LengthSettings(least=1, most=1)
        if section is None:
            self.report.problem(place, "missing; say how many tokens, such as 200:800")
            return stand_in
        if section.between is not None:
            if section.median or section.p95 or section.most:
                self.report.problem((*place, "between"), "stands beside median, p95 or most; keep one way to say it")
            return LengthSettings(least=section.between[0], most=section.between[1])
        median, p95, most = section.median, section.p95, section.most
        if median is None or p95 is None or most is None:
            problem = "is not complete; write two bounds, such as 200:800, or median, p95 and most"
            self.report.problem(place, problem, read=True)
            return stand_in
        if not median < p95 <= most:
            self.report.problem(place, "median, p95 and most must grow in this order", read=True)
        return LengthSettings(least=1, most=most, median=median, p95=p95)


def _given(section: TrafficSection) -> Iterator[str]:
    """The settings that are not as if they were left out, by their names in the file."""
    without = TrafficSection()
    for name, setting in zip(section.__struct_fields__, section.__struct_encode_fields__, strict=True):
        if setting not in KINDS and getattr(section, name) != getattr(without, name):
            yield setting


def _shares(shares: Mapping[str, float] | None) -> Shares | None:
    return None if shares is None else tuple(shares.items())


def _duration(length: int | None) -> Duration | None:
    return None if length is None else Duration(length)
