"""Stage metrics: durations, exceeded budgets, and the stages that made requests late.

They are updated from the records of finished requests, in any thread. Labels are the classes of the current policy, as
in meters.py: requests without a class count as `none`, and those in a removed class as `other`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from headgate.model.stage import STAGES_SINCE_ARRIVAL, STAGES_TO_FIRST_TOKEN, Stage
from headgate.model.units import SECOND
from headgate.ports.records import RequestRecord
from headgate.telemetry.exposition import MetricFamily, family
from headgate.telemetry.histogram import Buckets, Histogram
from headgate.telemetry.stages.stage_budget import (
    NO_STAGE_BUDGET,
    ClassStageBudget,
    LatencyTarget,
    Times,
    stage_breakdown,
    stage_totals,
)

NO_CLASS: Final = "none"
OTHER: Final = "other"
STAGE_BUCKETS: Final = Buckets((0.0002, 0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0), SECOND)
"""Histogram buckets for stage durations, which range from 0.1 ms to minutes. There are few of them, because every class
has a histogram for each stage. Coarse buckets suffice, because they are only used to compare stages.
"""


_TARGET_STAGES: Final = {LatencyTarget.TTFT: STAGES_TO_FIRST_TOKEN, LatencyTarget.DURATION: STAGES_SINCE_ARRIVAL}
"""Stages that can cause a request to miss each target."""


class ClassStageMeter:
    """Stage metrics of one class."""

    __slots__ = ("budget", "durations", "missed_targets", "over_budget")

    def __init__(self, budget: ClassStageBudget) -> None:
        self.budget = budget
        self.durations = {stage: Histogram(STAGE_BUCKETS) for stage in Stage}
        """Histogram of each stage's durations, with one value per request."""
        self.over_budget = dict.fromkeys(Stage, 0)
        self.missed_targets = {(goal, stage): 0 for goal, stages in _TARGET_STAGES.items() for stage in stages}

    def count(self, lengths: Mapping[Stage, int]) -> None:
        for stage, length in lengths.items():
            self.durations[stage].add(length)


class StageMeters:
    def __init__(self) -> None:
        self.classes: Mapping[str, ClassStageMeter] = {}
        self.set_classes((), {})

    def set_classes(self, classes: Iterable[str], budgets: Mapping[str, ClassStageBudget]) -> None:
        """Sets the classes and their budgets. Classes that stay keep their counts."""
        changed: dict[str, ClassStageMeter] = {}
        for name in (NO_CLASS, OTHER, *classes):
            budget = budgets.get(name, NO_STAGE_BUDGET)
            found = self.classes.get(name)
            if found is None:
                found = ClassStageMeter(budget)
            found.budget = budget
            changed[name] = found
        # Replace the whole mapping, because another thread may be using it.
        self.classes = changed

    def add(self, record: RequestRecord, times: Times) -> None:
        classes = self.classes
        meter = classes.get(record.class_name or NO_CLASS) or classes[OTHER]
        if meter.budget.is_empty:
            meter.count(stage_totals(times))
            return
        spent = stage_breakdown(times, meter.budget, stream=record.stream, outcome=record.outcome)
        meter.count(spent.durations)
        for stage in spent.over_budget:
            meter.over_budget[stage] += 1
        for late in spent.missed_targets.items():
            meter.missed_targets[late] += 1


def stage_metrics(meters: StageMeters) -> Iterator[MetricFamily]:
    lengths = family("headgate_stage_duration_seconds")
    over, budgets = family("headgate_stage_over_budget_total"), family("headgate_stage_budget_seconds")
    late = family("headgate_requests_late_total")
    for name, meter in meters.classes.items():
        for stage, histogram in meter.durations.items():
            lengths.add_histogram((name, stage.value), histogram)
        for stage, length in meter.budget.stages.items():
            budgets.add((name, stage.value), length / SECOND)
            over.add((name, stage.value), meter.over_budget[stage])
        for (goal, stage), count in meter.missed_targets.items():
            if _has_target(meter.budget, goal):
                late.add((name, goal.value, stage.value), count)
    return iter((lengths, over, budgets, late))


def _has_target(budget: ClassStageBudget, goal: LatencyTarget) -> bool:
    return (budget.ttft_ns if goal is LatencyTarget.TTFT else budget.duration_ns) is not None
