"""Tests for the share of request body memory that one tenant may use."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.edge.body_bytes import BodyBytes

MAX = 1_000


def test_single_body_may_use_the_whole_limit() -> None:
    body = BodyBytes().open("a")

    assert all(body.grow(100, MAX) for _ in range(10))
    assert not body.grow(1, MAX)


def test_tenant_with_many_bodies_leaves_memory_for_others() -> None:
    bodies = BodyBytes()
    taken = sum(bodies.open("flood").grow(10, MAX) for _ in range(200)) * 10

    assert taken == 800
    assert bodies.open("victim").grow(200, MAX)


def test_closing_a_body_releases_its_bytes_once() -> None:
    bodies = BodyBytes()
    one = bodies.open("a")
    one.grow(100, MAX)
    one.close()
    one.close()

    assert (bodies.total, bodies._by_tenant) == (0, {})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400)), max_size=60))
def test_total_equals_the_sum_over_tenants_and_stays_within_the_limit(asked: list[tuple[str, int]]) -> None:
    bodies, held = BodyBytes(), {"a": 0, "b": 0, "c": 0}
    for tenant, size in asked:
        body = bodies.open(tenant)
        assert body.has_room(size, MAX) == body.grow(size, MAX) or size == 0
        held[tenant] = bodies.of(tenant)

    assert bodies.total == sum(held.values()) <= MAX
