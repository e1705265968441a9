"""Property tests for pools that share an engine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.events import Event
from headgate.core.scheduler import Scheduler
from testing.builders import BATCH, INTERACTIVE, a_scheduler, an_endpoint, arrived, at, completed
from tests.core.test_shared_engines import ONE_POOL, TWO_POOLS, sent, two_pools

Step = tuple[str, str, str, str, int] | tuple[str, int]
arrivals = st.tuples(
    st.just("arrive"),
    st.sampled_from(["acme", "bolt", "coil"]),
    st.sampled_from(["m", "n"]),
    st.sampled_from(["interactive", "batch"]),
    st.sampled_from([40, 400, 4_000]),
)
ends = st.tuples(st.just("end"), st.integers(0, 7))


@pytest.mark.parametrize("settings", [{}, {"min_share_percent": 30}, {"reserve_percent": 40}])
@given(steps=st.lists(st.one_of(arrivals, arrivals, ends), min_size=10, max_size=60))
def test_two_pools_on_one_engine_are_served_like_one_pool(settings: dict[str, int], steps: list[Step]) -> None:
    """The same requests are sent in the same order, whichever pool they are for."""
    classes = (INTERACTIVE, replace(BATCH, **settings))
    shared = two_pools(places=3, policy=replace(TWO_POOLS, classes=classes))
    single = a_scheduler(an_endpoint("e1", places=3), policy=replace(ONE_POOL, classes=classes))

    assert _order_of_service(shared, steps) == _order_of_service(single, steps)


def _order_of_service(scheduler: Scheduler, steps: list[Step]) -> list[str]:
    order: list[str] = []
    running: list[str] = []
    for number, step in enumerate(steps):
        event: Event
        if step[0] == "arrive":
            _, tenant, model, service_class, prompt = step  # type: ignore[misc]
            event = arrived(
                f"r{number}", tenant, service_class=service_class, model=model, prompt_bytes=prompt, stream=False
            )
        elif running:
            event = completed(running.pop(step[1] % len(running)), tokens=20)  # type: ignore[operator]
        else:
            continue
        started = sent(scheduler.handle(event, at(number)))
        order += started
        running += started
    return order
