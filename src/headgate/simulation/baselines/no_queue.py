"""Load balancers without a queue.

Every request is sent to an engine immediately, whatever the engine's load. Requests queue only inside the engines.
"""

from headgate.core.commands import Command
from headgate.model.units import Instant, PoolName
from headgate.simulation.baselines.baseline import Baseline, BaselineRequest, least_outstanding


class NoQueue(Baseline):
    def _dequeue(self, held: BaselineRequest) -> None:
        raise AssertionError(f"{held.id} is waiting, but this baseline has no queue")

    def _dispatch_waiting(self, now: Instant, out: list[Command]) -> None:
        """Does nothing, because no request ever waits for a slot."""


class RoundRobin(NoQueue):
    """Sends requests to the endpoints in turn."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[tuple[PoolName, ...], int] = {}

    def _admit(self, held: BaselineRequest, now: Instant, out: list[Command]) -> None:
        targets = self._ready_endpoints(held)
        turn = self._turns.get(held.pools, 0)
        self._turns[held.pools] = turn + 1
        self._send(held, targets[turn % len(targets)], now, out, "next in turn")


class LeastOutstanding(NoQueue):
    """Sends each request to the endpoint with the fewest attempts in flight."""

    def _admit(self, held: BaselineRequest, now: Instant, out: list[Command]) -> None:
        target = least_outstanding(self._ready_endpoints(held))
        self._send(held, target, now, out, f"least outstanding: {target.in_flight} in flight")
