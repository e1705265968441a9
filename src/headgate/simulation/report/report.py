"""What came of a run?

An audience of the virtual host. It keeps one tally for each class and tenant, and no request; whatever is told of a
class, of a tenant or of all is the sum of those. What is told can be asked for when the run is over, and is the same
for the same run, byte for byte.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from headgate.core.scheduler import Scheduler
from headgate.model.units import ClassName, EndpointId, TenantId
from headgate.simulation.report.course import Arrived, Course, EndpointCourse
from headgate.simulation.report.fairness import Fairness
from headgate.simulation.report.spread import Spread
from headgate.simulation.report.tally import Tally, merge
from headgate.simulation.virtual.scenario import Callers, Scenario
from headgate.simulation.virtual.story import Ending, EngineAccount, Sample, Story


class Group:
    """Some requests, and how they were served. What takes a while to find out is found out once."""

    def __init__(self, tally: Tally, tenants: Mapping[TenantId, Tally]) -> None:
        self.tally: Final = tally
        self._tenants: Final = tenants

    @cached_property
    def ttft(self) -> Spread | None:
        return Spread.of(self.tally.ttft_ns)

    @cached_property
    def tpot(self) -> Spread | None:
        return Spread.of(self.tally.tpot_ns)

    @cached_property
    def e2e(self) -> Spread | None:
        return Spread.of(self.tally.e2e_ns)

    @cached_property
    def queue_wait(self) -> Spread | None:
        return Spread.of(self.tally.queue_wait_ns)

    @cached_property
    def fairness(self) -> Fairness:
        return Fairness.among(self._tenants)


class Report:
    """An `Audience`. `scheduler` is what people call it; without it, the name of its Python class."""

    def __init__(self, scenario: Scenario, *, scheduler: str | None = None) -> None:
        self.scenario: Final = scenario
        decider = scenario.decider()
        self.scheduler: Final = scheduler or type(decider).__name__
        self.keeps_in_flight_max: Final = isinstance(decider, Scheduler)
        """Simpler gateways do not know it."""
        self.course: Final = Course(len(scenario.engines))
        self._tallies: Final[dict[ClassName, dict[TenantId, Tally]]] = {}
        self._arrived: Final[dict[ClassName, Arrived]] = {}
        self._ending: Ending | None = None

    def ended(self, story: Story) -> None:
        tenants = self._tallies.get(story.service_class)
        if tenants is None:
            tenants = self._tallies[story.service_class] = {}
            self._arrived[story.service_class] = Arrived(self.scenario.span_ns)
        tally = tenants.get(story.tenant)
        if tally is None:
            tally = tenants[story.tenant] = Tally()
        fate = tally.add(story, self.callers(story.service_class))
        self._arrived[story.service_class].add(fate, story.arrived_at)

    def sampled(self, sample: Sample) -> None:
        self.course.add(sample)

    def over(self, ending: Ending) -> None:
        self._ending = ending

    @property
    def ending(self) -> Ending:
        assert self._ending is not None, "the run is not over yet"
        return self._ending

    def callers(self, service_class: ClassName) -> Callers:
        return self.scenario.callers.get(service_class, _UNDEMANDING)

    def per_second(self, count: int) -> float:
        """Over the time in which requests arrived, however long the last answers took."""
        return count / (self.scenario.span_ns / 1e9) if self.scenario.span_ns > 0 else 0.0

    # ------------------------------------------------------------------------------------------ once it is over
    @cached_property
    def total(self) -> Group:
        tallies = [tally for tenants in self._tallies_in_order.values() for tally in tenants.values()]
        return Group(merge(tallies), {name: group.tally for name, group in self.tenants.items()})

    @cached_property
    def classes(self) -> dict[ClassName, Group]:
        return {name: Group(merge(tenants.values()), tenants) for name, tenants in self._tallies_in_order.items()}

    @cached_property
    def tenants(self) -> dict[TenantId, Group]:
        tallies: dict[TenantId, list[Tally]] = {}
        for tenants in self._tallies_in_order.values():
            for name, tally in tenants.items():
                tallies.setdefault(name, []).append(tally)
        return {name: Group(merge(tallies[name]), {}) for name in sorted(tallies)}

    @cached_property
    def classes_and_tenants(self) -> dict[ClassName, dict[TenantId, Group]]:
        return {
            service_class: {name: Group(tally, {}) for name, tally in tenants.items()}
            for service_class, tenants in self._tallies_in_order.items()
        }

    @cached_property
    def arrived(self) -> dict[ClassName, Arrived]:
        return {name: self._arrived[name] for name in self.in_order(self._arrived)}

    @cached_property
    def arrived_in_all(self) -> Arrived:
        total = Arrived(self.scenario.span_ns)
        for arrived in self._arrived.values():
            total.include(arrived)
        return total

    @property
    def engines(self) -> list[tuple[EngineAccount, EndpointCourse]]:
        """In the order of the scenario, with how each stood over time."""
        accounts: dict[EndpointId, EngineAccount] = {account.id: account for account in self.ending.engines}
        courses = zip(self.scenario.engines, self.course.endpoints, strict=True)
        return [(accounts[spec.id], course) for spec, course in courses if spec.id in accounts]

    def in_order(self, names: Iterable[ClassName]) -> list[ClassName]:
        """As the policy lists its classes; those that it does not know come last, by name."""
        places = {each.name: place for place, each in enumerate(self.scenario.policy.classes)}
        return sorted(names, key=lambda name: (places.get(name, len(places)), name))

    @cached_property
    def _tallies_in_order(self) -> dict[ClassName, dict[TenantId, Tally]]:
        """Tenants by name: which of them arrived first is chance."""
        return {name: dict(sorted(self._tallies[name].items())) for name in self.in_order(self._tallies)}


_UNDEMANDING: Final = Callers()
