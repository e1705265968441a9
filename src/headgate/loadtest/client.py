"""How does one client behave, from its scheduled moment to its end?

It asks, tries again as the official client does, and leaves if its patience ends before the first token. All its
latencies count from the scheduled moment, over all tries and the waits between them: that is what a user feels. A user
is not served sooner because the generator was late.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from time import monotonic_ns, time

from headgate.loadtest.answer import Answer
from headgate.loadtest.connection import Connection
from headgate.loadtest.connections import Connections
from headgate.loadtest.endings import Ending, Story
from headgate.loadtest.questions import Questions
from headgate.loadtest.retries import RETRIES, wait_before_retry_s


class Client:
    def __init__(
        self,
        connections: Connections,
        questions: Questions,
        *,
        start_ns: int,
        seed: int = 0,
        patience_s: float | None = None,
        retries_most: int = RETRIES,
        ask_again_s: float | None = None,
    ) -> None:
        self._connections = connections
        self._questions = questions
        self._start_ns = start_ns
        self._seed = seed
        self._patience_s = patience_s
        self._retries_most = retries_most
        self._ask_again_s = ask_again_s

    async def live(self, story: Story) -> None:
        """Lives through one request and writes it down. Cancelled, it leaves the request unfinished."""
        try:
            async with asyncio.timeout(self._patience_left_s(story)) as patience:
                begun = asyncio.Event()

                def begin() -> None:
                    begun.set()
                    _end_patience(patience)

                async with self._beside(story, begun):
                    await self._ask(story, begin)
        except TimeoutError:
            story.ending, story.code = Ending.ABANDONED, ""
            story.end_ns = self._now_ns()
        except asyncio.CancelledError:
            story.ending, story.code = Ending.UNFINISHED, ""
            story.end_ns = self._now_ns()
            raise

    def _beside(self, story: Story, begun: asyncio.Event) -> "_Beside | nullcontext[None]":
        return nullcontext() if self._ask_again_s is None else _Beside(self._ask_again(story, begun))

    async def _ask_again(self, story: Story, begun: asyncio.Event) -> None:
        """As a proxy does that gives up a try without telling: the same is asked once more, and then runs twice."""
        assert self._ask_again_s is not None
        async with asyncio.TaskGroup() as tries:
            for retries in range(1, self._retries_most + 1):
                await asyncio.sleep(self._ask_again_s)
                if begun.is_set():
                    return
                tries.create_task(self._try(replace(story, retries=retries), lambda: None))

    def _patience_left_s(self, story: Story) -> float | None:
        if self._patience_s is None:
            return None
        return self._patience_s - (self._now_ns() - story.scheduled_ns) / 1e9

    async def _ask(self, story: Story, on_first_token: Callable[[], None]) -> None:
        while True:
            headers = await self._try(story, on_first_token)
            wait_s = self._wait_before_retry_s(story, headers)
            if wait_s is None:
                return
            story.retries += 1
            story.retried_for += (story.code,)
            await asyncio.sleep(wait_s)

    def _wait_before_retry_s(self, story: Story, headers: dict[bytes, bytes]) -> float | None:
        if story.ending not in (Ending.REFUSED, Ending.UNREACHED) or story.retries >= self._retries_most:
            return None
        return wait_before_retry_s(
            status=story.status,
            headers=headers,
            retries_taken=story.retries,
            # Chance of its own for each try: the order in which answers come must not change anyone's wait.
            chance=Random(f"{self._seed} retry {story.number} {story.retries}").random(),
            unix_s=time(),
        )

    async def _try(self, story: Story, on_first_token: Callable[[], None]) -> dict[bytes, bytes]:
        """One try, noted in the story; the answer's headers."""
        connection: Connection | None = None
        answer = Answer(asyncio.get_running_loop().create_future(), on_first_token)
        await self._connections.turn()
        try:
            if story.begun_ns is None:
                story.begun_ns = self._now_ns()
            connection = await self._connect(story)
            if connection is not None:
                story.sent_ns = self._now_ns()
                connection.ask(self._questions.write(story.number, story.retries), answer)
                await answer.ended
                _note(story, answer)
        finally:
            self._connections.release(connection)
        return answer.headers

    async def _connect(self, story: Story) -> Connection | None:
        try:
            return await self._connections.take()
        except TimeoutError:
            story.code = "connect_timeout"
        except OSError as error:
            story.code = _connect_code(error)
        story.ending, story.status, story.end_ns = Ending.UNREACHED, None, self._now_ns()
        return None

    def _now_ns(self) -> int:
        return monotonic_ns() - self._start_ns


class _Beside:
    """Work that goes on beside something else. It is waited for, and ends early where that was ended early."""

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


def _end_patience(patience: asyncio.Timeout) -> None:
    if not patience.expired():
        patience.reschedule(None)


def _note(story: Story, answer: Answer) -> None:
    assert answer.end_ns is not None
    story.end_ns = answer.end_ns
    story.first_token_ns = answer.first_token_ns
    story.status = answer.status
    story.code = answer.code
    story.request_id = answer.headers.get(b"x-request-id", b"").decode("latin-1")
    story.ending = _ending(answer)
    if answer.status == 200:
        usage = answer.usage
        story.tokens_told = usage is not None
        story.prompt_tokens = story.prompt_tokens_asked if usage is None else usage.prompt_tokens
        story.output_tokens = answer.texts if usage is None else usage.output_tokens


def _ending(answer: Answer) -> Ending:
    if answer.completed:
        return Ending.COMPLETED
    if answer.status is None:
        return Ending.UNREACHED
    return Ending.BROKEN if answer.status == 200 else Ending.REFUSED
