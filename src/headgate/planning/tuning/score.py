"""How well did a run keep the promise, and is one configuration better than another?

The promise is the scenario's objectives, then the share of good requests, then the cost. Two configurations are
compared on the same seeds, so that both serve the same requests and most of the randomness cancels out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from statistics import mean, stdev
from typing import Final

from headgate.model.units import ClassName
from headgate.planning.cases import WAITING_PPM_MAX
from headgate.simulation.report.confidence import PAIRS_MIN, DifferenceInterval, students_t

Objectives = Mapping[ClassName, float]
"""Share of good requests that each class needs."""

GAIN_MIN: Final = 0.005
"""Minimum gain in the share of good requests that is worth a change."""
SAVING_MIN: Final = 0.01
"""Minimum share of the cost that is worth a change."""
SHORTER_MAX: Final = 0.05
"""Maximum share by which the responses of a class may become shorter. More would trade quality for speed."""
_COST_NOISE: Final = 0.001


class Benefit(StrEnum):
    """Why a change is worth making."""

    OBJECTIVES = "objectives"
    GOODPUT = "goodput"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class ClassScore:
    arrivals: int
    good: int
    waiting: int
    """Requests in the queue at the end of the window."""
    full_length_share: float
    """Tokens of the completed responses, relative to their full lengths."""

    @property
    def attainment(self) -> float:
        return self.good / self.arrivals if self.arrivals else 1.0


@dataclass(frozen=True, slots=True)
class RunScore:
    """Result of one run with one seed."""

    classes: Mapping[ClassName, ClassScore]
    cost: float
    """Dollars per hour, or engines if no pool has a price."""

    @property
    def goodput(self) -> float:
        """Share of good requests."""
        arrivals = sum(each.arrivals for each in self.classes.values())
        return sum(each.good for each in self.classes.values()) / arrivals if arrivals else 1.0

    def shortfall(self, objectives: Objectives) -> float:
        """Share of good requests that is missing for the objectives, summed over the classes."""
        return sum(
            max(0.0, objective - self.classes[name].attainment)
            for name, objective in objectives.items()
            if name in self.classes
        )

    @property
    def queue_grows(self) -> bool:
        """Whether more and more requests were waiting, even if all of them were still in time."""
        arrivals = sum(each.arrivals for each in self.classes.values())
        return 1_000_000 * sum(each.waiting for each in self.classes.values()) > WAITING_PPM_MAX * arrivals


Scores = Sequence[RunScore]
"""One result per seed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A changed configuration compared with the one before, on the same seeds."""

    before: Scores
    after: Scores
    objectives: Objectives

    @property
    def shortfall_change(self) -> list[float]:
        return self._differences(lambda each: each.shortfall(self.objectives))

    @property
    def goodput_change(self) -> list[float]:
        return self._differences(lambda each: each.goodput)

    @property
    def cost_change(self) -> list[float]:
        return self._differences(lambda each: each.cost)

    def attainment_change(self, name: ClassName) -> list[float]:
        """Change per seed, without the seeds in which the class has no requests."""
        return [
            after.classes[name].attainment - before.classes[name].attainment
            for before, after in zip(self.before, self.after, strict=True)
            if name in before.classes and name in after.classes
        ]

    @property
    def cost_ratio(self) -> float:
        """Mean cost after the change, relative to the cost before. 1 if both are free."""
        before, after = mean(each.cost for each in self.before), mean(each.cost for each in self.after)
        return after / before if before else 1.0 + (after > 0)

    @property
    def costs_more(self) -> bool:
        return self.cost_ratio > 1 + _COST_NOISE

    def newly_missed(self, confidence: float | None = None) -> list[ClassName]:
        """Classes that held their objective before the change, but do not hold it after.

        With a confidence, a class that loses must hold its objective even at the lower end of the interval.
        """
        return [name for name, objective in self.objectives.items() if self._misses(name, objective, confidence)]

    def shortened(self) -> list[ClassName]:
        """Classes whose responses become much shorter."""
        return [name for name in self.classes if self._is_shorter(name)]

    def is_acceptable(self, confidence: float | None = None) -> bool:
        return not self.newly_missed(confidence) and not self.shortened()

    @property
    def overloads(self) -> bool:
        """Whether the queue grows with more seeds than before. Requests may then be late after the end of the run."""
        return sum(each.queue_grows for each in self.after) > sum(each.queue_grows for each in self.before)

    @property
    def classes(self) -> list[ClassName]:
        return list(dict.fromkeys(name for each in (*self.before, *self.after) for name in each.classes))

    def attainment(self, name: ClassName) -> tuple[float, float]:
        """Mean attainment of a class before and after the change."""
        return mean_attainment(self.before, name), mean_attainment(self.after, name)

    def merit(self) -> tuple[int, int, int, int]:
        """Sort key, largest first. Each part is rounded, so that a smaller difference lets the next part decide.

        A change that costs more is worth its money only for the objectives, so it ranks behind one that is free.
        Changes after which all objectives are held on average are equally good for them.
        """
        return (
            _steps(_shortfall(self.before, self.objectives) - _shortfall(self.after, self.objectives), GAIN_MIN),
            -int(self.costs_more),
            _steps(mean(self.goodput_change), GAIN_MIN),
            _steps(1 - self.cost_ratio, SAVING_MIN),
        )

    @property
    def looks_better(self) -> bool:
        """Whether the change is worth confirming with further seeds."""
        if not self.is_acceptable():
            return False
        shortfall, _, goodput, saving = self.merit()
        if shortfall or self.costs_more:
            return shortfall > 0
        return goodput > 0 or (goodput == 0 and saving > 0 and not self.overloads)

    def benefit(self, confidence: float) -> Benefit | None:
        """Returns why the change is better, if the intervals of this confidence leave no doubt."""
        if not self.is_acceptable(confidence):
            return None
        shortfall = interval(self.shortfall_change, confidence)
        goodput = interval(self.goodput_change, confidence)
        if shortfall.high < 0 and shortfall.estimate <= -GAIN_MIN:
            return Benefit.OBJECTIVES
        if shortfall.estimate > GAIN_MIN / 2 or self.costs_more:
            return None
        if goodput.low > 0 and goodput.estimate >= GAIN_MIN:
            return Benefit.GOODPUT
        if 1 - self.cost_ratio >= SAVING_MIN and interval(self.cost_change, confidence).high < 0:
            return Benefit.COST if goodput.low > -GAIN_MIN and not self.overloads else None
        return None

    def _differences(self, value: Callable[[RunScore], float]) -> list[float]:
        return [value(after) - value(before) for before, after in zip(self.before, self.after, strict=True)]

    def _misses(self, name: ClassName, objective: float, confidence: float | None) -> bool:
        before, after = self.attainment(name)
        if before < objective or after >= before:
            return False
        change = self.attainment_change(name)
        if confidence is None or len(change) < PAIRS_MIN:
            return after < objective
        return before + interval(change, confidence).low < objective

    def _is_shorter(self, name: ClassName) -> bool:
        return _full_length_share(self.after, name) < (1 - SHORTER_MAX) * _full_length_share(self.before, name)


def interval(differences: Sequence[float], confidence: float) -> DifferenceInterval:
    """Confidence interval of the mean difference."""
    centre = mean(differences)
    reach = students_t(len(differences) - 1, confidence) * stdev(differences) / sqrt(len(differences))
    return DifferenceInterval(centre, centre - reach, centre + reach)


def _full_length_share(scores: Scores, name: ClassName) -> float:
    return mean(each.classes[name].full_length_share if name in each.classes else 1.0 for each in scores)


def missed(scores: Scores, objectives: Objectives) -> list[ClassName]:
    """Returns the classes that miss their objective on average."""
    return [name for name, objective in objectives.items() if mean_attainment(scores, name) < objective]


def mean_attainment(scores: Scores, name: ClassName) -> float:
    """Share of good requests over all seeds. 1 if the class has no requests."""
    counted = [each.classes[name] for each in scores if name in each.classes]
    arrivals = sum(each.arrivals for each in counted)
    return sum(each.good for each in counted) / arrivals if arrivals else 1.0


def _shortfall(scores: Scores, objectives: Objectives) -> float:
    """Mean shortfall, or 0 if all objectives are held on average."""
    return mean(each.shortfall(objectives) for each in scores) if missed(scores, objectives) else 0.0


def _steps(value: float, size: float) -> int:
    """Number of whole steps, towards zero."""
    return int(value / size + (1e-9 if value > 0 else -1e-9))
