"""Property tests for fair turns between tenants."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Command, Dispatch
from headgate.core.queues.fair_queue import IDLE, PASSED, FairQueue
from headgate.core.scheduler import Scheduler
from headgate.model.tenant import Tenant
from headgate.model.units import TenantId
from testing.builders import a_class, a_policy, a_scheduler, an_endpoint, arrived, at, commands_for, completed

TENANTS = [TenantId(name) for name in "abcd"]
COST_MAX = 50
costs = st.integers(1, COST_MAX)
answers = st.fixed_dictionaries({tenant: st.sampled_from([IDLE, PASSED, 1, 7, COST_MAX]) for tenant in TENANTS})


def take_turn(turns: FairQueue, doing: dict[TenantId, int], asked: list[TenantId]) -> TenantId | None:
    """Offers one turn to the tenants and returns the one that takes it."""

    def ask(tenant: TenantId) -> int:
        asked.append(tenant)
        return doing[tenant]

    return asked[-1] if turns.offer(ask) else None


@given(st.lists(st.tuples(answers, st.integers(1, 12)), max_size=8))
def test_tenants_taking_every_turn_differ_by_at_most_twice_the_largest_cost(
    phases: list[tuple[dict[TenantId, int], int]],
) -> None:
    turns = FairQueue()
    for doing, rounds in phases:
        waiting = [tenant for tenant in TENANTS if doing[tenant] != IDLE]
        taking = [tenant for tenant in TENANTS if doing[tenant] > 0]
        taken = dict.fromkeys(TENANTS, 0)
        for _ in range(rounds):
            for tenant in waiting:
                turns.add(tenant)
            winner = take_turn(turns, doing, [])
            assert (winner is None) is not bool(taking)
            if winner is not None:
                taken[winner] += doing[winner]
            counts = [taken[tenant] for tenant in taking]
            # Earlier idling and passing neither earn nor cost anything.
            assert max(counts, default=0) - min(counts, default=0) <= 2 * COST_MAX


@given(st.lists(answers, max_size=30))
def test_tenant_is_asked_at_most_once_per_turn(phases: list[dict[TenantId, int]]) -> None:
    turns = FairQueue()
    for doing in phases:
        for tenant in TENANTS:
            turns.add(tenant)
        asked: list[TenantId] = []
        take_turn(turns, doing, asked)
        assert len(asked) == len(set(asked))


@given(st.lists(st.tuples(st.sampled_from(TENANTS), costs, st.integers(-COST_MAX, COST_MAX)), max_size=60))
def test_settled_costs_replace_predicted_costs(steps: list[tuple[TenantId, int, int]]) -> None:
    """All tenants are always waiting. Each turn's cost is corrected immediately, so only the actual cost counts."""
    turns, taken = FairQueue(), dict.fromkeys(TENANTS, 0)
    for tenant in TENANTS:
        turns.add(tenant)
    for _, cost, error in steps:
        truth = max(1, cost + error)
        winner = take_turn(turns, dict.fromkeys(TENANTS, cost), [])
        assert winner is not None
        turns.settle(winner, truth - cost)
        taken[winner] += truth
        assert max(taken.values()) - min(taken.values()) <= 2 * COST_MAX


@given(before=st.lists(costs, min_size=1, max_size=30), away=st.integers(1, 30), own=costs)
def test_returning_tenant_is_served_like_a_new_one(before: list[int], away: int, own: int) -> None:
    """6: the tenant took some turns and was idle while another took many. It is then served like a new tenant."""
    a, b = TENANTS[:2]
    turns = FairQueue()
    turns.add(a)
    turns.add(b)
    for cost in before:
        take_turn(turns, {a: cost, b: cost}, [])
    for _ in range(away):
        take_turn(turns, {a: IDLE, b: own}, [])
    turns.add(a)
    taken = {a: 0, b: 0}
    for _ in range(20):
        winner = take_turn(turns, {a: own, b: own}, [])
        assert winner is not None
        taken[winner] += own
        assert abs(taken[a] - taken[b]) <= COST_MAX + own


# Fairness in the complete scheduler


@dataclass
class Served:
    """Engine time given to each tenant while all of them are waiting."""

    scheduler: Scheduler
    weights: dict[str, int]
    given: dict[str, int] = field(default_factory=dict)
    running: list[Dispatch] = field(default_factory=list)
    cost_max: int = 0

    def note(self, commands: list[Command]) -> None:
        for each in commands:
            if isinstance(each, Dispatch):
                request = self.scheduler._state.requests.by_id[each.request_id]
                self.cost_max = max(self.cost_max, request.cost_ns)
                tenant = request.ticket.tenant
                self.given[tenant] = self.given.get(tenant, 0) + request.cost_ns
                self.running.append(each)

    def check(self) -> None:
        """4: |served_f/w_f - served_g/w_g| <= 2 (largest cost + in flight) / w."""
        in_flight = self.cost_max * len(self.running)
        for one, other in combinations(self.weights, 2):
            mine, theirs = self.given.get(one, 0) / self.weights[one], self.given.get(other, 0) / self.weights[other]
            least = min(self.weights[one], self.weights[other])
            assert abs(mine - theirs) <= 2 * (self.cost_max + in_flight) / least


def backlogged(weights: dict[str, int], prompts: dict[str, int], places: int, deep: int) -> Served:
    tenants = tuple(Tenant(TenantId(name), weight=weight) for name, weight in weights.items())
    policy = a_policy(
        classes=(
            a_class("interactive", queue_wait=10_000, queue_length_max=10_000, queue_length_per_tenant_max=9_999),
        ),
        tenants=(*tenants, "first"),
    )
    scheduler = a_scheduler(an_endpoint("e1", places=places), policy=policy)
    served = Served(scheduler, weights)
    served.running = [
        each
        for each in commands_for(scheduler, at(0), *(arrived(f"f{number}", "first") for number in range(places)))
        if isinstance(each, Dispatch)
    ]
    for number in range(deep):
        for name, prompt_bytes in prompts.items():
            commands_for(scheduler, at(0), arrived(f"{name}{number}", name, prompt_bytes=prompt_bytes))
    return served


@given(
    weights=st.fixed_dictionaries({name: st.sampled_from([50, 100, 300]) for name in "abc"}),
    prompts=st.fixed_dictionaries({name: st.sampled_from([40, 400, 2_000]) for name in "abc"}),
    places=st.integers(1, 4),
    ends=st.lists(st.integers(0, 3), min_size=1, max_size=40),
)
def test_backlogged_tenants_get_engine_time_in_proportion_to_their_weights(
    weights: dict[str, int], prompts: dict[str, int], places: int, ends: list[int]
) -> None:
    served = backlogged(weights, prompts, places, deep=60)
    for position in ends:
        ended = served.running.pop(position % len(served.running))
        served.note(served.scheduler.handle(completed(ended.request_id), at(1)))
        served.check()


def shares(weights: dict[str, int], names: Callable[[str], str]) -> dict[str, int]:
    renamed = {names(name): weight for name, weight in weights.items()}
    served = backlogged(renamed, dict.fromkeys(renamed, 400), places=2, deep=60)
    for _ in range(60):
        ended = served.running.pop(0)
        served.note(served.scheduler.handle(completed(ended.request_id), at(1)))
    return served.given


@given(weights=st.fixed_dictionaries({name: st.sampled_from([50, 100, 300]) for name in "abc"}))
def test_tenant_share_does_not_depend_on_the_tenants_name(weights: dict[str, int]) -> None:
    """11: for tenants with equal requests, the name does not matter."""
    plain, renamed = shares(weights, lambda name: name), shares(weights, lambda name: f"zz-{name}")

    assert renamed == {f"zz-{name}": taken for name, taken in plain.items()}
