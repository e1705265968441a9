"""Fixed concurrency limit per endpoint.

Each endpoint has at most `cap` requests in flight, and the endpoint with the fewest gets the next request. Additional
requests are rejected immediately. With `queue_length_max`, up to that many requests wait in one first-in, first-out
queue. They wait until the client disconnects or, with `expires_late`, until the class's TTFT target has passed.

A good cap requires knowing the engine, the request sizes and the load in advance. `bench/sim_overload.py` tries many
caps and keeps the best one, which would not be possible in production.
"""

from headgate.core.commands import Command
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, Instant, PoolName, RequestId
from headgate.simulation.baselines.baseline import Baseline, BaselineEndpoint, BaselineRequest, least_outstanding


class StaticCap(Baseline):
    def __init__(self, cap: int, *, queue_length_max: int = 0, expires_late: bool = False) -> None:
        assert cap > 0, "cap must be positive"
        super().__init__()
        self._cap = cap
        self._waiting_max = queue_length_max
        self._drops_late = expires_late
        self._queues: dict[tuple[PoolName, ...], dict[RequestId, BaselineRequest]] = {}
        """Waiting requests in arrival order, by the pools that they can use."""

    def _admit(self, held: BaselineRequest, now: Instant, out: list[Command]) -> None:
        line = self._queues.setdefault(held.pools, {})
        if not line and self._try_dispatch(held, now, out):
            return
        if len(line) < self._waiting_max:
            line[held.id] = held
        else:
            reason = f"every endpoint is at its limit of {self._cap} in flight; {len(line)} waiting"
            self._end(held, Outcome.QUEUE_FULL, out, reason, retry_after=SECOND)

    def _dequeue(self, held: BaselineRequest) -> None:
        del self._queues[held.pools][held.id]

    def _dispatch_waiting(self, now: Instant, out: list[Command]) -> None:
        for line in self._queues.values():
            while line:
                head = next(iter(line.values()))
                if self._drops_late and _is_late(head, now):
                    head.waited_ns = Duration(now - head.arrived_at)
                    self._end(head, Outcome.QUEUE_TIMEOUT, out, "the TTFT target has passed", retry_after=SECOND)
                elif not self._try_dispatch(head, now, out):
                    break
                del line[head.id]

    def _try_dispatch(self, held: BaselineRequest, now: Instant, out: list[Command]) -> bool:
        target = self._free_endpoint(held)
        if target is None:
            return False
        self._send(held, target, now, out, f"least outstanding: {target.in_flight} of {self._cap} in flight")
        return True

    def _free_endpoint(self, held: BaselineRequest) -> BaselineEndpoint | None:
        targets = self._ready_endpoints(held)
        target = least_outstanding(targets) if targets else None
        return target if target is not None and target.in_flight < self._cap else None


def _is_late(held: BaselineRequest, now: Instant) -> bool:
    ttft_ns = held.service_class.ttft_ns
    return ttft_ns is not None and now - held.arrived_at > ttft_ns
