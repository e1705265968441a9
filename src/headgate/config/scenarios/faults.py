"""Faults injected into simulated engines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.scenarios.schema import FaultSection, RandomFaultsSection, ScenarioFile
from headgate.config.schema_reader import suggestion
from headgate.model.units import Duration, EndpointId, Instant, format_seconds
from headgate.simulation.options import NOMINAL_SPEED, Crash, EngineSpec, Hang, RandomFaults, ScenarioFault, Slowdown

KINDS = ("crash", "hang", "slow", "random")
_REQUIRED = {
    "crash": ("at", "recover_after"),
    "hang": ("at", "duration"),
    "slow": ("at", "duration", "speed"),
    "random": (),
}
_MISSING_HINTS = {
    "at": "set the time from the start of the run, such as 60s",
    "recover_after": "set the time until the engine recovers, such as 30s",
    "duration": "set the duration, such as 20s",
    "speed": "set the remaining fraction of its speed, such as 0.3",
}


def fault_settings(
    file: ScenarioFile, engines: Sequence[EngineSpec], report: ConfigReport
) -> tuple[ScenarioFault | RandomFaults, ...]:
    reading = _FaultReader(engines, _engines_unreadable(file, report), report)
    return tuple(
        fault for number, section in enumerate(file.faults) for fault in reading.entry(section, ("faults", number))
    )


def _engines_unreadable(file: ScenarioFile, report: ConfigReport) -> Callable[[str], bool]:
    """Returns a predicate that is true if some of a pool's engines could not be read. If so, unknown engine names are
    not an error.
    """

    def unsure(pool: str) -> bool:
        place = ("pools", pool, "engines")
        groups = len(file.pools[pool].engines) if pool in file.pools else 0
        return report.has_problem(place) or any(report.has_problem((*place, group, "count")) for group in range(groups))

    return unsure


@dataclass(frozen=True, slots=True)
class _FaultReader:
    engines: Sequence[EngineSpec]
    engines_unreadable: Callable[[str], bool]
    report: ConfigReport

    def entry(self, section: FaultSection, place: SettingPath) -> Iterator[ScenarioFault | RandomFaults]:
        kinds = [kind for kind in KINDS if getattr(section, kind) is not None]
        if len(kinds) != 1:
            found = f"has {' and '.join(kinds)}" if kinds else "does not specify a fault"
            self.report.add_problem(place, f"{found}; set exactly one of {', '.join(KINDS)}", contents_valid=True)
            return
        [kind] = kinds
        self._check_settings(section, kind, place)
        at = Instant(section.at or 0)
        match kind:
            case "random":
                assert section.random is not None
                yield self._random(section.random, (*place, "random"))
            case "crash":
                for each in self._targets(section.crash, at, (*place, kind)):
                    yield Crash(each, at, Duration(section.recover_after or 0))
            case "hang":
                for each in self._targets(section.hang, at, (*place, kind)):
                    yield Hang(each, at, Duration(section.duration or 0))
            case _:
                for each in self._targets(section.slow, at, (*place, kind)):
                    yield Slowdown(each, at, Duration(section.duration or 0), _thousandths(section.speed or 1.0))

    def _check_settings(self, section: FaultSection, kind: str, place: SettingPath) -> None:
        given = {
            "at": section.at,
            "recover_after": section.recover_after,
            "duration": section.duration,
            "speed": section.speed,
        }
        for setting, value in given.items():
            if value is None and setting in _REQUIRED[kind]:
                self.report.add_problem((*place, setting), f"missing; {_MISSING_HINTS[setting]}")
            elif value is not None and setting not in _REQUIRED[kind]:
                self.report.add_problem((*place, setting), f"has no effect with {kind}; remove it")

    def _targets(self, names: list[str] | None, at: Instant, place: SettingPath) -> Iterator[EndpointId]:
        """Engines affected by a fault. A pool name selects all engines in the pool."""
        for number, name in enumerate(names or []):
            meant = [each for each in self.engines if name in (each.id, each.pool)]
            if not meant and not self.engines_unreadable(name.partition("/")[0]):
                known = dict.fromkeys(str(part) for each in self.engines for part in (each.pool, each.id))
                hint = suggestion(name, known, otherwise="; use POOL/NUMBER, or POOL for all of its engines")
                self.report.add_problem((*place, number), f'engine "{name}" does not exist{hint}')
            self._warn_if_before_start(meant, at, (*place, number))
            yield from (each.id for each in meant)

    def _warn_if_before_start(self, engines: Sequence[EngineSpec], at: Instant, place: SettingPath) -> None:
        early = [each for each in engines if at < each.starts_at + each.cold_start_ns]
        if early:
            up_at = Duration(early[0].starts_at + early[0].cold_start_ns)
            others = f" and {len(early) - 1} more" if len(early) > 1 else ""
            problem = f"has no effect on {early[0].id}{others}, which starts at {format_seconds(up_at)}; raise at"
            self.report.add_warning(place, problem)

    def _random(self, section: RandomFaultsSection, place: SettingPath) -> RandomFaults:
        if section.duration_max < section.duration_min:
            self.report.add_problem((*place, "duration_max"), "is less than duration_min; raise it")
        if section.speed_max < section.speed_min:
            self.report.add_problem((*place, "speed_max"), "is less than speed_min; raise it")
        unread = any(self.report.has_problem((*place, kind)) for kind in ("crash", "hang", "slow"))
        if not unread and not section.crash + section.hang + section.slow:
            self.report.add_problem(
                place, "has no faults; set the number of crash, hang or slow faults", contents_valid=True
            )
        return RandomFaults(
            crashes=section.crash,
            hangs=section.hang,
            slowdowns=section.slow,
            duration_ns_min=Duration(section.duration_min),
            duration_ns_max=Duration(section.duration_max),
            speed_min=_thousandths(section.speed_min),
            speed_max=_thousandths(section.speed_max),
        )


def _thousandths(speed: float) -> int:
    return max(1, round(speed * NOMINAL_SPEED))
