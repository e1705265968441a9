"""How soon after a trouble is everybody served as before?"""

from collections.abc import Sequence

from headgate.model.units import SECOND, Duration, Instant
from headgate.simulation.report.course import BUCKETS, Arrived
from headgate.simulation.report.fate import Fate
from headgate.simulation.report.report import Report
from headgate.simulation.report.tally import Tally
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.virtual.story import Story

BUCKET = Duration(2 * SECOND)
BACK = 0.95
"""Of the share of good requests before: with this much of it things are as they were."""
_TOGETHER = 4
"""Buckets: a single one has too few requests to be judged by."""
_SPOILED = 10
"""Buckets: who came shortly before a trouble was met by it in the middle of an answer."""


class CourseReport(Report):
    """A report that also counts, in short buckets, what became of those who came in the first four minutes."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.early = Arrived(Duration(BUCKET * BUCKETS))

    def ended(self, story: Story) -> None:
        super().ended(story)
        # The last bucket stands for all the rest.
        self.early.add(Tally().add(story, self.callers(story.service_class)), story.arrived_at)

    def recovery(self, at: Instant, lasts: Duration) -> tuple[float, float]:
        """The share of good requests before a trouble, and so many seconds after its end it is nearly as high again."""
        begins, ends = at // BUCKET, -(-(at + lasts) // BUCKET)
        before = self._share(range(2, begins - _SPOILED))
        for number in range(ends, BUCKETS - _TOGETHER + 1):
            if self._share(range(number, number + _TOGETHER)) >= BACK * before:
                return round(before, 6), max(0, number * BUCKET - at - lasts) / SECOND
        return round(before, 6), (BUCKETS * BUCKET - at - lasts) / SECOND

    def share_after(self, at: Instant) -> float:
        """The share of good requests among all that came later."""
        return round(self._share(range(at // BUCKET, BUCKETS)), 6)

    def _share(self, buckets: Sequence[int]) -> float:
        arrivals = self.early.arrivals
        wanted = sum(arrivals[each] for each in buckets)
        return sum(self.early.counts[Fate.GOOD][each] for each in buckets) / wanted
