"""How the autoscaler changed the number of endpoints of a pool in a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.model.units import Instant, PoolName
from headgate.simulation.report.time_series import EndpointSeries
from headgate.simulation.virtual.run_observer import EngineTotals, RunSummary, ScaleEvent
from headgate.simulation.virtual.scenario import Scenario


@dataclass(frozen=True, slots=True)
class ScalingSummary:
    """Scaling of one pool."""

    pool: PoolName
    first: int
    """Endpoints at the start of the run."""
    events: tuple[ScaleEvent, ...]
    paid_ns: int
    """Time from the start to the end of each endpoint, over all endpoints."""
    elapsed_ns: int

    @property
    def mean(self) -> float:
        """Mean number of endpoints, including those that are starting or draining."""
        return self.paid_ns / self.elapsed_ns if self.elapsed_ns else float(self.first)

    @property
    def desired(self) -> tuple[int, ...]:
        """Every desired number of endpoints, in order."""
        return self.first, *(each.endpoints for each in self.events)

    @property
    def added(self) -> int:
        return sum(max(0, each.endpoints - each.before) for each in self.events)

    @property
    def removed(self) -> int:
        return sum(max(0, each.before - each.endpoints) for each in self.events)

    def steps(self) -> Iterator[tuple[Instant, int]]:
        """Yields the desired number of endpoints from each time on."""
        yield Instant(0), self.first
        yield from ((each.at, each.endpoints) for each in self.events)


def scaling_summaries(scenario: Scenario, ending: RunSummary) -> list[ScalingSummary]:
    return [
        ScalingSummary(
            pool,
            first=sum(each.pool == pool and not each.standby for each in scenario.engines),
            events=tuple(each for each in ending.scale_events if each.pool == pool),
            paid_ns=sum(each.paid_ns for each in ending.engines if each.pool == pool),
            elapsed_ns=ending.at,
        )
        for pool in scenario.scaling
    ]


def endpoints_up(engines: Sequence[tuple[EngineTotals, EndpointSeries]], pool: PoolName) -> list[int]:
    """Returns the number of endpoints that could serve requests at each sample."""
    up = [course.up for account, course in engines if account.pool == pool]
    return [sum(each) for each in zip(*up, strict=True)]
