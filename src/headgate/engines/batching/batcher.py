"""Sends several requests to one endpoint in a single call.

A batcher wraps an endpoint's engine and has the same interface, so other modules do not depend on it. The scheduler
still makes a decision and counts a slot for every request, the relay still gets a response for each, and a cancelled
request still stops waiting. `core/batch_queue.py` decides which requests to send together, and when. Each API joins
requests and splits responses in its own way (`wire/embeddings_codec.py`, `wire/tensors_codec.py`). This module makes
the calls and delivers the responses.

- A request that is not joined with others is sent unchanged, and its response is passed through unchanged.
- A batch that the engine rejects or fails is sent again in halves, until the request that caused it is found. If the
  engine is unreachable or truncates the response, all requests in the batch fail. The scheduler decides whether and
  where to retry, and retries are sent alone.
- If a response cannot be split or is too long to split, each request in the batch, and the requests that follow, are
  sent separately and unchanged. This does not count as an engine failure. It only shows that the engine does not
  support batches.
- A disconnected caller receives nothing. When all callers of a batch have disconnected, its connection is closed.
- A list that is too long for one call is sent in several calls. Its response begins when it is complete or when its
  buffer is full. From then on, the parts are passed on as they arrive, and new calls are made only as fast as the
  caller reads.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from headgate.core.batch_queue import Batch, BatchQueue
from headgate.engines.batching.responses import AssembledResponse, BatchErrorResponse, is_about_request, passthrough
from headgate.model.policy import BatchRules
from headgate.model.ticket import Api
from headgate.model.units import SECOND, ClassName, Duration, EndpointId, Instant, PoolName, RequestId
from headgate.ports.engine import BatchHints, Call, Engine, EngineFault, EngineResponse
from headgate.wire.batch_codec import BUFFERED_BYTES_MAX, BatchCodec, BatchInputs, BatchSplitError, ResponsePart
from headgate.wire.batch_codecs import BATCH_CODECS

UNBATCHED_REQUESTS: Final = 256
"""Number of requests that are sent separately after a response could not be split."""
EARLY_FAILURE_S_MAX: Final = 1.0
"""Maximum duration of a failed call that is sent again here, once and in halves, in seconds. An engine that closes an
idle connection must not cause a failed attempt for every request in a batch. A later or second failure is attributed to
the endpoint and handled by the scheduler."""

BatchMeter = Callable[[PoolName, int, Sequence[int]], None]
"""Called for each call with its number of inputs, and the batch waits of the requests whose first call it is."""


_CallResult = list[ResponsePart] | BatchErrorResponse | EngineFault | BatchSplitError | int
"""Result of a call, or only its status if the response was passed through."""


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    unbatched_requests: int = UNBATCHED_REQUESTS
    buffered_bytes_max: int = BUFFERED_BYTES_MAX
    codecs: Mapping[Api, BatchCodec] = field(default_factory=lambda: BATCH_CODECS)


DEFAULT_LIMITS: Final = BatcherLimits()


class Batchers(Mapping[EndpointId, Engine]):
    """Engines by endpoint. If the pool has batch rules, the endpoint's engine is wrapped in a batcher."""

    def __init__(self, engines: Mapping[EndpointId, Engine], on_batch: BatchMeter) -> None:
        self._engines = engines
        self._on_batch = on_batch
        self._rules: Mapping[PoolName, BatchRules] = {}
        self._first_token_ns: Mapping[ClassName, Duration] = {}
        self._batchers: dict[EndpointId, Batcher] = {}

    def __getitem__(self, endpoint_id: EndpointId) -> Engine:
        engine = self._engines[endpoint_id]
        if not self._rules:
            return engine  # Most configurations have no batch rules.
        pool = PoolName(endpoint_id.partition("/")[0])
        rules = self._rules.get(pool)
        if rules is None:
            return engine
        found = self._batchers.get(endpoint_id)
        if found is None or found.engine is not engine:
            self._prune()
            found = Batcher(engine, rules, self._first_token_ns, partial(self._on_batch, pool))
            self._batchers[endpoint_id] = found
        return found

    def __iter__(self) -> Iterator[EndpointId]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def waiting(self) -> int:
        """Number of inputs that have not been sent yet."""
        return sum(batcher.waiting for batcher in self._batchers.values())

    def set_rules(self, rules: Mapping[PoolName, BatchRules], first_token_ns: Mapping[ClassName, Duration]) -> None:
        """Applies new rules. `first_token_ns` is the time-to-first-token objective of each class that has one."""
        self._rules, self._first_token_ns = rules, first_token_ns
        self._prune()
        for endpoint_id, batcher in self._batchers.items():
            batcher.set_rules(rules[PoolName(endpoint_id.partition("/")[0])], first_token_ns)

    def _prune(self) -> None:
        """Drops batchers of removed endpoints and of pools without batch rules. Queued requests are still served."""
        for endpoint_id, batcher in list(self._batchers.items()):
            gone = self._engines.get(endpoint_id) is not batcher.engine
            if gone or PoolName(endpoint_id.partition("/")[0]) not in self._rules:
                del self._batchers[endpoint_id]


class Batcher:
    """Engine that sends several requests to another engine in one call. Must be created inside an event loop."""

    def __init__(
        self,
        engine: Engine,
        rules: BatchRules,
        first_token_ns: Mapping[ClassName, Duration],
        on_batch: Callable[[int, Sequence[int]], None] = lambda _size, _waits: None,
        limits: BatcherLimits = DEFAULT_LIMITS,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._first_token_ns = first_token_ns
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._queue = BatchQueue(rules)
        self._pending: dict[int, _PendingRequest] = {}
        """Requests that wait for a response, or for more of it, by their number in the queue."""
        self._calls: dict[int, asyncio.Task[_CallResult]] = {}
        self._unbatched_left = 0
        """Number of further requests to send separately."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def waiting(self) -> int:
        """Number of inputs that have not been sent yet."""
        return len(self._queue)

    def set_rules(self, rules: BatchRules, first_token_ns: Mapping[ClassName, Duration]) -> None:
        """Applies new rules to requests that arrive afterwards."""
        self._queue.set_rules(rules)
        self._first_token_ns = first_token_ns
        self._send_due()

    async def ask(self, call: Call) -> EngineResponse:
        company, joinery = call.batch_hints, self._limits.codecs.get(call.api)
        inputs = (
            None if company is None or joinery is None or self._skips_batching() else joinery.split_request(call.body)
        )
        if company is None or joinery is None or inputs is None:
            return await self._engine.ask(call)
        if company.is_retry and len(inputs.items) <= self._queue.rules.batch_size_max:
            return await self._engine.ask(call)
        asked = _PendingRequest(call, joinery, inputs, self._loop, self._limits.buffered_bytes_max)
        patience_ns, delay_ns = self._wait_budget_ns(company), self._queue.rules.delay_ns_max
        number = self._queue.add(
            company.tenant,
            inputs.key,
            inputs.tokens,
            hold_ns=delay_ns if patience_ns is None else min(delay_ns, patience_ns),
            now=self._now(),
            wait_budget_ns=patience_ns,
            # Retries are sent alone, so that whatever made them fail cannot affect other requests.
            unbatched=company.is_retry,
        )
        asked.set_callbacks(lambda: self._remove(number), lambda resting: self._set_paused(number, resting=resting))
        self._pending[number] = asked
        self._send_due()
        try:
            return await asked.response
        except BaseException:
            asked.close()
            raise

    def _skips_batching(self) -> bool:
        if self._unbatched_left == 0:
            return False
        self._unbatched_left -= 1
        return True

    def _wait_budget_ns(self, company: BatchHints) -> Duration | None:
        """Returns how long a request may be held: a percentage of its TTFT objective or of its remaining time,
        whichever is shorter. None if it has neither.
        """
        return self._queue.wait_budget_ns((self._first_token_ns.get(company.service_class), company.time_left_ns))

    # Queue

    def _now(self) -> Instant:
        return Instant(int(self._loop.time() * SECOND))

    def _send_due(self) -> None:
        """Sends the batches that are due and sets the timer for the next one."""
        for batch in self._queue.next(self._now()):
            self._on_batch(len(batch.inputs), batch.waits_ns)
            self._send(batch)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at := self._queue.wakeup()) is not None:
            self._timer = self._loop.call_later(max(0, at - self._now()) / SECOND, self._send_due)

    def _send(self, batch: Batch) -> None:
        askers = {number: self._pending[number] for number in batch.requests()}
        task = self._calls[batch.number] = asyncio.create_task(self._run(batch, askers))
        # A call that is cancelled before its first step never runs its body, so only the callback sees it end.
        task.add_done_callback(lambda done: self._on_call_done(batch, askers, done))

    def _remove(self, number: int) -> None:
        if (asked := self._pending.pop(number, None)) is not None:
            if asked.single_call is not None:
                asked.single_call.cancel()
            self._cancel_orphaned_calls(number)
            self._send_due()

    def _cancel_orphaned_calls(self, number: int) -> None:
        """Removes the request from the queue and cancels calls that serve no other request."""
        for deserted in self._queue.remove(number):
            self._calls[deserted].cancel()

    def _set_paused(self, number: int, *, resting: bool) -> None:
        self._queue.set_paused(number, paused=resting)
        self._send_due()

    # One call

    async def _run(self, batch: Batch, askers: Mapping[int, "_PendingRequest"]) -> "_CallResult":
        first = next(iter(askers.values()))
        if len(askers) == 1 and len(batch.inputs) == first.total:
            return await self._call_single(first)
        sent_s = self._loop.time()
        try:
            return await self._call_batch(batch, askers, first)
        except BatchSplitError as why:
            return why
        except EngineFault as fault:
            if batch.is_retry or self._loop.time() - sent_s > EARLY_FAILURE_S_MAX:
                raise
            return fault

    async def _call_single(self, asked: "_PendingRequest") -> int:
        """Sends one request alone and passes its response through. Returns when the response has been read."""
        answer = await self._engine.ask(asked.call)
        try:
            over: asyncio.Future[None] = self._loop.create_future()
            if asked.start_response(passthrough(answer, over)):
                await over
        finally:
            answer.close()
        return answer.status

    async def _call_batch(
        self, batch: Batch, askers: Mapping[int, "_PendingRequest"], first: "_PendingRequest"
    ) -> list[ResponsePart] | BatchErrorResponse:
        answer = await self._engine.ask(_batch_call(batch, askers))
        try:
            body = await _read(answer, first.codec.response_bytes_max)
            if answer.status >= 300:
                blames = answer.is_request_error(bytes(body))
                return BatchErrorResponse(answer.status, answer.content_type, bytes(body), blames=blames)
            weights = [askers[each.request].inputs.weights[each.place] for each in batch.inputs]
            return list(first.codec.split_response(body, weights, first.inputs.are_token_ids))
        finally:
            answer.close()

    def _on_call_done(
        self, batch: Batch, askers: Mapping[int, "_PendingRequest"], task: "asyncio.Task[_CallResult]"
    ) -> None:
        del self._calls[batch.number]
        wanting = {each: asked for each, asked in askers.items() if each in self._pending and asked.single_call is None}
        if task.cancelled():
            # All callers in the batch have disconnected.
            self._queue.finish(batch)
        elif (mistake := task.exception()) is not None:
            self._queue.finish(batch)
            self._fail(wanting, mistake)
        else:
            self._apply_result(batch, wanting, task.result())
        self._send_due()

    def _apply_result(self, batch: Batch, askers: Mapping[int, "_PendingRequest"], found: "_CallResult") -> None:
        match found:
            case int():
                # The caller already has its response. Only the queue still needs to know whether this request was at
                # fault.
                if is_about_request(found):
                    self._queue.split_failed(batch, rejected=True)
                elif found >= 300:
                    self._queue.finish(batch)
                else:
                    self._queue.succeed(batch)
            case list():
                self._queue.succeed(batch)
                self._deliver(batch, askers, found)
            case BatchSplitError():
                self._queue.finish(batch)
                self._call_separately(askers)
            case BatchErrorResponse() if not found.request_error and not is_about_request(found.status):
                self._queue.finish(batch)
                self._deliver_error(batch, askers, found)
            case BatchErrorResponse() | EngineFault():
                refused = isinstance(found, BatchErrorResponse) and found.request_error
                halves = self._queue.split_failed(batch, rejected=refused)
                for half in halves:
                    self._on_batch(len(half.inputs), ())
                    self._send(half)
                if not halves:
                    self._deliver_error(batch, askers, found)
        for number, asked in askers.items():
            if asked.complete:
                self._pending.pop(number, None)

    def _deliver(self, batch: Batch, askers: Mapping[int, "_PendingRequest"], parts: Sequence[ResponsePart]) -> None:
        left = dict(askers)
        unfit: dict[int, _PendingRequest] = {}
        for each, part in zip(batch.inputs, parts, strict=True):
            if (asked := left.get(each.request)) is None:
                continue
            try:
                asked.add_part(each.place, part)
            except BatchSplitError:
                unfit[each.request] = left.pop(each.request)
        for asked in left.values():
            asked.release_if_ready()
        if unfit:
            self._call_separately(unfit)

    def _call_separately(self, askers: Mapping[int, "_PendingRequest"]) -> None:
        """Sends each request alone and unchanged, because its part of the batch response cannot be used."""
        self._unbatched_left = self._limits.unbatched_requests
        for number, asked in askers.items():
            if asked.response.done():
                self._fail({number: asked}, EngineFault("a later part of the engine's response could not be split"))
                continue
            self._cancel_orphaned_calls(number)
            asked.single_call = asyncio.create_task(self._call_single(asked))
            asked.single_call.add_done_callback(partial(self._on_single_done, number, asked))

    def _on_single_done(self, number: int, asked: "_PendingRequest", task: "asyncio.Task[int]") -> None:
        if not task.cancelled() and (mistake := task.exception()) is not None:
            self._fail({number: asked}, mistake)
        self._pending.pop(number, None)

    def _deliver_error(
        self, batch: Batch, askers: Mapping[int, "_PendingRequest"], found: "BatchErrorResponse | EngineFault"
    ) -> None:
        """Delivers the engine's error.

        If several requests receive it, the body is omitted, because it may quote another's prompt.
        """
        if isinstance(found, EngineFault):
            self._fail(askers, found)
            return
        quotes = len(batch.requests()) == 1
        for number, asked in askers.items():
            if not asked.start_response(found if quotes else found.without_body()):
                asked.fail(EngineFault(f"the engine returned {found.status} for a later part of the response"))
            self._remove(number)

    def _fail(self, askers: Mapping[int, "_PendingRequest"], why: BaseException) -> None:
        for number, asked in askers.items():
            # Each request gets its own exception object, because it is raised in several tasks.
            asked.fail(EngineFault(str(why), why.fault) if isinstance(why, EngineFault) else why)
            self._remove(number)


class _PendingRequest:
    """One request and its response."""

    __slots__ = ("_answer", "_assembly", "call", "codec", "complete", "inputs", "response", "single_call", "total")

    def __init__(
        self, call: Call, joinery: BatchCodec, inputs: BatchInputs, loop: asyncio.AbstractEventLoop, held_bytes_max: int
    ) -> None:
        self.call = call
        self.codec = joinery
        self.inputs = inputs
        self.total = len(inputs.items)
        self.response: asyncio.Future[EngineResponse] = loop.create_future()
        """Future that resolves to the response."""
        self.complete = False
        """Whether the response is complete."""
        self.single_call: asyncio.Task[int] | None = None
        """Separate call for this request, if its part of the batch response could not be used."""
        self._answer = AssembledResponse(held_bytes_max)
        self._assembly = joinery.assembly(self.total)

    def set_callbacks(self, let_go: Callable[[], None], rest: Callable[[bool], None]) -> None:
        self._answer.on_close, self._answer.on_backpressure = let_go, rest

    def start_response(self, answer: EngineResponse) -> bool:
        """Starts the response. Returns false if it has already started or the caller is no longer waiting."""
        if self.response.done():
            return False
        self.response.set_result(answer)
        self.complete = self.complete or answer is not self._answer
        return True

    def fail(self, why: BaseException) -> None:
        if not self.response.done():
            self.response.set_exception(why)
        self._answer.end(why)

    def close(self) -> None:
        """Releases the response if the caller is no longer waiting."""
        if self.response.done() and not self.response.cancelled() and self.response.exception() is None:
            self.response.result().close()
        self._answer.close()

    def add_part(self, place: int, part: ResponsePart) -> None:
        answer = self._answer
        answer.usage_estimated = answer.usage_estimated or part.estimated
        data = self._assembly.add(place, part)
        answer.put(data, out_of_order_bytes=self._assembly.buffered_bytes)

    def release_if_ready(self) -> None:
        """Starts the response when it is complete or its buffer is full."""
        if self._assembly.complete and not self.complete:
            self.complete = True
            self._answer.end(None)
        if self.complete or self._answer.is_full:
            self.start_response(self._answer)


def _batch_call(batch: Batch, askers: Mapping[int, _PendingRequest]) -> Call:
    first = next(iter(askers.values()))
    items = [askers[each.request].inputs.items[each.place] for each in batch.inputs]
    body = first.codec.join_inputs(first.call.body, items, len(askers))
    if len(askers) == 1:
        # Engines treat two concurrent calls with the same ID as one call, or reject the second.
        return replace(first.call, request_id=RequestId(f"{first.call.request_id}.{batch.number}"), body=body)
    told = [asked.call.on_sent for asked in askers.values() if asked.call.on_sent is not None]
    # IDs and traces belong to one request, but engines repeat IDs in their responses, which go to all callers.
    return Call(RequestId(f"batch_{secrets.token_hex(12)}"), first.call.api, body, on_sent=partial(_call_all, told))


def _call_all(told: Sequence[Callable[[], None]]) -> None:
    for tell in told:
        tell()


async def _read(answer: EngineResponse, bytes_max: int) -> bytearray:
    body = bytearray()
    while data := await answer.read():
        body += data
        if len(body) > bytes_max:
            raise BatchSplitError(f"the engine's response to a batch exceeds {bytes_max} bytes")
    return body
