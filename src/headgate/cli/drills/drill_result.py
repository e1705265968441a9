"""Result of a drill: one verdict per objective, the figures of each phase and the timeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from headgate.cli.drills.drill_run import DrillRun
from headgate.cli.drills.figures import INTER_TOKEN, QUEUE_WAIT, TTFT, DrillObjective, PhaseFigures, objectives_of
from headgate.cli.drills.fleet import DrillSample

HELD: Final = "held"
MISSED: Final = "missed"
UNMEASURED: Final = "unmeasured"
_STATES: Final = {True: HELD, False: MISSED, None: UNMEASURED}


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """Whether one objective was held."""

    objective: str
    target: str
    measured: str
    held: bool | None
    """None if nothing was measured."""

    @property
    def state(self) -> str:
        return _STATES[self.held]


@dataclass(frozen=True, slots=True)
class DrillResult:
    drill: str
    target: str
    verdicts: Sequence[DrillVerdict]
    run: DrillRun
    undone: str
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    """Measurements of this kind of drill, by name."""
    excluded: Sequence[str] = ()
    """Objectives that were not judged, each with the reason."""
    in_force: bool = False
    """Whether the act could not be undone."""

    @property
    def held(self) -> bool:
        """Whether every measured objective was held, at least one was measured, and the drill ran to its end."""
        measured = [each.held for each in self.verdicts if each.held is not None]
        complete = not (self.run.stopped or self.run.last.restarted or self.in_force)
        return complete and bool(measured) and all(measured)

    # Text

    def lines(self) -> Iterator[str]:
        yield f"{self.drill} of {self.target}: {HELD if self.held else MISSED}{self._why()}"
        yield ""
        rows = [("", *self.run.phases()), *self._rows()]
        yield from _table(rows)
        yield ""
        for each in self.verdicts:
            yield f"{each.state:<11}{each.objective}: {each.measured} (target {each.target})"
        yield from (f"{'not judged':<11}{each}" for each in self.excluded)
        if self.facts:
            yield ""
            yield from (f"{name}: {_text(value)}" for name, value in self.facts.items())
        yield ""
        yield from (f"{entry.at_s:>8.1f} s  {entry.text}" for entry in self.run.timeline_entries())

    def _why(self) -> str:
        if self.run.stopped:
            return f" (stopped early: {self.run.stopped_because or 'interrupted'})"
        if self.run.last.restarted:
            return " (a gateway restarted during the drill)"
        if self.in_force:
            return " (the act could not be undone)"
        return "" if any(each.held is not None for each in self.verdicts) else " (nothing was measured)"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        phases = tuple(self.run.phases().values())
        yield ("seconds", *(f"{each.seconds:.0f}" for each in phases))
        yield ("requests/s", *(f"{each.per_second:.1f}" for each in phases))
        for objective in objectives_of(self._gauges()):
            yield (f"{objective.label}, {100 * objective.target:g} %", *_shares(objective, phases))
        for service_class in self._classes():
            for name, metric in (("TTFT", TTFT), ("inter-token", INTER_TOKEN), ("queue wait", QUEUE_WAIT)):
                label = f"{service_class or 'all'} {name} p50, p95"
                yield (label, *(_quantiles(each, metric, service_class) for each in phases))
        yield ("most queued", *(str(self._most_queued(name)) for name in self.run.phases()))
        yield ("retries", *(str(each.retries) for each in phases))
        yield ("rejected", *(str(each.rejected) for each in phases))
        yield ("lost", *(str(each.lost) for each in phases))

    def _classes(self) -> list[str | None]:
        """Classes with objectives. None stands for all classes, if no class has any."""
        return list(dict.fromkeys(each.service_class for each in objectives_of(self._gauges()))) or [None]

    def _gauges(self) -> Mapping[tuple[str, str, str], float]:
        return self.run.samples[0].gauges

    def _most_queued(self, phase: str) -> int:
        return max((each.queued for each in self._samples(phase)), default=0)

    def _samples(self, phase: str) -> list[DrillSample]:
        run = self.run
        acted_s = run.acted_at_s if run.acted_at_s is not None else run.last.at_s + 1
        undone_s = run.undone_at_s if run.undone_at_s is not None else run.last.at_s + 1
        bounds = {"before": (0.0, acted_s), "during": (acted_s, undone_s), "after": (undone_s, run.last.at_s + 1)}
        since_s, until_s = bounds[phase]
        return [each for each in run.samples if since_s <= each.at_s < until_s]

    # JSON

    def json(self) -> dict[str, object]:
        return {
            "drill": self.drill,
            "target": self.target,
            "verdict": HELD if self.held else MISSED,
            "stopped": self.run.stopped_because or ("interrupted" if self.run.stopped else None),
            "objectives": {each.objective: each.state for each in self.verdicts},
            "details": [{**asdict(each), "state": each.state} for each in self.verdicts],
            "not_judged": list(self.excluded),
            "measured": dict(self.facts),
            "phases": {name: self._phase_json(name, each) for name, each in self.run.phases().items()},
            "undone": self.undone,
            "timeline": [asdict(each) for each in self.run.timeline_entries()],
        }

    def _phase_json(self, name: str, figures: PhaseFigures) -> dict[str, object]:
        return {
            "seconds": round(figures.seconds, 1),
            "requests": figures.requests,
            "outcomes": figures.outcomes(),
            "attained": {each.label: figures.attained(each) for each in objectives_of(self._gauges())},
            "latencies": {each or "all": _latencies_json(figures, each) for each in self._classes()},
            "queued_max": self._most_queued(name),
            "retries": figures.retries,
            "rejected": figures.rejected,
            "lost": figures.lost,
        }


def objective_verdicts(objectives: Sequence[DrillObjective], figures: PhaseFigures) -> list[DrillVerdict]:
    """Judges the classes' objectives by the requests that ended in this time."""
    found: list[DrillVerdict] = []
    for each in objectives:
        share = figures.attained(each)
        measured = "no requests" if share is None else f"{share:.2%} of {figures.judged(each)} requests"
        held = None if share is None else share >= each.target
        found.append(DrillVerdict(each.label, f"{100 * each.target:g} %", measured, held))
    return found


def recovery_text(run: DrillRun, objectives: Sequence[DrillObjective]) -> str:
    recovered_s = run.recovered_after_s(objectives)
    if recovered_s is None:
        return "not recovered by the end"
    if run.stopped:
        return "unknown, because the drill was stopped"
    return f"{recovered_s:.0f} s" if recovered_s else "the objectives were met all the time"


def _shares(objective: DrillObjective, phases: Sequence[PhaseFigures]) -> Iterator[str]:
    for each in phases:
        share = each.attained(objective)
        yield "-" if share is None else f"{share:.2%}"


def _latencies_json(figures: PhaseFigures, service_class: str | None) -> dict[str, object]:
    return {
        f"{name}_s": {f"p{share * 100:g}": figures.quantile_s(metric, share, service_class) for share in (0.5, 0.95)}
        for name, metric in (("ttft", TTFT), ("inter_token", INTER_TOKEN), ("queue_wait", QUEUE_WAIT))
    }


def _quantiles(figures: PhaseFigures, metric: str, service_class: str | None) -> str:
    found = [figures.quantile_s(metric, share, service_class) for share in (0.5, 0.95)]
    return ", ".join("-" if each is None else f"{each:.3g} s" for each in found)


def _text(value: object) -> str:
    match value:
        case None:
            return "not measured"
        case float():
            return f"{value:.3g}"
        case Mapping():
            return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "none"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            return str(value)


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((row[0].ljust(widths[0]), *cells)).rstrip()
