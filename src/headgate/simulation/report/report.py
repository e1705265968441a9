"""Results of a run, collected from the virtual host.

The report keeps one tally per class and tenant, but no individual requests. Figures for a class, a tenant or the whole
run are sums of these tallies, and are available once the run is over. The same run produces the same report, byte for
byte.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from headgate.core.scheduler import Scheduler
from headgate.model.units import ClassName, EndpointId, PoolName, TenantId
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.report.cost import RunCost
from headgate.simulation.report.fairness import Fairness
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.scaling import ScalingSummary, scaling_summaries
from headgate.simulation.report.tally import RequestTally, merge
from headgate.simulation.report.time_series import ArrivalSeries, EndpointSeries, TimeSeries
from headgate.simulation.virtual.run_observer import EngineTotals, FleetSample, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import Scenario


class Group:
    """Requests in a class, from a tenant or in the whole run, with their statistics.

    Statistics are computed only once.
    """

    def __init__(self, tally: RequestTally, tenants: Mapping[TenantId, RequestTally]) -> None:
        self.tally: Final = tally
        self._tenants: Final = tenants

    @cached_property
    def ttft(self) -> LatencySummary | None:
        return LatencySummary.of(self.tally.ttft_ns)

    @cached_property
    def tpot(self) -> LatencySummary | None:
        return LatencySummary.of(self.tally.tpot_ns)

    @cached_property
    def e2e(self) -> LatencySummary | None:
        return LatencySummary.of(self.tally.e2e_ns)

    @cached_property
    def queue_wait(self) -> LatencySummary | None:
        return LatencySummary.of(self.tally.queue_wait_ns)

    @cached_property
    def fairness(self) -> Fairness:
        return Fairness.of_tenants(self._tenants)


class SimulationReport:
    """An `RunObserver` that collects the results. `scheduler` defaults to the name of the decider's class."""

    def __init__(self, scenario: Scenario, *, scheduler: str | None = None) -> None:
        self.scenario: Final = scenario
        decider = scenario.decider()
        self.scheduler: Final = scheduler or type(decider).__name__
        self.enforces_in_flight_max: Final = isinstance(decider, Scheduler)
        """Whether the scheduler enforces `in_flight_max`. The baselines do not."""
        self.time_series: Final = TimeSeries(len(scenario.engines))
        self.billed_nano_usd: Final[Counter[PoolName]] = Counter()
        self._tallies: Final[dict[ClassName, dict[TenantId, RequestTally]]] = {}
        self._arrived: Final[dict[ClassName, ArrivalSeries]] = {}
        self._ending: RunSummary | None = None

    def request_ended(self, story: RequestTrace) -> None:
        tenants = self._tallies.get(story.service_class)
        if tenants is None:
            tenants = self._tallies[story.service_class] = {}
            self._arrived[story.service_class] = ArrivalSeries(self.scenario.span_ns)
        tally = tenants.get(story.tenant)
        if tally is None:
            tally = tenants[story.tenant] = RequestTally()
        fate = tally.add(story, self.callers(story.service_class))
        self._arrived[story.service_class].add(fate, story.arrived_at)
        self.billed_nano_usd.update(story.billed_nano_usd)

    def sample_taken(self, sample: FleetSample) -> None:
        self.time_series.add(sample)

    def run_ended(self, ending: RunSummary) -> None:
        self._ending = ending

    @property
    def run_summary(self) -> RunSummary:
        assert self._ending is not None, "the run has not ended"
        return self._ending

    def callers(self, service_class: ClassName) -> CallerBehaviour:
        return self.scenario.callers.get(service_class, _NO_TARGETS)

    def per_second(self, count: int) -> float:
        """Returns the rate over the duration of the traffic, which excludes the time after the last arrival."""
        return count / (self.scenario.span_ns / 1e9) if self.scenario.span_ns > 0 else 0.0

    # --------------------------------------------------------------------------------------------- after the run
    @cached_property
    def total(self) -> Group:
        tallies = [tally for tenants in self._tallies_in_order.values() for tally in tenants.values()]
        return Group(merge(tallies), {name: group.tally for name, group in self.tenants.items()})

    @cached_property
    def classes(self) -> dict[ClassName, Group]:
        return {name: Group(merge(tenants.values()), tenants) for name, tenants in self._tallies_in_order.items()}

    @cached_property
    def tenants(self) -> dict[TenantId, Group]:
        tallies: dict[TenantId, list[RequestTally]] = {}
        for tenants in self._tallies_in_order.values():
            for name, tally in tenants.items():
                tallies.setdefault(name, []).append(tally)
        return {name: Group(merge(tallies[name]), {}) for name in sorted(tallies)}

    @cached_property
    def tenants_by_class(self) -> dict[ClassName, dict[TenantId, Group]]:
        return {
            service_class: {name: Group(tally, {}) for name, tally in tenants.items()}
            for service_class, tenants in self._tallies_in_order.items()
        }

    @cached_property
    def arrival_series(self) -> dict[ClassName, ArrivalSeries]:
        return {name: self._arrived[name] for name in self.sorted_classes(self._arrived)}

    @cached_property
    def total_arrival_series(self) -> ArrivalSeries:
        total = ArrivalSeries(self.scenario.span_ns)
        for arrived in self._arrived.values():
            total.merge(arrived)
        return total

    @property
    def engines(self) -> list[tuple[EngineTotals, EndpointSeries]]:
        """Totals and time series for each engine, in scenario order."""
        accounts: dict[EndpointId, EngineTotals] = {account.id: account for account in self.run_summary.engines}
        courses = zip(self.scenario.engines, self.time_series.endpoints, strict=True)
        return [(accounts[spec.id], course) for spec, course in courses if spec.id in accounts]

    @cached_property
    def cost(self) -> RunCost | None:
        """Cost of the run. None if no pool has a price."""
        return RunCost.of(self.scenario.policy.pools, self.run_summary.engines, self.billed_nano_usd)

    @cached_property
    def scaling(self) -> list[ScalingSummary]:
        """Changes in the size of each pool that is autoscaled."""
        return scaling_summaries(self.scenario, self.run_summary)

    def sorted_classes(self, names: Iterable[ClassName]) -> list[ClassName]:
        """Returns class names in policy order, followed by other names in alphabetical order."""
        places = {each.name: place for place, each in enumerate(self.scenario.policy.classes)}
        return sorted(names, key=lambda name: (places.get(name, len(places)), name))

    @cached_property
    def _tallies_in_order(self) -> dict[ClassName, dict[TenantId, RequestTally]]:
        """Tallies sorted by tenant, because the order of first arrivals is random."""
        return {name: dict(sorted(self._tallies[name].items())) for name in self.sorted_classes(self._tallies)}


_NO_TARGETS: Final = CallerBehaviour()
