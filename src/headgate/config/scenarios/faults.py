"""What goes wrong, where, when and for how long?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headgate.config.problems import Place, Report
from headgate.config.scenarios.schema import FaultSection, RandomFaultsSection, ScenarioFile
from headgate.config.scenarios.settings import (
    CrashSettings,
    EngineSettings,
    FaultSettings,
    HangSettings,
    RandomFaultSettings,
    SlowSettings,
)
from headgate.config.shape import suggestion
from headgate.model.units import Duration, EndpointId, Instant, seconds

KINDS = ("crash", "hang", "slow", "random")
_NEEDED = {"crash": ("at", "back_after"), "hang": ("at", "for"), "slow": ("at", "for", "speed"), "random": ()}
_NEXT = {
    "at": "say when, counted from the start, such as 60s",
    "back_after": "say after how long the engine is back, such as 30s",
    "for": "say how long, such as 20s",
    "speed": "say at which part of its speed it goes on, such as 0.3",
}


def fault_settings(file: ScenarioFile, engines: Sequence[EngineSettings], report: Report) -> tuple[FaultSettings, ...]:
    reading = _Faults(engines, _unsure(file, report), report)
    return tuple(
        fault for number, section in enumerate(file.faults) for fault in reading.entry(section, ("faults", number))
    )


def _unsure(file: ScenarioFile, report: Report) -> Callable[[str], bool]:
    """Whether the engines of a pool are known to be others than the file means, for it could not be read."""

    def unsure(pool: str) -> bool:
        place = ("pools", pool, "engines")
        groups = len(file.pools[pool].engines) if pool in file.pools else 0
        return report.is_wrong(place) or any(report.is_wrong((*place, group, "count")) for group in range(groups))

    return unsure


@dataclass(frozen=True, slots=True)
class _Faults:
    engines: Sequence[EngineSettings]
    unsure: Callable[[str], bool]
    report: Report

    def entry(self, section: FaultSection, place: Place) -> Iterator[FaultSettings]:
        kinds = [kind for kind in KINDS if getattr(section, kind) is not None]
        if len(kinds) != 1:
            says = f"says {' and '.join(kinds)}" if kinds else "does not say what goes wrong"
            self.report.problem(place, f"{says}; give exactly one of {', '.join(KINDS)}", read=True)
            return
        [kind] = kinds
        self._check_settings(section, kind, place)
        at = Instant(section.at or 0)
        match kind:
            case "random":
                assert section.random is not None
                yield self._random(section.random, (*place, "random"))
            case "crash":
                for each in self._meant(section.crash, at, (*place, kind)):
                    yield CrashSettings(each, at, Duration(section.back_after or 0))
            case "hang":
                for each in self._meant(section.hang, at, (*place, kind)):
                    yield HangSettings(each, at, Duration(section.lasts or 0))
            case _:
                for each in self._meant(section.slow, at, (*place, kind)):
                    yield SlowSettings(each, at, Duration(section.lasts or 0), section.speed or 1.0)

    def _check_settings(self, section: FaultSection, kind: str, place: Place) -> None:
        given = {"at": section.at, "back_after": section.back_after, "for": section.lasts, "speed": section.speed}
        for setting, value in given.items():
            if value is None and setting in _NEEDED[kind]:
                self.report.problem((*place, setting), f"missing; {_NEXT[setting]}")
            elif value is not None and setting not in _NEEDED[kind]:
                self.report.problem((*place, setting), f"means nothing with {kind}; remove it")

    def _meant(self, names: list[str] | None, at: Instant, place: Place) -> Iterator[EndpointId]:
        """A name is that of an engine, or of a pool for all of its engines."""
        for number, name in enumerate(names or []):
            meant = [each for each in self.engines if name in (each.id, each.pool)]
            if not meant and not self.unsure(name.partition("/")[0]):
                known = dict.fromkeys(str(part) for each in self.engines for part in (each.pool, each.id))
                hint = suggestion(name, known, quiet="; write POOL/NUMBER, or POOL for all of its engines")
                self.report.problem((*place, number), f'engine "{name}" does not exist{hint}')
            self._warn_of_early(meant, at, (*place, number))
            yield from (each.id for each in meant)

    def _warn_of_early(self, engines: Sequence[EngineSettings], at: Instant, place: Place) -> None:
        early = [each for each in engines if at < each.starts_at + each.cold_start_ns]
        if early:
            up_at = Duration(early[0].starts_at + early[0].cold_start_ns)
            others = f" and {len(early) - 1} more" if len(early) > 1 else ""
            problem = f"does nothing to {early[0].id}{others}, which is up from {seconds(up_at)} on; raise at"
            self.report.warn(place, problem)

    def _random(self, section: RandomFaultsSection, place: Place) -> RandomFaultSettings:
        if section.for_max < section.for_min:
            self.report.problem((*place, "for_max"), "is less than for_min; make it at least as long")
        if section.speed_max < section.speed_min:
            self.report.problem((*place, "speed_max"), "is less than speed_min; make it at least as much")
        unread = any(self.report.is_wrong((*place, kind)) for kind in ("crash", "hang", "slow"))
        if not unread and not section.crash + section.hang + section.slow:
            self.report.problem(place, "draws no fault; say how many of crash, hang or slow", read=True)
        return RandomFaultSettings(
            crashes=section.crash,
            hangs=section.hang,
            slows=section.slow,
            lasts_ns_min=Duration(section.for_min),
            lasts_ns_max=Duration(section.for_max),
            speed_min=section.speed_min,
            speed_max=section.speed_max,
        )
