"""The scheduler's CPU time per request does not depend on the number of endpoints or queued requests.

The tests compare a small and a large setup on the same machine and are not benchmarks. Each request goes through
arrival, dispatch, first token, two progress reports and completion.
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
    commands_for,
    completed,
    first_token,
    progressed,
)

TENANTS = tuple(f"tenant-{number}" for number in range(1_000))
POLICY = a_policy(
    classes=(a_class(queue_length_max=1_000_000, queue_length_per_tenant_max=1_000_000, queue_wait=10**6),),
    tenants=TENANTS,
)
LIVES = 500


class Crowd:
    """Scheduler with all slots occupied and `queued` requests waiting. A negative number leaves slots free."""

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
        self.note(commands_for(self.scheduler, at(self.clock), arrived(name, TENANTS[self.arrivals % len(TENANTS)])))

    def note(self, commands: list[Command]) -> None:
        self.running.extend(each.request_id for each in commands if isinstance(each, Dispatch))

    def live(self) -> None:
        """Adds a request and completes the oldest running one, so that another request is sent."""
        self.clock += 0.001
        self.arrive()
        oldest = self.running.popleft()
        now = at(self.clock)
        self.note(
            commands_for(
                self.scheduler, now, first_token(oldest), progressed(oldest), progressed(oldest), completed(oldest)
            )
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
    print(f"\n{what}: {1 / small:,.0f} and {1 / large:,.0f} requests/s, ratio {large / small:.2f}")


def test_cost_per_request_does_not_depend_on_number_of_endpoints() -> None:
    small = Crowd(endpoints=8, queued=10).seconds_per_life()
    large = Crowd(endpoints=512, queued=10).seconds_per_life()

    report("8 and 512 endpoints", small, large)
    assert large / small <= 3


def test_cost_per_request_does_not_depend_on_queue_length() -> None:
    small = Crowd(endpoints=8, queued=10).seconds_per_life()
    large = Crowd(endpoints=8, queued=10_000).seconds_per_life()

    report("10 and 10,000 queued", small, large)
    assert large / small <= 3


def test_cost_per_request_with_free_slots_does_not_depend_on_number_of_endpoints() -> None:
    """Each request is sent to the least loaded endpoint immediately."""
    small = Crowd(endpoints=8, queued=-16).seconds_per_life()
    large = Crowd(endpoints=512, queued=-1_024).seconds_per_life()

    report("8 and 512 endpoints, half full", small, large)
    assert large / small <= 3
