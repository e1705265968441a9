"""How is one endpoint asked for what several requests want at once?

A batcher stands before an endpoint's engine and is asked like it, so nothing else knows of it: the scheduler decides
about every request and counts its place, the relay gets an answer, and whoever is stopped stops waiting. When to send
what together is decided by `batch_queue.py`; how requests are joined and answers shared is each API's own
(`wire/embeddings.py`, `wire/tensors.py`); here calls are made, and their answers brought to those who wait.

- A request that finds no company is asked as it came, and its answer passes as it is.
- A batch that the engine refuses or fails at is asked again in halves until the request is found that was meant. An
  engine that cannot be reached, or breaks off, fails for all: whether and where to try again is the scheduler's to say,
  and what is tried again goes alone.
- Where an answer cannot be told apart, or is too long for that, each request is asked by itself, as it came, and so are
  the next that come: it is no failure of the engine, and says that it is not to be asked for several.
- Whoever leaves gets no part; when nobody of a batch is left its connection is cut.
- A list too long for one call is asked in several, and its answer begins when all of it is there, or when more is held
  than is to be held of it. From there on it passes as it comes, and no more is asked than the caller reads.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from headgate.engines.batching.answers import GatheredAnswer, ToldAnswer, is_of_request, passed_on
from headgate.engines.batching.queue import Batch, BatchQueue
from headgate.model.policy import BatchRules
from headgate.model.ticket import Api
from headgate.model.units import SECOND, ClassName, Duration, EndpointId, Instant, PoolName, RequestId
from headgate.ports.engine import Answer, Call, Company, Engine, EngineFault
from headgate.wire.batched_apis import BATCHED
from headgate.wire.batches import HELD_BYTES_MAX, Inputs, Joinery, Part, Unshareable

APART_REQUESTS: Final = 256
"""So many further requests are asked by themselves, after an answer could not be told apart."""
BROKEN_S_MAX: Final = 1.0
"""A call that breaks off so soon is asked for again here, once and in halves: an engine's closing of an idle connection
must not look like the failure of as many attempts as there are requests in a batch. After longer than this, or twice,
it is the endpoint, and for the scheduler to judge."""

BatchMeter = Callable[[PoolName, int, Sequence[int]], None]
"""Told of each call: how many inputs it has, and how long the requests waited whose first call it is."""


_Found = list[Part] | ToldAnswer | EngineFault | Unshareable | int
"""What a call came to; its status alone where its answer has passed by itself."""


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    apart_requests: int = APART_REQUESTS
    held_bytes_max: int = HELD_BYTES_MAX
    joineries: Mapping[Api, Joinery] = field(default_factory=lambda: BATCHED)


DEFAULT_LIMITS: Final = BatcherLimits()


class Batchers(Mapping[EndpointId, Engine]):
    """The engines as they are asked: where a pool has rules for it, through a batcher of the endpoint's own."""

    def __init__(self, engines: Mapping[EndpointId, Engine], saw: BatchMeter) -> None:
        self._engines = engines
        self._saw = saw
        self._rules: Mapping[PoolName, BatchRules] = {}
        self._first_token_ns: Mapping[ClassName, Duration] = {}
        self._batchers: dict[EndpointId, Batcher] = {}

    def __getitem__(self, endpoint_id: EndpointId) -> Engine:
        engine = self._engines[endpoint_id]
        pool = PoolName(endpoint_id.partition("/")[0])
        rules = self._rules.get(pool)
        if rules is None:
            return engine
        found = self._batchers.get(endpoint_id)
        if found is None or found.engine is not engine:
            self._forget()
            found = Batcher(engine, rules, self._first_token_ns, partial(self._saw, pool))
            self._batchers[endpoint_id] = found
        return found

    def __iter__(self) -> Iterator[EndpointId]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def waiting(self) -> int:
        """How many inputs are here and have yet to be sent."""
        return sum(batcher.waiting for batcher in self._batchers.values())

    def change(self, rules: Mapping[PoolName, BatchRules], first_token_ns: Mapping[ClassName, Duration]) -> None:
        """`first_token_ns` is by when answers of a class should begin, where it says so."""
        self._rules, self._first_token_ns = rules, first_token_ns
        self._forget()
        for endpoint_id, batcher in self._batchers.items():
            batcher.change(rules[PoolName(endpoint_id.partition("/")[0])], first_token_ns)

    def _forget(self) -> None:
        """Those of endpoints that have left, or are not to be asked so any more; who waits there is still served."""
        for endpoint_id, batcher in list(self._batchers.items()):
            gone = self._engines.get(endpoint_id) is not batcher.engine
            if gone or PoolName(endpoint_id.partition("/")[0]) not in self._rules:
                del self._batchers[endpoint_id]


class Batcher:
    """An engine that asks another one for several requests at a time. Made inside a running loop."""

    def __init__(
        self,
        engine: Engine,
        rules: BatchRules,
        first_token_ns: Mapping[ClassName, Duration],
        saw: Callable[[int, Sequence[int]], None] = lambda _size, _waits: None,
        limits: BatcherLimits = DEFAULT_LIMITS,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._first_token_ns = first_token_ns
        self._saw = saw
        self._loop = asyncio.get_running_loop()
        self._queue = BatchQueue(rules)
        self._asked: dict[int, _Asked] = {}
        """Those who wait for an answer, or for more of it, by their number in the queue."""
        self._calls: dict[int, asyncio.Task[_Found]] = {}
        self._apart = 0
        """So many of the next requests are asked by themselves."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def waiting(self) -> int:
        """How many inputs are here and have yet to be sent."""
        return len(self._queue)

    def change(self, rules: BatchRules, first_token_ns: Mapping[ClassName, Duration]) -> None:
        """Other rules for those who come from here on."""
        self._queue.change(rules)
        self._first_token_ns = first_token_ns
        self._turn()

    async def ask(self, call: Call) -> Answer:
        company, joinery = call.company, self._limits.joineries.get(call.api)
        inputs = None if company is None or joinery is None or self._goes_apart() else joinery.inputs_of(call.body)
        if company is None or joinery is None or inputs is None:
            return await self._engine.ask(call)
        if company.again and len(inputs.items) <= self._queue.rules.inputs_max:
            return await self._engine.ask(call)
        asked = _Asked(call, joinery, inputs, self._loop, self._limits.held_bytes_max)
        patience_ns, delay_ns = self._patience_ns(company), self._queue.rules.delay_ns_max
        number = self._queue.add(
            company.tenant,
            inputs.key,
            inputs.tokens,
            hold_ns=delay_ns if patience_ns is None else min(delay_ns, patience_ns),
            now=self._now(),
            patience_ns=patience_ns,
            # What is tried again goes alone: whatever it failed by must not fail others.
            alone=company.again,
        )
        asked.held_by(lambda: self._leave(number), lambda resting: self._rest(number, resting=resting))
        self._asked[number] = asked
        self._turn()
        try:
            return await asked.begun
        except BaseException:
            asked.close()
            raise

    def _goes_apart(self) -> bool:
        if self._apart == 0:
            return False
        self._apart -= 1
        return True

    def _patience_ns(self, company: Company) -> Duration | None:
        """How long a request bears to be held here: a share of the least that it has; None if it has all time."""
        percent = self._queue.rules.budget_percent
        targets = (self._first_token_ns.get(company.service_class), company.time_left_ns)
        return min((Duration(percent * target // 100) for target in targets if target is not None), default=None)

    # Turning the queue

    def _now(self) -> Instant:
        return Instant(int(self._loop.time() * SECOND))

    def _turn(self) -> None:
        """Sends what is to be sent, and sets the timer for what is to be sent later."""
        for batch in self._queue.next(self._now()):
            self._saw(len(batch.inputs), batch.waits_ns)
            self._send(batch)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at := self._queue.wakeup()) is not None:
            self._timer = self._loop.call_later(max(0, at - self._now()) / SECOND, self._turn)

    def _send(self, batch: Batch) -> None:
        askers = {number: self._asked[number] for number in batch.requests()}
        task = self._calls[batch.number] = asyncio.create_task(self._run(batch, askers))
        # A call that is given up before its first step has no body in which to say so.
        task.add_done_callback(lambda done: self._done(batch, askers, done))

    def _leave(self, number: int) -> None:
        if (asked := self._asked.pop(number, None)) is not None:
            if asked.whole is not None:
                asked.whole.cancel()
            self._desert(number)
            self._turn()

    def _desert(self, number: int) -> None:
        """No more is asked for it in parts; calls that are for nobody else are cut."""
        for deserted in self._queue.leave(number):
            self._calls[deserted].cancel()

    def _rest(self, number: int, *, resting: bool) -> None:
        self._queue.rest(number, resting=resting)
        self._turn()

    # One call

    async def _run(self, batch: Batch, askers: Mapping[int, "_Asked"]) -> "_Found":
        first = next(iter(askers.values()))
        if len(askers) == 1 and len(batch.inputs) == first.total:
            return await self._pass(first)
        sent_s = self._loop.time()
        try:
            return await self._share(batch, askers, first)
        except Unshareable as why:
            return why
        except EngineFault as fault:
            if batch.again or self._loop.time() - sent_s > BROKEN_S_MAX:
                raise
            return fault

    async def _pass(self, asked: "_Asked") -> int:
        """Asks for one request by itself. Its answer goes by as it is; the call lasts until it has been read."""
        answer = await self._engine.ask(asked.call)
        try:
            over: asyncio.Future[None] = self._loop.create_future()
            if asked.begin(passed_on(answer, over)):
                await over
        finally:
            answer.close()
        return answer.status

    async def _share(self, batch: Batch, askers: Mapping[int, "_Asked"], first: "_Asked") -> list[Part] | ToldAnswer:
        answer = await self._engine.ask(_joined(batch, askers))
        try:
            body = await _read(answer, first.joinery.answer_bytes_max)
            if answer.status >= 300:
                blames = answer.blames_request(bytes(body))
                return ToldAnswer(answer.status, answer.content_type, bytes(body), blames=blames)
            weights = [askers[each.request].inputs.weights[each.place] for each in batch.inputs]
            return list(first.joinery.parts_of(body, weights, first.inputs.counted))
        finally:
            answer.close()

    def _done(self, batch: Batch, askers: Mapping[int, "_Asked"], task: "asyncio.Task[_Found]") -> None:
        del self._calls[batch.number]
        wanting = {each: asked for each, asked in askers.items() if each in self._asked and asked.whole is None}
        if task.cancelled():
            # Everybody who waited for it has left.
            self._queue.ended(batch)
        elif (mistake := task.exception()) is not None:
            self._queue.ended(batch)
            self._fail(wanting, mistake)
        else:
            self._take(batch, wanting, task.result())
        self._turn()

    def _take(self, batch: Batch, askers: Mapping[int, "_Asked"], found: "_Found") -> None:
        match found:
            case int():
                # Who asked knows already; what is left to note is whether it was this one who spoiled a batch.
                if is_of_request(found):
                    self._queue.spoiled(batch, refused=True)
                elif found >= 300:
                    self._queue.ended(batch)
                else:
                    self._queue.answered(batch)
            case list():
                self._queue.answered(batch)
                self._deliver(batch, askers, found)
            case Unshareable():
                self._queue.ended(batch)
                self._ask_apart(askers)
            case ToldAnswer() if not found.blames and not is_of_request(found.status):
                self._queue.ended(batch)
                self._tell(batch, askers, found)
            case ToldAnswer() | EngineFault():
                refused = isinstance(found, ToldAnswer) and found.blames
                halves = self._queue.spoiled(batch, refused=refused)
                for half in halves:
                    self._saw(len(half.inputs), ())
                    self._send(half)
                if not halves:
                    self._tell(batch, askers, found)
        for number, asked in askers.items():
            if asked.over:
                self._asked.pop(number, None)

    def _deliver(self, batch: Batch, askers: Mapping[int, "_Asked"], parts: Sequence[Part]) -> None:
        left = dict(askers)
        unfit: dict[int, _Asked] = {}
        for each, part in zip(batch.inputs, parts, strict=True):
            if (asked := left.get(each.request)) is None:
                continue
            try:
                asked.take(each.place, part)
            except Unshareable:
                unfit[each.request] = left.pop(each.request)
        for asked in left.values():
            asked.settle()
        if unfit:
            self._ask_apart(unfit)

    def _ask_apart(self, askers: Mapping[int, "_Asked"]) -> None:
        """Asks for each of them by itself, as it came, since what has come of it in parts cannot be used."""
        self._apart = self._limits.apart_requests
        for number, asked in askers.items():
            if asked.begun.done():
                self._fail({number: asked}, EngineFault("a later part of the engine's answer could not be told apart"))
                continue
            self._desert(number)
            asked.whole = asyncio.create_task(self._pass(asked))
            asked.whole.add_done_callback(partial(self._passed, number, asked))

    def _passed(self, number: int, asked: "_Asked", task: "asyncio.Task[int]") -> None:
        if not task.cancelled() and (mistake := task.exception()) is not None:
            self._fail({number: asked}, mistake)
        self._asked.pop(number, None)

    def _tell(self, batch: Batch, askers: Mapping[int, "_Asked"], found: "ToldAnswer | EngineFault") -> None:
        """Those who asked learn what the engine said. To several it says nothing: it may repeat another's prompt."""
        if isinstance(found, EngineFault):
            self._fail(askers, found)
            return
        quotes = len(batch.requests()) == 1
        for number, asked in askers.items():
            if not asked.begin(found if quotes else found.without_words()):
                asked.fail(EngineFault(f"the engine answered a later part with {found.status}"))
            self._leave(number)

    def _fail(self, askers: Mapping[int, "_Asked"], why: BaseException) -> None:
        for number, asked in askers.items():
            # Each gets a fault of its own, since it is raised in many places at once.
            asked.fail(EngineFault(str(why), why.fault) if isinstance(why, EngineFault) else why)
            self._leave(number)


class _Asked:
    """One request, and what has come of its answer."""

    __slots__ = ("_answer", "_gathering", "begun", "call", "inputs", "joinery", "over", "total", "whole")

    def __init__(
        self, call: Call, joinery: Joinery, inputs: Inputs, loop: asyncio.AbstractEventLoop, held_bytes_max: int
    ) -> None:
        self.call = call
        self.joinery = joinery
        self.inputs = inputs
        self.total = len(inputs.items)
        self.begun: asyncio.Future[Answer] = loop.create_future()
        """The answer, from when on it may be read."""
        self.over = False
        """Whether all of the answer has come."""
        self.whole: asyncio.Task[int] | None = None
        """The call for all of it by itself, where its parts were of no use."""
        self._answer = GatheredAnswer(held_bytes_max)
        self._gathering = joinery.gathering(self.total)

    def held_by(self, let_go: Callable[[], None], rest: Callable[[bool], None]) -> None:
        self._answer.let_go, self._answer.rest = let_go, rest

    def begin(self, answer: Answer) -> bool:
        """Hands the answer over; False if somebody was before, or nobody waits any more."""
        if self.begun.done():
            return False
        self.begun.set_result(answer)
        self.over = self.over or answer is not self._answer
        return True

    def fail(self, why: BaseException) -> None:
        if not self.begun.done():
            self.begun.set_exception(why)
        self._answer.end(why)

    def close(self) -> None:
        """Whoever asked does not wait any more."""
        if self.begun.done() and not self.begun.cancelled() and self.begun.exception() is None:
            self.begun.result().close()
        self._answer.close()

    def take(self, place: int, part: Part) -> None:
        answer = self._answer
        answer.usage_estimated = answer.usage_estimated or part.estimated
        data = self._gathering.take(place, part)
        answer.put(data, early=self._gathering.held)

    def settle(self) -> None:
        """Lets the answer begin when it is whole, or too large to be held."""
        if self._gathering.over and not self.over:
            self.over = True
            self._answer.end(None)
        if self.over or self._answer.is_full:
            self.begin(self._answer)


def _joined(batch: Batch, askers: Mapping[int, _Asked]) -> Call:
    first = next(iter(askers.values()))
    items = [askers[each.request].inputs.items[each.place] for each in batch.inputs]
    body = first.joinery.joined(first.call.body, items, len(askers))
    if len(askers) == 1:
        # Engines take two calls of one name at the same time for one, or for a mistake.
        return replace(first.call, request_id=RequestId(f"{first.call.request_id}.{batch.number}"), body=body)
    told = [asked.call.sent for asked in askers.values() if asked.call.sent is not None]
    # A name or a trace belongs to one request: engines repeat names in their answers, and these go to all.
    return Call(RequestId(f"batch_{secrets.token_hex(12)}"), first.call.api, body, sent=partial(_tell_all, told))


def _tell_all(told: Sequence[Callable[[], None]]) -> None:
    for tell in told:
        tell()


async def _read(answer: Answer, bytes_max: int) -> bytearray:
    body = bytearray()
    while data := await answer.read():
        body += data
        if len(body) > bytes_max:
            raise Unshareable(f"the engine's answer to a batch has more than {bytes_max} bytes")
    return body
