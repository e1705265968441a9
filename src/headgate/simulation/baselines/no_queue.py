"""What does a load balancer give that sends everything on at once?

An arrival goes to an engine whatever the engine holds; the queue is the engine's own.
"""

from headgate.core.commands import Command
from headgate.model.units import Instant, PoolName
from headgate.simulation.baselines.stand_in import Held, StandIn, least_outstanding


class NoQueue(StandIn):
    def _leave_line(self, held: Held) -> None:
        raise AssertionError(f"{held.id} waits, and nobody waits here")

    def _fill(self, now: Instant, out: list[Command]) -> None:
        """Nobody waits for a place."""


class RoundRobin(NoQueue):
    """The endpoints take turns."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[tuple[PoolName, ...], int] = {}

    def _take(self, held: Held, now: Instant, out: list[Command]) -> None:
        targets = self._open_to(held)
        turn = self._turns.get(held.pools, 0)
        self._turns[held.pools] = turn + 1
        self._send(held, targets[turn % len(targets)], now, out, "its turn")


class LeastOutstanding(NoQueue):
    """The endpoint with the fewest attempts under way."""

    def _take(self, held: Held, now: Instant, out: list[Command]) -> None:
        target = least_outstanding(self._open_to(held))
        self._send(held, target, now, out, f"least outstanding, {target.in_flight} in flight before it")
