"""Does a request cost the same however many endpoints, queued requests and tenants there are?

A ratio, not a benchmark: the same lives in a small and in a large setting, on the same machine, one after the other.
A life is an arrival, a dispatch, a first token, two reports of progress and an end.
"""

from collections import deque
from time import process_time

from headgate.core.commands import Command, Dispatch
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    completed,
    first_token,
    progressed,
    told,
)

TENANTS = tuple(f"tenant-{number}" for number in range(1_000))
POLICY = a_policy(
    classes=(a_class(queue_length_max=1_000_000, queue_length_per_tenant_max=1_000_000, queue_wait=10**6),),
    tenants=TENANTS,
)
LIVES = 500


class Crowd:
    """A scheduler whose places are all taken and where so many wait."""

    def __init__(self, *, endpoints: int, queued: int, places: int = 4) -> None:
        fleet: list[Endpoint] = [an_endpoint(f"e{number}", places=places) for number in range(endpoints)]
        self.scheduler: Scheduler = a_scheduler(*fleet, policy=POLICY)
        self.running: deque[str] = deque()
        self.arrivals = 0
        self.clock = 0.0
        for _ in range(endpoints * places + queued):
            self.arrive()

    def arrive(self) -> None:
        self.arrivals += 1
        name = f"r{self.arrivals}"
        self.note(told(self.scheduler, at(self.clock), arrived(name, TENANTS[self.arrivals % len(TENANTS)])))

    def note(self, commands: list[Command]) -> None:
        self.running.extend(each.request_id for each in commands if isinstance(each, Dispatch))

    def live(self) -> None:
        """One arrives, and the oldest that runs begins to answer, goes on and ends, so that another is sent."""
        self.clock += 0.001
        self.arrive()
        oldest = self.running.popleft()
        now = at(self.clock)
        self.note(
            told(self.scheduler, now, first_token(oldest), progressed(oldest), progressed(oldest), completed(oldest))
        )

    def seconds_per_life(self) -> float:
        best = float("inf")
        for _ in range(3):
            begun = process_time()
            for _ in range(LIVES):
                self.live()
            best = min(best, (process_time() - begun) / LIVES)
        return best


def report(what: str, small: float, large: float) -> None:
    print(f"\n{what}: {1 / small:,.0f} and {1 / large:,.0f} lives/s, ratio {large / small:.2f}")


def test_a_life_costs_the_same_with_many_endpoints() -> None:
    small = Crowd(endpoints=8, queued=10).seconds_per_life()
    large = Crowd(endpoints=512, queued=10).seconds_per_life()

    report("8 and 512 endpoints", small, large)
    assert large / small <= 3


def test_a_life_costs_the_same_with_a_long_queue() -> None:
    small = Crowd(endpoints=8, queued=10).seconds_per_life()
    large = Crowd(endpoints=8, queued=10_000).seconds_per_life()

    report("10 and 10,000 queued", small, large)
    assert large / small <= 3


def test_a_life_costs_the_same_with_places_to_spare() -> None:
    """Nobody waits: each request goes at once to the least loaded of all endpoints."""
    small = Crowd(endpoints=8, queued=-16).seconds_per_life()
    large = Crowd(endpoints=512, queued=-1_024).seconds_per_life()

    report("8 and 512 endpoints, half full", small, large)
    assert large / small <= 3
