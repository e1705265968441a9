"""Definition of a policy experiment, its targets and its result table.

An experiment runs with a seed, in a quick or a full version, and returns figures: nested dictionaries of numbers, which
are always the same for a given seed. Several seeds are reported as means, in a table and as one JSON object, and
checked against targets.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from headgate.core.scheduler import Scheduler
from headgate.ports.observer import Observer
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Decider, Scenario

Figures = Mapping[str, Any]
RESULTS = Path(__file__).parents[2] / "docs" / "project" / "results"
WHOLE_SEEDS = (1, 2, 3, 4, 5)


class Run(Protocol):
    def __call__(self, seed: int, *, quick: bool) -> Figures:
        """Run one seed, in the quick version if `quick` is set."""
        ...


@dataclass(frozen=True, slots=True)
class Threshold:
    """Target for one figure: a minimum or a maximum."""

    what: str
    figure: float
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        return (self.least is None or self.figure >= self.least) and (self.most is None or self.figure <= self.most)

    @property
    def bound(self) -> str:
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED'}: {self.what} is {self.figure:.4g} (target: {self.bound})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    name: str
    """Name used on the command line and for the results page."""
    title: str
    about: str
    """Description of the workload and the figures, for the results page."""
    run: Run
    table: Callable[[Figures], str]
    """Formats the means over the seeds as a Markdown table."""
    thresholds: Callable[[Figures], Sequence[Threshold]]
    charts: Callable[[Figures, Path], Sequence[str]] | None = None
    """Draws charts into the directory and returns their file names."""
    seeds: tuple[int, ...] = WHOLE_SEEDS
    """Seeds for a full run. A quick run uses only the first."""


class DataMissing(Exception):
    """The recorded traces are not available."""


def data_folder() -> Path:
    folder = os.environ.get("HEADGATE_DATA")
    if folder is None:
        raise DataMissing(
            "HEADGATE_DATA must name the directory that contains traces/ (their sources: docs/reference/scenarios.md)"
        )
    return Path(folder)


def run_scenario(scenario: Scenario, *observers: Observer, samples: int = 600) -> SimulationReport:
    report = SimulationReport(scenario)
    VirtualHost(scenario, report, observers=observers, samples=samples).run()
    return report


def headgate_scheduler() -> Decider:
    return Scheduler()


def means(many: Sequence[Any]) -> Any:
    """Mean of each number over figures of the same shape. Other values come from the first figures that have them."""
    known = [each for each in many if each is not None]
    if not known:
        return None
    first = known[0]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for each in known for key in each)
        return {key: means([each.get(key) for each in known]) for key in keys}
    if isinstance(first, int | float) and not isinstance(first, bool):
        return first if len(known) == 1 else round(fmean(known), 6)
    return first


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown table with aligned columns."""
    cells = [[str(each) for each in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def thresholds_table(thresholds: Sequence[Threshold]) -> str:
    """Markdown table of targets and results; empty if there are none."""
    rows = [(each.what, f"{each.figure:.4g}", each.bound, "yes" if each.met else "**no**") for each in thresholds]
    return table(("figure", "result", "target", "met"), rows) if rows else ""


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"
