"""Recovery time after an outage or a burst."""

from collections.abc import Sequence

from headgate.model.units import SECOND, Duration, Instant
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.request_result import RequestResult
from headgate.simulation.report.tally import RequestTally
from headgate.simulation.report.time_series import BUCKETS, ArrivalSeries
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.virtual.scenario import Scenario

BUCKET = Duration(2 * SECOND)
BACK = 0.95
"""Fraction of the previous attainment at which the system counts as recovered."""
_TOGETHER = 4
"""Number of consecutive buckets evaluated together. One bucket has too few requests."""
_SPOILED = 10
"""Number of buckets to ignore before the disruption, because it interrupts responses that started in them."""


class RecoveryReport(SimulationReport):
    """Report that also counts, in short buckets, the results of requests from the first four minutes."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.early = ArrivalSeries(Duration(BUCKET * BUCKETS))

    def request_ended(self, story: RequestTrace) -> None:
        super().request_ended(story)
        # The last bucket also includes all later requests.
        self.early.add(RequestTally().add(story, self.callers(story.service_class)), story.arrived_at)

    def recovery(self, at: Instant, lasts: Duration) -> tuple[float, float]:
        """Attainment before a disruption, and seconds from the end of the disruption until recovery."""
        begins, ends = at // BUCKET, -(-(at + lasts) // BUCKET)
        before = self._share(range(2, begins - _SPOILED))
        for number in range(ends, BUCKETS - _TOGETHER + 1):
            if self._share(range(number, number + _TOGETHER)) >= BACK * before:
                return round(before, 6), max(0, number * BUCKET - at - lasts) / SECOND
        return round(before, 6), (BUCKETS * BUCKET - at - lasts) / SECOND

    def share_after(self, at: Instant) -> float:
        """Attainment for requests that arrived at or after `at`."""
        return round(self._share(range(at // BUCKET, BUCKETS)), 6)

    def _share(self, buckets: Sequence[int]) -> float:
        arrivals = self.early.arrivals
        wanted = sum(arrivals[each] for each in buckets)
        return sum(self.early.counts[RequestResult.GOOD][each] for each in buckets) / wanted
