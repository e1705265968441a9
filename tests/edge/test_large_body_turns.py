"""Tests for the order in which several tenants' large bodies are parsed."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headgate.edge.large_bodies.fair_body_queue import FairBodyQueue


@dataclass(order=True)
class Body:
    size: int
    tenant: str = ""


def read_all(turns: FairBodyQueue[Body]) -> list[Body]:
    return [turns.pop() for _ in range(len(turns))]


def test_smallest_body_from_a_tenant_is_parsed_first() -> None:
    turns: FairBodyQueue[Body] = FairBodyQueue()
    for size in (30, 10, 20):
        turns.push("a", Body(size))

    assert [each.size for each in read_all(turns)] == [10, 20, 30]


def test_large_body_does_not_wait_for_all_of_another_tenants_small_bodies() -> None:
    turns: FairBodyQueue[Body] = FairBodyQueue()
    for _ in range(1_000):
        turns.push("flood", Body(255_000, "flood"))
    turns.push("victim", Body(2_000_000, "victim"))

    assert turns.pop().tenant == "flood"
    assert turns.pop().tenant == "victim"


def test_tenant_sending_continuously_does_not_overtake_others() -> None:
    turns: FairBodyQueue[Body] = FairBodyQueue()
    turns.push("quiet", Body(100, "quiet"))
    turns.push("quiet", Body(100, "quiet"))
    served: list[str] = []
    turns.push("busy", Body(100, "busy"))
    for _ in range(6):
        body = turns.pop()
        served.append(body.tenant)
        if body.tenant == "busy":
            turns.push("busy", Body(100, "busy"))

    assert served[:4].count("quiet") == 2


def test_number_of_remembered_idle_tenants_is_bounded() -> None:
    turns: FairBodyQueue[Body] = FairBodyQueue(tenants_kept_max=3)
    for number in range(50):
        turns.push(f"t{number}", Body(number + 1))
        turns.pop()

    assert len(turns._next_at) <= 4


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=200))
def test_backlogged_tenants_get_nearly_equal_byte_counts(asked: list[tuple[str, int]]) -> None:
    """No tenant is ahead of another by more than one body as long as all of them have bodies waiting."""
    turns: FairBodyQueue[Body] = FairBodyQueue()
    for tenant, size in asked:
        turns.push(tenant, Body(size, tenant))
    left, had = Counter(tenant for tenant, _ in asked), Counter[str]()
    while len(left) == len(+left) and len(turns):
        body = turns.pop()
        had[body.tenant] += body.size
        left[body.tenant] -= 1
        assert max(had[each] for each in left) - min(had[each] for each in left) <= 50
