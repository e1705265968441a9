"""One simulated client: sends a request at its scheduled time, retries it, and gives up after a timeout.

The client retries like the OpenAI SDK, and gives up if its patience runs out before the first token. Latencies are
measured from the scheduled time and include all attempts and the backoff between them, as a user would experience them.
They therefore also include the generator's lateness.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from time import monotonic_ns, time

from headgate.loadtest.connection import LoadTestConnection
from headgate.loadtest.connection_pool import ConnectionPool
from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.loadtest.request_writer import RequestWriter
from headgate.loadtest.response import LoadTestResponse
from headgate.loadtest.retries import wait_before_retry_s
from headgate.loadtest.senders import Sender
from headgate.simulation.options import CallerBehaviour


class LoadTestClient:
    def __init__(
        self,
        connections: ConnectionPool,
        questions: RequestWriter,
        senders: Sequence[Sender],
        *,
        caller: CallerBehaviour,
        start_ns: int,
        seed: int = 0,
        duplicate_after_s: float | None = None,
    ) -> None:
        self._connections = connections
        self._writer = questions
        self._start_ns = start_ns
        self._seed = seed
        self._senders = senders
        # Client behaviour of each sender.
        self._callers = [sender.caller or caller for sender in senders]
        self._duplicate_after_s = duplicate_after_s

    async def run(self, story: LoadTestRequest) -> None:
        """Runs one request and records it in `story`. If cancelled, the request counts as unfinished."""
        try:
            async with asyncio.timeout(self._patience_left_s(story)) as patience:
                begun = asyncio.Event()

                def begin() -> None:
                    begun.set()
                    _cancel_timeout(patience)

                async with self._with_duplicates(story, begun):
                    await self._ask(story, begin)
        except TimeoutError:
            story.outcome, story.code = LoadTestOutcome.ABANDONED, ""
            story.end_ns = self._now_ns()
        except asyncio.CancelledError:
            story.outcome, story.code = LoadTestOutcome.UNFINISHED, ""
            story.end_ns = self._now_ns()
            raise

    def _with_duplicates(self, story: LoadTestRequest, begun: asyncio.Event) -> "_BackgroundTask | nullcontext[None]":
        return (
            nullcontext() if self._duplicate_after_s is None else _BackgroundTask(self._send_duplicates(story, begun))
        )

    async def _send_duplicates(self, story: LoadTestRequest, begun: asyncio.Event) -> None:
        """Sends duplicates of a slow request, like a proxy that retries without cancelling the first attempt."""
        assert self._duplicate_after_s is not None
        async with asyncio.TaskGroup() as tries:
            for retries in range(1, self._callers[story.sender].retries + 1):
                await asyncio.sleep(self._duplicate_after_s)
                if begun.is_set():
                    return
                tries.create_task(self._try(replace(story, retries=retries), lambda: None))

    def _patience_left_s(self, story: LoadTestRequest) -> float | None:
        timeout_ns = self._callers[story.sender].client_timeout_ns
        return None if timeout_ns is None else (timeout_ns - (self._now_ns() - story.scheduled_ns)) / 1e9

    async def _ask(self, story: LoadTestRequest, on_first_token: Callable[[], None]) -> None:
        while True:
            headers = await self._try(story, on_first_token)
            wait_s = self._wait_before_retry_s(story, headers)
            if wait_s is None:
                return
            story.retries += 1
            story.retry_codes += (story.code,)
            await asyncio.sleep(wait_s)

    def _wait_before_retry_s(self, story: LoadTestRequest, headers: dict[bytes, bytes]) -> float | None:
        if (
            story.outcome not in (LoadTestOutcome.HTTP_ERROR, LoadTestOutcome.CONNECTION_FAILED)
            or story.retries >= self._callers[story.sender].retries
        ):
            return None
        return wait_before_retry_s(
            status=story.status,
            headers=headers,
            retries_taken=story.retries,
            # Each attempt has its own seed, so that the order of responses does not affect the backoff.
            chance=Random(f"{self._seed} retry {story.number} {story.retries}").random(),
            unix_s=time(),
        )

    async def _try(self, story: LoadTestRequest, on_first_token: Callable[[], None]) -> dict[bytes, bytes]:
        """Makes one attempt, records it in `story` and returns the response headers."""
        connection: LoadTestConnection | None = None
        sender = self._senders[story.sender]
        answer = LoadTestResponse(
            asyncio.get_running_loop().create_future(),
            on_first_token,
            api=sender.api,
            keep_body=sender.session is not None,
        )
        await self._connections.acquire()
        try:
            if story.started_ns is None:
                story.started_ns = self._now_ns()
            connection = await self._connect(story)
            if connection is not None:
                story.sent_ns = self._now_ns()
                connection.ask(self._writer.write(story, story.retries), answer)
                await answer.ended
                _record_response(story, answer)
        finally:
            self._connections.release(connection)
        return answer.headers

    async def _connect(self, story: LoadTestRequest) -> LoadTestConnection | None:
        try:
            return await self._connections.connection()
        except TimeoutError:
            story.code = "connect_timeout"
        except OSError as error:
            story.code = _connect_code(error)
        story.outcome, story.status, story.end_ns = LoadTestOutcome.CONNECTION_FAILED, None, self._now_ns()
        return None

    def _now_ns(self) -> int:
        return monotonic_ns() - self._start_ns


class _BackgroundTask:
    """Context manager that runs a task in the background. Awaits the task on exit, or cancels it on an exception."""

    def __init__(self, work: Coroutine[object, object, None]) -> None:
        self._work = work
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._work)

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _connect_code(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection_refused"
        case ssl.SSLError():
            return "tls_failed"
        case _:
            return "connect_failed"


def _cancel_timeout(patience: asyncio.Timeout) -> None:
    if not patience.expired():
        patience.reschedule(None)


def _record_response(story: LoadTestRequest, answer: LoadTestResponse) -> None:
    assert answer.end_ns is not None
    story.end_ns = answer.end_ns
    story.first_token_ns = answer.first_token_ns
    story.status = answer.status
    story.code = answer.code
    if answer.status in (429, 503):
        story.refusals += 1
        story.retry_afters += b"retry-after" in answer.headers
    story.request_id = answer.headers.get(b"x-request-id", b"").decode("latin-1")
    story.outcome = _outcome(answer)
    story.body = bytes(answer.body)
    if answer.status == 200:
        usage = answer.usage
        story.usage_reported = usage is not None
        story.prompt_tokens = story.prompt_tokens_requested if usage is None else usage.prompt_tokens
        story.output_tokens = answer.text_events if usage is None else usage.output_tokens


def _outcome(answer: LoadTestResponse) -> LoadTestOutcome:
    if answer.completed:
        return LoadTestOutcome.COMPLETED
    if answer.status is None:
        return LoadTestOutcome.CONNECTION_FAILED
    return LoadTestOutcome.INTERRUPTED if answer.status == 200 else LoadTestOutcome.HTTP_ERROR
