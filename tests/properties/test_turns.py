"""Are turns fair whatever the tenants do with them?"""

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import Command, Dispatch
from headgate.core.queues.fair import Answer, Turns
from headgate.model.units import TenantId
from tests.support.builders import a_policy, a_scheduler, arrived, at, completed, told

TENANTS = [TenantId(name) for name in "abcd"]
answers = st.fixed_dictionaries({tenant: st.sampled_from(Answer) for tenant in TENANTS})


def take_turn(turns: Turns, doing: dict[TenantId, Answer], asked: list[TenantId]) -> TenantId | None:
    """Offers one turn to tenants that do with it what they are doing at the moment."""

    def ask(tenant: TenantId) -> Answer:
        asked.append(tenant)
        return doing[tenant]

    return asked[-1] if turns.offer(ask) else None


@given(st.lists(st.tuples(answers, st.integers(1, 12)), max_size=8))
def test_those_who_take_every_turn_they_are_offered_differ_by_at_most_one(
    phases: list[tuple[dict[TenantId, Answer], int]],
) -> None:
    turns = Turns()
    for doing, rounds in phases:
        waiting = [tenant for tenant in TENANTS if doing[tenant] is not Answer.IDLE]
        taking = [tenant for tenant in TENANTS if doing[tenant] is Answer.TAKES]
        taken = dict.fromkeys(TENANTS, 0)
        for _ in range(rounds):
            for tenant in waiting:
                turns.list(tenant)
            winner = take_turn(turns, doing, [])
            assert (winner is None) is not bool(taking)
            if winner is not None:
                taken[winner] += 1
            counts = [taken[tenant] for tenant in taking]
            # Whatever they did before: idling and passing neither earn turns nor cost any.
            assert max(counts, default=0) - min(counts, default=0) <= 1


@given(st.lists(answers, max_size=30))
def test_nobody_is_asked_twice_for_one_turn(phases: list[dict[TenantId, Answer]]) -> None:
    turns = Turns()
    for doing in phases:
        for tenant in TENANTS:
            turns.list(tenant)
        asked: list[TenantId] = []
        take_turn(turns, doing, asked)
        assert len(asked) == len(set(asked))


def test_a_newcomer_stands_behind_those_who_have_had_as_many_turns_as_it_is_given() -> None:
    turns = Turns()
    everyone = dict.fromkeys(TENANTS, Answer.TAKES)
    for tenant in "abc":
        turns.list(TenantId(tenant))
    first = [take_turn(turns, everyone, []) for _ in range(4)]
    turns.list(TenantId("d"))

    assert first == ["a", "b", "c", "a"]
    assert [take_turn(turns, everyone, []) for _ in range(5)] == ["b", "c", "d", "a", "b"]


def dispatches(commands: list[Command]) -> list[Dispatch]:
    return [each for each in commands if isinstance(each, Dispatch)]


@given(
    places=st.integers(1, 4),
    order=st.lists(st.sampled_from(TENANTS), max_size=20),
    ends=st.lists(st.integers(0, 3), min_size=1, max_size=40),
)
def test_two_backlogged_tenants_differ_by_at_most_one_turn(places: int, order: list[TenantId], ends: list[int]) -> None:
    """Whoever came first, however much each has sent, and whichever attempt happens to end."""
    scheduler = a_scheduler(policy=a_policy(tenants=("first", *TENANTS)), places=places)
    running = dispatches(told(scheduler, at(0), *[arrived(f"f{number}", "first") for number in range(places)]))
    backlog = [*order, *[tenant for tenant in TENANTS for _ in ends]]
    told(scheduler, at(0), *[arrived(f"{tenant}{number}", tenant) for number, tenant in enumerate(backlog)])
    taken = dict.fromkeys(TENANTS, 0)

    for position in ends:
        ended = running.pop(position % len(running))
        [sent] = dispatches(scheduler.handle(completed(ended.request_id), at(1)))
        running.append(sent)
        taken[TenantId(sent.request_id[0])] += 1
        assert max(taken.values()) - min(taken.values()) <= 1
