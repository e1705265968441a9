"""Property tests for minimum shares: a band is served in time however much work is ahead of it.

Property 5: the first request in a band with minimum share φ, if its cost is C, is served within (C + Cmax)/φ plus one
step. Time is measured as the predicted engine time of the dispatched requests, one slot at a time.
"""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Command, Dispatch
from headgate.core.scheduler import Scheduler
from headgate.model.policy import DegradationRules, Policy, ServiceClass
from headgate.model.units import ClassName
from testing.builders import a_class, a_policy, a_scheduler, arrived, at, commands_for, completed

ABOVE, BELOW, LAST = "above", "below", "last"
prompts = st.sampled_from([40, 400, 4_000, 20_000])
"""Prompt sizes in bytes. Their costs differ by up to a factor of ten."""


def waiting(name: str, band: int, floor: int) -> ServiceClass:
    long = a_class(name, band=band, queue_wait=10_000, queue_length_max=10_000, queue_length_per_tenant_max=9_999)
    return replace(long, min_share_percent=floor)


def floored(**floors: int) -> Policy:
    classes = tuple(waiting(name, band, floor) for band, (name, floor) in enumerate(floors.items()))
    return replace(a_policy(classes=classes), degradation=DegradationRules(enabled=False))


@dataclass
class Line:
    """One endpoint with one slot and the queue in front of it."""

    scheduler: Scheduler
    cost_max: int = 0
    served: dict[str, int] = field(default_factory=dict)
    """Engine time given to other classes since each class's current first request became first."""
    waits: list[tuple[str, int, int]] = field(default_factory=list)
    """Class and cost of each dispatched request, and the engine time given to others while it waited."""
    running: str = ""
    arrivals: int = 0

    def arrive(self, name: str, prompt_bytes: int, tenant: str = "acme") -> None:
        if not self.scheduler.summary().queued[ClassName(name)]:
            self.served[name] = 0
        self.arrivals += 1
        request = f"{name}-{self.arrivals}"
        self.note(
            commands_for(self.scheduler, at(0), arrived(request, tenant, service_class=name, prompt_bytes=prompt_bytes))
        )

    def end(self) -> None:
        self.note(commands_for(self.scheduler, at(0), completed(self.running)))

    def note(self, commands: list[Command]) -> None:
        for each in commands:
            if isinstance(each, Dispatch):
                cost = self.scheduler._state.requests.by_id[each.request_id].cost_ns
                self.running, self.cost_max = each.request_id, max(self.cost_max, cost)
                self.waits.append((each.service_class, cost, self.served[each.service_class]))
                self.served = {name: served + cost for name, served in self.served.items()}
                self.served[each.service_class] = 0


@given(
    floor=st.sampled_from([1, 5, 10, 33, 50]),
    above=st.lists(prompts, min_size=1, max_size=4),
    below=st.lists(prompts, min_size=1, max_size=12),
    late=st.lists(st.integers(0, 40), max_size=8),
)
def test_first_request_is_served_within_the_bound_set_by_its_minimum_share(
    floor: int, above: list[int], below: list[int], late: list[int]
) -> None:
    line = Line(a_scheduler(policy=floored(above=0, below=floor)))
    line.arrive(ABOVE, 400)
    for prompt_bytes in below:
        line.arrive(BELOW, prompt_bytes)
    for number in range(150):
        # The band above always has work. Some requests in the band below arrive after that band has been idle.
        line.arrive(ABOVE, above[number % len(above)], ("acme", "bolt")[number % 2])
        for _ in range(late.count(number // 5)):
            line.arrive(BELOW, below[0])
        line.end()

    of_band = [(cost, others) for name, cost, others in line.waits if name == BELOW]
    for cost, others in of_band:
        assert floor * others <= 100 * (cost + line.cost_max) + floor * line.cost_max
    if floor >= 10:
        assert of_band, "no request of the band was served"


@given(
    floors=st.tuples(st.sampled_from([5, 20, 40]), st.sampled_from([5, 20, 40])),
    sizes=st.lists(prompts, min_size=3, max_size=9),
)
def test_two_bands_with_minimum_shares_delay_each_other_by_at_most_one_step(
    floors: tuple[int, int], sizes: list[int]
) -> None:
    line = Line(a_scheduler(policy=floored(above=0, below=floors[0], last=floors[1])))
    for number in range(80):
        size = sizes[number % len(sizes)]
        for name in (ABOVE, BELOW, LAST):
            line.arrive(name, size)
        line.end()

    for name, floor in ((BELOW, floors[0]), (LAST, floors[1])):
        waits = [(cost, others) for served, cost, others in line.waits if served == name]
        assert waits
        for cost, others in waits:
            assert floor * others <= 100 * (cost + line.cost_max) + 2 * floor * line.cost_max


@given(floor=st.sampled_from([5, 20, 50]), sizes=st.lists(prompts, min_size=1, max_size=5))
def test_band_gets_no_more_than_its_minimum_share_while_a_higher_band_is_busy(floor: int, sizes: list[int]) -> None:
    """While another band always has work, the band gets its share, give or take one request at each end."""
    line = Line(a_scheduler(policy=floored(above=0, below=floor)))
    line.arrive(ABOVE, 400)
    for number in range(120):
        line.arrive(ABOVE, sizes[number % len(sizes)])
        line.arrive(BELOW, sizes[(number + 1) % len(sizes)])
        line.end()

    total = sum(cost for _, cost, _ in line.waits)
    got = sum(cost for name, cost, _ in line.waits if name == BELOW)
    assert 100 * (got - 2 * line.cost_max) <= floor * total
