"""Tests for an exchange with two concurrent attempts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, FirstToken, RequestWithdrawn
from headgate.core.summary import Summary
from headgate.edge.error_replies import ErrorReplies
from headgate.edge.exchange import Exchange
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.parsed_request import ParsedRequest
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api, Ticket
from headgate.model.units import EndpointId, ModelName, RequestId, TenantId
from headgate.ports.engine import Call, EngineFault
from headgate.ports.host import InterruptHandler
from headgate.ports.ledger import AttemptJournal
from headgate.wire.request_body import RequestBody
from testing.builders import abort, dispatch, end
from testing.in_process_client import InProcessClient

ONE = b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'
TWO = b'data: {"choices":[{"delta":{"content":"two"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class ScriptedHost:
    """A host that issues the test's commands and records all events."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self._orders: asyncio.Queue[Dispatch | End] = asyncio.Queue()
        self.aside: InterruptHandler

    def open(self, ticket: Ticket, on_interrupt: InterruptHandler) -> "ScriptedHost":
        self.aside = on_interrupt
        return self

    async def next(self) -> Dispatch | End:
        return await self._orders.get()

    def close(self) -> Dispatch | None:
        return None

    def order(self, order: Dispatch | End) -> None:
        self._orders.put_nowait(order)

    def report(self, event: Event) -> None:
        self.told.append(event)

    def summary(self) -> Summary:
        raise AssertionError("not used in these tests")

    @property
    def endings(self) -> dict[int, AttemptEnding]:
        ended = [event for event in self.told if isinstance(event, AttemptEnded)]
        assert len({event.attempt for event in ended}) == len(ended), "an attempt ended twice"
        return {event.attempt: event.ending for event in ended}

    @property
    def spoken(self) -> list[int]:
        return [event.attempt for event in self.told if isinstance(event, FirstToken)]


class Talker:
    """An engine and its response, both controlled by the test."""

    status = 200
    content_type = "text/event-stream"
    reports_progress = False
    usage_estimated = False
    secret = ""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.head: asyncio.Future[Talker] = asyncio.get_running_loop().create_future()
        self.listened_to = asyncio.Event()
        self.closed = False
        self.paused = False
        self._take: Callable[[bytes], bool]
        self._take_chunk: Callable[[bytes], bool] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, call: Call) -> "Talker":
        self.asked.set()
        return await self.head

    async def begin(self) -> None:
        """Sends the response head."""
        self.head.set_result(self)
        await self.listened_to.wait()

    def say(self, data: bytes) -> None:
        if self._take_chunk is not None and self._take_chunk(b"%x\r\n%b\r\n" % (len(data), data)):
            return
        if self._take(data) and not self._over.done():
            self._over.set_result(None)

    def break_off(self) -> None:
        self._over.set_exception(EngineFault("connection lost"))

    def take_body(self) -> bytes | None:
        return None

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        self._take, self._take_chunk = sink, chunk_sink
        self.listened_to.set()
        await self._over

    async def read(self) -> bytes:
        return b""

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def is_request_error(self, body: bytes) -> bool:
        return True

    def drain(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Scene:
    def __init__(self, caller: InProcessClient, journal: AttemptJournal | None = None) -> None:
        self.host = ScriptedHost()
        self.caller = caller
        self.first, self.second, self.third = Talker(), Talker(), Talker()
        self.attempts = OpenAttempts(self.host.report)
        ticket = Ticket(RequestId("r"), Api.CHAT, ModelName("m"), TenantId("t"), stream=True, prompt_bytes=10)
        body = RequestBody.parse(b'{"model":"m","stream":true,"messages":[{}]}', Api.CHAT)
        engines = {EndpointId("e1"): self.first, EndpointId("e2"): self.second, EndpointId("e3"): self.third}
        intake = ParsedRequest(ticket, body, {})
        exchange = Exchange(
            caller.client, intake, self.host, engines, self.attempts, replies=ErrorReplies(), journal=journal
        )
        self.running = asyncio.create_task(exchange.run())

    async def both_asked(self) -> None:
        self.host.order(dispatch("r", "e1"))
        await self.first.asked.wait()
        self.host.aside(hedge())
        await self.second.asked.wait()

    async def both_begun(self) -> None:
        await self.both_asked()
        await self.first.begin()
        await self.second.begin()

    async def completes(self) -> None:
        self.host.order(end("r", Outcome.COMPLETED))
        await self.running


def hedge() -> Dispatch:
    return replace(dispatch("r", "e2", attempt=2), hedge=True)


@asynccontextmanager
async def a_scene(caller: InProcessClient | None = None, journal: AttemptJournal | None = None) -> AsyncIterator[Scene]:
    """Yields a running exchange. Checks at the end that it is over and has left no state behind."""
    scene = Scene(caller or InProcessClient({}), journal)
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        yield scene
    assert scene.running.done()
    assert len(scene.attempts) == 0
    assert {task for task in asyncio.all_tasks() if not task.done()} == {asyncio.current_task()}


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_first_attempt_is_aborted_when_the_hedge_responds() -> None:
    async with a_scene() as scene:
        await scene.both_asked()
        await scene.second.begin()
        scene.second.say(TWO)
        await turns()
        assert scene.host.endings == {1: AttemptEnding.ABORTED}
        scene.second.say(DONE)
        await turns()
        assert scene.host.endings == {1: AttemptEnding.ABORTED, 2: AttemptEnding.COMPLETED}
        await scene.completes()

    assert scene.host.spoken == [2]
    assert scene.caller.heads == [200]
    assert scene.caller.body == TWO + DONE
    assert scene.caller.complete
    assert scene.second.closed


async def test_hedge_is_aborted_when_the_first_attempt_responds() -> None:
    async with a_scene() as scene:
        await scene.both_begun()
        scene.first.say(ONE)
        await turns()
        assert scene.host.endings == {2: AttemptEnding.ABORTED}
        assert scene.second.closed
        scene.first.say(DONE)
        await turns()
        await scene.completes()

    assert scene.host.spoken == [1]
    assert scene.caller.body == ONE + DONE


async def test_only_one_of_two_simultaneous_responses_is_used() -> None:
    async with a_scene() as scene:
        await scene.both_begun()
        scene.second.say(TWO)
        scene.first.say(ONE)
        scene.second.say(DONE)
        scene.first.say(DONE)
        await turns()
        await scene.completes()

    assert scene.host.spoken == [2]
    assert scene.host.endings == {1: AttemptEnding.ABORTED, 2: AttemptEnding.COMPLETED}
    assert scene.caller.body == TWO + DONE


async def test_chunks_are_forwarded_in_their_framing_once_the_attempt_has_responded() -> None:
    async with a_scene() as scene:
        await scene.both_begun()
        for data in (ONE, TWO, ONE):
            scene.first.say(data)
        assert scene.caller.chunks == 2
        [attempt] = [attempt for attempt in scene.attempts._open.values() if attempt.first_token_seen]
        assert attempt.events == 3
        scene.first.say(DONE)
        await turns()
        await scene.completes()

    assert scene.caller.body == ONE + TWO + ONE + DONE


async def test_chunk_of_a_stopped_attempt_is_not_forwarded() -> None:
    async with a_scene() as scene:
        scene.host.order(dispatch("r", "e1"))
        await scene.first.asked.wait()
        await scene.first.begin()
        scene.first.say(ONE)
        scene.first.say(TWO)
        [attempt] = scene.attempts._open.values()
        attempt.stop(AttemptEnding.TIMEOUT, "too slow", None)
        scene.first.say(TWO)
        await turns()
        scene.host.order(end("r", Outcome.ENGINE_TIMEOUT))
        await scene.running

    assert scene.caller.body.startswith(ONE + TWO)
    assert scene.caller.body.count(TWO) == 1
    assert scene.caller.chunks == 1


async def test_hedge_dispatched_after_the_first_token_is_not_sent() -> None:
    async with a_scene() as scene:
        scene.host.order(dispatch("r", "e1"))
        await scene.first.asked.wait()
        await scene.first.begin()
        scene.first.say(ONE)
        scene.host.aside(hedge())
        await turns()
        scene.first.say(DONE)
        await turns()
        await scene.completes()

    assert not scene.second.asked.is_set()
    assert scene.host.endings == {1: AttemptEnding.COMPLETED, 2: AttemptEnding.ABORTED}


async def test_hedge_aborted_before_it_starts_is_not_sent() -> None:
    async with a_scene() as scene:
        scene.host.order(dispatch("r", "e1"))
        await scene.first.asked.wait()
        scene.host.aside(hedge())
        scene.host.aside(abort("r", "e2", attempt=2, reason="too late"))
        await scene.first.begin()
        scene.first.say(ONE + DONE)
        await turns()
        await scene.completes()

    assert not scene.second.asked.is_set()
    assert scene.host.endings == {1: AttemptEnding.COMPLETED, 2: AttemptEnding.ABORTED}


async def test_failed_attempt_does_not_affect_the_other() -> None:
    async with a_scene() as scene:
        await scene.both_begun()
        scene.first.break_off()
        await turns()
        assert scene.host.endings == {1: AttemptEnding.FAILED}
        scene.second.say(TWO + DONE)
        await turns()
        await scene.completes()

    assert scene.caller.body == TWO + DONE
    assert scene.host.endings == {1: AttemptEnding.FAILED, 2: AttemptEnding.COMPLETED}


async def test_third_attempt_follows_when_both_have_failed() -> None:
    async with a_scene() as scene:
        await scene.both_begun()
        scene.second.break_off()
        scene.first.break_off()
        await turns()
        scene.host.order(dispatch("r", "e3", attempt=3))
        await scene.third.asked.wait()
        await scene.third.begin()
        scene.third.say(TWO + DONE)
        await turns()
        await scene.completes()

    assert scene.host.endings == {1: AttemptEnding.FAILED, 2: AttemptEnding.FAILED, 3: AttemptEnding.COMPLETED}
    assert scene.caller.body == TWO + DONE


async def test_rejection_by_the_hedge_engine_ends_the_request() -> None:
    async with a_scene() as scene:
        await scene.both_asked()
        scene.second.status = 400
        scene.second.head.set_result(scene.second)
        await turns()
        assert scene.host.endings == {2: AttemptEnding.REJECTED}
        scene.host.aside(abort("r", "e1", reason="rejected by the other engine"))
        scene.host.order(end("r", Outcome.ENGINE_REJECTED))
        await scene.running

    assert scene.host.endings == {1: AttemptEnding.ABORTED, 2: AttemptEnding.REJECTED}
    assert scene.caller.status == 400


async def test_cancelled_exchange_releases_both_slots() -> None:
    async with a_scene() as scene:
        await scene.both_begun()

        def tell(event: Event) -> None:
            scene.host.told.append(event)
            if isinstance(event, RequestWithdrawn) and 2 not in scene.host.endings:
                scene.host.aside(Abort(RequestId("r"), 2, EndpointId("e2"), event.cause.value))

        scene.host.report = tell  # type: ignore[method-assign]
        scene.running.cancel()
        await asyncio.wait([scene.running])
        assert scene.running.cancelled()

    assert scene.host.endings == {1: AttemptEnding.ABORTED, 2: AttemptEnding.ABORTED}
    assert scene.first.closed
    assert scene.second.closed
    assert scene.caller.heads == []


async def test_aborted_attempt_does_not_lift_the_other_attempts_backpressure() -> None:
    caller = InProcessClient({}, stops_at=lambda caller: caller.body.count(b"data:") == 2)
    async with a_scene(caller) as scene:
        await scene.both_begun()
        scene.second.say(TWO)
        await turns()
        assert scene.host.endings == {1: AttemptEnding.ABORTED}
        scene.second.say(TWO)
        assert scene.second.paused
        assert not scene.first.paused
        caller.resume_reading()
        assert not scene.second.paused
        scene.second.say(DONE)
        await turns()
        await scene.completes()

    assert caller.body == TWO + TWO + DONE


async def test_sweep_times_out_both_attempts() -> None:
    async with a_scene() as scene:
        await scene.both_begun()
        assert len(scene.attempts) == 2
        scene.attempts.sweep(list(scene.attempts._open.values()), asyncio.get_running_loop().time() + 61)
        await turns()
        assert scene.host.endings == {1: AttemptEnding.TIMEOUT, 2: AttemptEnding.TIMEOUT}
        scene.host.order(end("r", Outcome.ENGINE_TIMEOUT))
        await scene.running


class SlowJournal:
    """Acknowledges an attempt when the test sets `written`."""

    def __init__(self, why_not: str | None = None) -> None:
        self.asked: list[tuple[RequestId, int]] = []
        self.written = asyncio.Event()
        self._why_not = why_not

    async def wait_journaled(self, request_id: RequestId, attempt: int) -> str | None:
        self.asked.append((request_id, attempt))
        await self.written.wait()
        return self._why_not


async def test_attempt_is_sent_only_after_the_journal_has_recorded_it() -> None:
    journal = SlowJournal()
    async with a_scene(journal=journal) as scene:
        scene.host.order(dispatch("r", "e1"))
        await turns()
        sent_early = scene.first.asked.is_set()
        journal.written.set()
        await scene.first.asked.wait()
        await scene.first.begin()
        scene.first.say(ONE + DONE)
        await scene.completes()

    assert journal.asked == [(RequestId("r"), 1)]
    assert not sent_early


async def test_attempt_aborted_during_the_journal_write_is_never_sent() -> None:
    journal = SlowJournal()
    async with a_scene(journal=journal) as scene:
        scene.host.order(dispatch("r", "e1"))
        await turns()
        scene.host.aside(abort("r", "e1", reason="the client disconnected"))
        await turns()
        journal.written.set()
        scene.host.order(end("r", Outcome.CANCELLED))
        await scene.running

    assert scene.host.endings == {1: AttemptEnding.ABORTED}
    assert not scene.first.asked.is_set()


async def test_attempt_rejected_by_the_journal_is_not_sent_and_is_counted_as_a_gateway_fault() -> None:
    journal = SlowJournal("the disk hangs")
    journal.written.set()
    async with a_scene(journal=journal) as scene:
        scene.host.order(dispatch("r", "e1"))
        await turns()
        scene.host.order(end("r", Outcome.INTERNAL_ERROR))
        await scene.running

    [ended] = [event for event in scene.host.told if isinstance(event, AttemptEnded)]
    assert (ended.ending, ended.fault, ended.detail) == (AttemptEnding.FAILED, Fault.GATEWAY, "the disk hangs")
    assert not scene.first.asked.is_set()
    assert scene.caller.heads == [503]
