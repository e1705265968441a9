"""A caller cannot hide one request inside another.

The tests send every trick in the corpus both in one piece and byte by byte. Afterwards the connection must be closed or
in sync: a further request on it gets its own response, and the engine receives exactly that request.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from tests.security.raw import Answer, Caller, Closed, body_of, connected, request_of
from tests.security.smuggling_corpus import TRICKS, Trick, Verdict

ABOUT_THE_MESSAGE = {400, 408, 411, 417, 431, 501, 505}
UNFINISHED_S = 0.3
"""How long to wait for an unexpected response to an incomplete message, in seconds."""


@dataclass(frozen=True)
class Stage:
    engine: FakeEngine
    gateway: GatewayInLoop


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path_factory.mktemp("smuggling")) as gateway:
            yield Stage(engine, gateway)


@dataclass(frozen=True)
class Seen:
    """Result of one trick."""

    status: int | None
    """Status of the first response, or None if there was none."""
    closed: bool
    """Whether the connection was closed afterwards."""
    engine_got: list[str]


async def seen_of(stage: Stage, trick: Trick, *, byte_by_byte: bool) -> Seen:
    stage.engine.requests.clear()
    async with connected(stage.gateway.url) as caller:
        await (caller.drip(trick.sent) if byte_by_byte else caller.send(trick.sent))
        if trick.verdict is Verdict.NOT_ASKED:
            answer = await answer_or_silence(caller)
        else:
            answer = await answer_or_close(caller)
        closed = answer is None or await is_out_of_use(caller)
    await stage.gateway.wait_until_idle()
    return Seen(answer.status if answer else None, closed, [content(each.json) for each in stage.engine.requests])


async def answer_or_close(caller: Caller) -> Answer | None:
    """Read a response. Return None if the gateway closes the connection without one; other silence fails the test."""
    try:
        return await caller.answer()
    except Closed:
        return None


async def answer_or_silence(caller: Caller) -> Answer | None:
    """Read a response. Return None if the gateway closes the connection or awaits the rest of the message."""
    try:
        return await caller.answer(seconds_max=UNFINISHED_S)
    except (Closed, TimeoutError):
        return None


async def is_out_of_use(caller: Caller) -> bool:
    """Return whether the gateway has closed the connection. If not, another request must get only its own response."""
    await caller.send(request_of(body_of("after"), b"connection: close"))
    after = await answer_or_close(caller)
    if after is None:
        return True
    if after.status == 200:
        assert await caller.is_closed()
        return False
    # The bytes after the trick were parsed as the start of a message, which was rejected.
    assert after.status in ABOUT_THE_MESSAGE
    assert await caller.is_closed()
    return True


def content(asked: dict) -> str:
    return asked["messages"][0]["content"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("trick", TRICKS, ids=str)
async def test_trick_in_one_piece_matches_its_verdict(stage: Stage, trick: Trick) -> None:
    check(trick, await seen_of(stage, trick, byte_by_byte=False))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("trick", [each for each in TRICKS if not each.in_one_breath], ids=str)
async def test_trick_sent_byte_by_byte_matches_its_verdict(stage: Stage, trick: Trick) -> None:
    check(trick, await seen_of(stage, trick, byte_by_byte=True))


def check(trick: Trick, seen: Seen) -> None:
    got = [text for text in seen.engine_got if text != "after"]
    assert seen.engine_got.count("after") == (0 if seen.closed else 1)
    taken = seen.status == 200 and got == ["outer"]
    refused = (seen.status is None or seen.status in ABOUT_THE_MESSAGE) and seen.closed and got == []
    unserved = seen.status in {404, 405} and got == []
    allowed = {
        Verdict.TAKEN: taken and not seen.closed,
        Verdict.TAKEN_ALONE: taken and seen.closed,
        Verdict.TAKEN_ALONE_OR_CUT: seen.closed and (taken or seen.status is None) and got in ([], ["outer"]),
        Verdict.TAKEN_UNSERVED_OR_REFUSED: taken or unserved or refused,
        Verdict.REFUSED: refused,
        Verdict.TAKEN_OR_REFUSED: taken or refused,
        Verdict.UNSERVED: unserved,
        Verdict.UNSERVED_OR_REFUSED: unserved or refused,
        Verdict.NOT_ASKED: got == [],
    }
    assert allowed[trick.verdict], (trick.verdict.name, seen)


def test_trick_names_are_unique() -> None:
    names = [trick.name for trick in TRICKS]

    assert len(names) == len(set(names))
