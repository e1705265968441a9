"""What does a fixed limit of concurrency give?

Each endpoint has at most so many requests under way, and the least outstanding takes the next. Beyond that a request
is refused at once; `waiting_max` lets some wait instead, in one line, first come, first served, until they leave, or
with `drops_late` until the time is over by which their class promises a first token.
Whoever chooses the cap well knows the engine, the lengths and the load beforehand; `bench/sim_overload.py` tries many
and takes the best, which no operator could.
"""

from headgate.core.commands import Command
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, Instant, PoolName, RequestId
from headgate.simulation.baselines.stand_in import Held, StandIn, Target, least_outstanding


class StaticCap(StandIn):
    def __init__(self, cap: int, *, waiting_max: int = 0, drops_late: bool = False) -> None:
        assert cap > 0, "a cap of nothing serves nobody"
        super().__init__()
        self._cap = cap
        self._waiting_max = waiting_max
        self._drops_late = drops_late
        self._lines: dict[tuple[PoolName, ...], dict[RequestId, Held]] = {}
        """Those who wait, in their order, by where they may go."""

    def _take(self, held: Held, now: Instant, out: list[Command]) -> None:
        line = self._lines.setdefault(held.pools, {})
        if not line and self._start(held, now, out):
            return
        if len(line) < self._waiting_max:
            line[held.id] = held
        else:
            reason = f"{self._cap} requests are in flight at every endpoint and {len(line)} wait"
            self._end(held, Outcome.QUEUE_FULL, out, reason, retry_after=SECOND)

    def _leave_line(self, held: Held) -> None:
        del self._lines[held.pools][held.id]

    def _fill(self, now: Instant, out: list[Command]) -> None:
        for line in self._lines.values():
            while line:
                head = next(iter(line.values()))
                if self._drops_late and _is_late(head, now):
                    head.waited_ns = Duration(now - head.arrived_at)
                    self._end(head, Outcome.EXPIRED, out, "its first token cannot come in time", retry_after=SECOND)
                elif not self._start(head, now, out):
                    break
                del line[head.id]

    def _start(self, held: Held, now: Instant, out: list[Command]) -> bool:
        target = self._place(held)
        if target is None:
            return False
        self._send(held, target, now, out, f"least outstanding, {target.in_flight} of {self._cap} before it")
        return True

    def _place(self, held: Held) -> Target | None:
        targets = self._open_to(held)
        target = least_outstanding(targets) if targets else None
        return target if target is not None and target.in_flight < self._cap else None


def _is_late(held: Held, now: Instant) -> bool:
    ttft_ns = held.service_class.ttft_ns
    return ttft_ns is not None and now - held.arrived_at > ttft_ns
