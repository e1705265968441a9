"""Calls to a simulated engine: which requests share a call, and when the engine has accepted it.

A call carries one request, or the requests that the pool's `batching` joins. `core/batch_queue.py` decides which ones,
as in a gateway. The engine's API server handles one call at a time and spends `call_ns` on each, whatever the number of
requests in it. After that, the requests enter the engine. The response to a call is complete when all of its requests
have been computed. An engine also computes the request of a disconnected caller, unless nobody else is in the call.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.core.batch_queue import Batch, BatchQueue
from headgate.model.policy import BatchRules
from headgate.model.units import ClassName, Duration, Instant, RequestId, TenantId, after
from headgate.simulation.engine.sequence import EngineRequest, SequenceCost, SequenceFinished

NO_WORK: Final = SequenceCost(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    engine_request: EngineRequest
    tenant: TenantId
    service_class: ClassName
    can_share: bool
    """Whether the API and the attempt permit a call with other requests."""

    @property
    def id(self) -> RequestId:
        return self.engine_request.request_id


@dataclass(frozen=True, slots=True)
class RemovedRequest:
    """A request whose caller no longer waits."""

    entered: bool
    """Whether the request has entered the engine."""
    computed: SequenceFinished | None = None
    """The engine's result, if it only waited for the rest of its call."""
    cancels: tuple[RequestId, ...] = ()
    """Requests to cancel in the engine, because nobody waits for the call anymore."""


@dataclass(slots=True)
class CallTotals:
    calls: int = 0
    requests: int = 0
    """Number of requests in these calls."""
    batch_wait_ns: int = 0
    """Sum of the requests' times in the batch queue."""


@dataclass(slots=True)
class _Call:
    requests: tuple[EngineRequest, ...]
    batch: Batch | None = None
    results: dict[RequestId, SequenceFinished] = field(default_factory=dict[RequestId, SequenceFinished])
    entered: bool = False
    abandoned: set[RequestId] = field(default_factory=set[RequestId])
    """Requests whose callers no longer wait."""

    @property
    def computing(self) -> list[RequestId]:
        return [each.request_id for each in self.requests if each.request_id not in self.results]


class EngineCalls:
    def __init__(
        self,
        rules: BatchRules | None,
        targets_ns: Mapping[ClassName, Duration],
        call_ns: Duration,
        totals: CallTotals,
    ) -> None:
        """`rules` is None without batching. `targets_ns` is the latency target of each class that has one."""
        self._queue = None if rules is None else BatchQueue(rules)
        self._targets_ns = targets_ns
        self._call_ns = call_ns
        self._totals = totals
        self._number_of: dict[RequestId, int] = {}
        """Numbers of the requests in the batch queue."""
        self._queued: dict[int, EngineRequest] = {}
        self._calls: dict[RequestId, _Call] = {}
        """Call of each request that has been sent, until the call ends."""
        self._accepting: deque[tuple[Instant, _Call]] = deque()
        """Calls that the API server has not handled yet, with the time when it will have done so."""
        self._server_free_at = Instant(0)

    # Events

    def add(self, request: CallRequest, now: Instant) -> None:
        queue = self._queue
        if queue is None or not request.can_share:
            self._send(_Call((request.engine_request,)), now)
            return
        budget_ns = queue.wait_budget_ns((self._targets_ns.get(request.service_class),))
        delay_ns = queue.rules.delay_ns_max
        number = queue.add(
            request.tenant,
            b"",
            (request.engine_request.prompt_tokens,),
            hold_ns=delay_ns if budget_ns is None else min(delay_ns, budget_ns),
            now=now,
            wait_budget_ns=budget_ns,
        )
        self._number_of[request.id], self._queued[number] = number, request.engine_request

    def finish(self, finished: SequenceFinished) -> list[SequenceFinished]:
        """Records that the engine has computed a request. Returns the results that now reach their callers."""
        call = self._calls[finished.request_id]
        call.results[finished.request_id] = finished
        if call.computing:
            return []
        self._end(call)
        return [each for name, each in call.results.items() if name not in call.abandoned]

    def remove(self, request_id: RequestId) -> RemovedRequest:
        number = self._number_of.pop(request_id, None)
        if number is not None:
            assert self._queue is not None
            del self._queued[number]
            self._queue.remove(number)
            return RemovedRequest(entered=False)
        call = self._calls[request_id]
        call.abandoned.add(request_id)
        computed = call.results.get(request_id)
        if len(call.abandoned) < len(call.requests):
            return RemovedRequest(entered=call.entered, computed=computed)
        self._end(call)
        if call.entered:
            return RemovedRequest(entered=True, computed=computed, cancels=tuple(call.computing))
        self._accepting = deque(each for each in self._accepting if each[1] is not call)
        return RemovedRequest(entered=False)

    # Decisions

    def entering(self, now: Instant) -> Iterator[EngineRequest]:
        """Sends the batches that are due, and yields the requests that enter the engine now."""
        if self._queue is not None:
            for batch in self._queue.next(now):
                requests = tuple(self._queued.pop(number) for number in batch.requests())
                for each in requests:
                    del self._number_of[each.request_id]
                self._totals.batch_wait_ns += sum(batch.waits_ns)
                self._send(_Call(requests, batch), now)
        while self._accepting and self._accepting[0][0] <= now:
            _, call = self._accepting.popleft()
            call.entered = True
            yield from call.requests

    def next_instant(self) -> Instant | None:
        """Returns when to call `entering` again if no event occurs first."""
        wakeup = None if self._queue is None else self._queue.wakeup()
        accepted = self._accepting[0][0] if self._accepting else None
        return min((each for each in (wakeup, accepted) if each is not None), default=None)

    # Calls

    def _send(self, call: _Call, now: Instant) -> None:
        self._totals.calls += 1
        self._totals.requests += len(call.requests)
        self._calls.update((each.request_id, call) for each in call.requests)
        self._server_free_at = after(max(now, self._server_free_at), self._call_ns)
        self._accepting.append((self._server_free_at, call))

    def _end(self, call: _Call) -> None:
        for each in call.requests:
            del self._calls[each.request_id]
        if call.batch is not None:
            assert self._queue is not None
            self._queue.succeed(call.batch)
