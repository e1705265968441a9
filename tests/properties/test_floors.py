"""Is a band with a floor served in time, however much waits before it?

Property 5: a head of cost C in a band with floor φ is served within (C + Cmax)/φ and one step, as
time is counted by what engines are given: a place at a time, in predicted engine time.
"""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Command, Dispatch
from headgate.core.scheduler import Scheduler
from headgate.model.policy import LadderRules, Policy, ServiceClass
from headgate.model.units import ClassName
from testing.builders import a_class, a_policy, a_scheduler, arrived, at, completed, told

ABOVE, BELOW, LAST = "above", "below", "last"
prompts = st.sampled_from([40, 400, 4_000, 20_000])
"""Bytes: their costs are up to ten times apart."""


def waiting(name: str, band: int, floor: int) -> ServiceClass:
    long = a_class(name, band=band, queue_wait=10_000, queue_length_max=10_000, queue_length_per_tenant_max=9_999)
    return replace(long, floor_percent=floor)


def floored(**floors: int) -> Policy:
    classes = tuple(waiting(name, band, floor) for band, (name, floor) in enumerate(floors.items()))
    return replace(a_policy(classes=classes), ladder=LadderRules(enabled=False))


@dataclass
class Line:
    """One endpoint with one place, behind which everybody waits."""

    scheduler: Scheduler
    cost_max: int = 0
    served: dict[str, int] = field(default_factory=dict)
    """Of each class the engine time that others were given since its head came up."""
    waits: list[tuple[str, int, int]] = field(default_factory=list)
    """Of each that was sent: its class, its cost, and what others were given meanwhile."""
    running: str = ""
    arrivals: int = 0

    def arrive(self, name: str, prompt_bytes: int, tenant: str = "acme") -> None:
        if not self.scheduler.summary().queued[ClassName(name)]:
            self.served[name] = 0
        self.arrivals += 1
        request = f"{name}-{self.arrivals}"
        self.note(told(self.scheduler, at(0), arrived(request, tenant, service_class=name, prompt_bytes=prompt_bytes)))

    def end(self) -> None:
        self.note(told(self.scheduler, at(0), completed(self.running)))

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
def test_a_head_is_served_within_its_cost_and_the_largest_by_its_floor(
    floor: int, above: list[int], below: list[int], late: list[int]
) -> None:
    line = Line(a_scheduler(policy=floored(above=0, below=floor)))
    line.arrive(ABOVE, 400)
    for prompt_bytes in below:
        line.arrive(BELOW, prompt_bytes)
    for number in range(150):
        # The band above never ends, and some of the one below come when it has been idle for a while.
        line.arrive(ABOVE, above[number % len(above)], ("acme", "bolt")[number % 2])
        for _ in range(late.count(number // 5)):
            line.arrive(BELOW, below[0])
        line.end()

    of_band = [(cost, others) for name, cost, others in line.waits if name == BELOW]
    for cost, others in of_band:
        assert floor * others <= 100 * (cost + line.cost_max) + floor * line.cost_max
    if floor >= 10:
        assert of_band, "nothing was served of the band"


@given(
    floors=st.tuples(st.sampled_from([5, 20, 40]), st.sampled_from([5, 20, 40])),
    sizes=st.lists(prompts, min_size=3, max_size=9),
)
def test_two_bands_with_floors_delay_each_other_by_one_step_at_most(floors: tuple[int, int], sizes: list[int]) -> None:
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
def test_a_floor_is_no_more_than_a_floor(floor: int, sizes: list[int]) -> None:
    """What the band gets beside one that never ends is its share, but for a request at either end."""
    line = Line(a_scheduler(policy=floored(above=0, below=floor)))
    line.arrive(ABOVE, 400)
    for number in range(120):
        line.arrive(ABOVE, sizes[number % len(sizes)])
        line.arrive(BELOW, sizes[(number + 1) % len(sizes)])
        line.end()

    total = sum(cost for _, cost, _ in line.waits)
    got = sum(cost for name, cost, _ in line.waits if name == BELOW)
    assert 100 * (got - 2 * line.cost_max) <= floor * total
