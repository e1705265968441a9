"""How long did each stage of requests take, how often longer than it may, and which one made them late?

Fed by records of requests that have ended, in whichever thread. Classes are those of the present policy, as in
meters.py: what has no class counts as `none`, and what has one that is gone as `other`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from headgate.model.stage import SINCE_ARRIVAL, TO_FIRST_TOKEN, Stage
from headgate.model.units import SECOND
from headgate.ports.records import RequestRecord
from headgate.telemetry.histogram import Histogram, Scale
from headgate.telemetry.page import Family, family
from headgate.telemetry.stages.budget import NOTHING_SAID, ClassBudget, Goal, Times, spending, sums

NO_CLASS: Final = "none"
OTHER: Final = "other"
STAGES: Final = Scale((0.0002, 0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0), SECOND)
"""Some stages take a tenth of a millisecond, others minutes. Few bounds, since each class has a histogram for every
stage, and they are there to tell stages from each other."""


_SPENDERS: Final = {Goal.TTFT: TO_FIRST_TOKEN, Goal.DURATION: SINCE_ARRIVAL}
"""Which stages can have made a request too late for what."""


class ClassStages:
    """What was counted of one class."""

    __slots__ = ("budget", "late", "lengths", "over")

    def __init__(self, budget: ClassBudget) -> None:
        self.budget = budget
        self.lengths = {stage: Histogram(STAGES) for stage in Stage}
        """Each request once for each stage that it went through."""
        self.over = dict.fromkeys(Stage, 0)
        self.late = {(goal, stage): 0 for goal, stages in _SPENDERS.items() for stage in stages}

    def count(self, lengths: Mapping[Stage, int]) -> None:
        for stage, length in lengths.items():
            self.lengths[stage].add(length)


class StageMeters:
    def __init__(self) -> None:
        self.classes: Mapping[str, ClassStages] = {}
        self.change((), {})

    def change(self, classes: Iterable[str], budgets: Mapping[str, ClassBudget]) -> None:
        """Exactly these classes are told apart from here on; those that stay keep what was counted."""
        changed: dict[str, ClassStages] = {}
        for name in (NO_CLASS, OTHER, *classes):
            budget = budgets.get(name, NOTHING_SAID)
            found = self.classes.get(name)
            if found is None:
                found = ClassStages(budget)
            found.budget = budget
            changed[name] = found
        # Whole, since another thread may be counting.
        self.classes = changed

    def add(self, record: RequestRecord, times: Times) -> None:
        classes = self.classes
        meter = classes.get(record.class_name or NO_CLASS) or classes[OTHER]
        if meter.budget.says_nothing:
            meter.count(sums(times))
            return
        spent = spending(times, meter.budget, stream=record.stream, outcome=record.outcome)
        meter.count(spent.lengths)
        for stage in spent.over:
            meter.over[stage] += 1
        for late in spent.late.items():
            meter.late[late] += 1


def stage_metrics(meters: StageMeters) -> Iterator[Family]:
    lengths = family("headgate_stage_seconds")
    over, budgets = family("headgate_stage_over_budget_total"), family("headgate_stage_budget_seconds")
    late = family("headgate_late_requests_total")
    for name, meter in meters.classes.items():
        for stage, histogram in meter.lengths.items():
            lengths.add_histogram((name, stage.value), histogram)
        for stage, length in meter.budget.stages.items():
            budgets.add((name, stage.value), length / SECOND)
            over.add((name, stage.value), meter.over[stage])
        for (goal, stage), count in meter.late.items():
            if _is_set(meter.budget, goal):
                late.add((name, goal.value, stage.value), count)
    return iter((lengths, over, budgets, late))


def _is_set(budget: ClassBudget, goal: Goal) -> bool:
    return (budget.ttft_ns if goal is Goal.TTFT else budget.duration_ns) is not None
