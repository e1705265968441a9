"""Can a caller hide a request inside another, or leave the gateway in doubt where one ends?

Every trick of the corpus, in one piece and byte by byte. What is left of the connection afterwards must be either
closed or in step: a further request on it gets its own answer, and the engine gets exactly that request.
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
"""How long a message that is not whole is given to be answered all the same."""


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
    """What came of one trick."""

    status: int | None
    """Of the first answer; None where there was none."""
    closed: bool
    """Whether the connection was closed after it."""
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
    await stage.gateway.until_idle()
    return Seen(answer.status if answer else None, closed, [content(each.json) for each in stage.engine.requests])


async def answer_or_close(caller: Caller) -> Answer | None:
    """None where the gateway closed without one. That it does neither is a failure."""
    try:
        return await caller.answer()
    except Closed:
        return None


async def answer_or_silence(caller: Caller) -> Answer | None:
    """None where the gateway waits for more, as for any message that is not whole; limits of time end that."""
    try:
        return await caller.answer(seconds_max=UNFINISHED_S)
    except (Closed, TimeoutError):
        return None


async def is_out_of_use(caller: Caller) -> bool:
    """Whether the gateway has closed; otherwise a further request must get its own answer, and the only one."""
    await caller.send(request_of(body_of("after"), b"connection: close"))
    after = await answer_or_close(caller)
    if after is None:
        return True
    if after.status == 200:
        assert await caller.is_closed()
        return False
    # What stood behind the trick was understood as the beginning of a message, and refused as one.
    assert after.status in ABOUT_THE_MESSAGE
    assert await caller.is_closed()
    return True


def content(asked: dict) -> str:
    return asked["messages"][0]["content"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("trick", TRICKS, ids=str)
async def test_a_trick_ends_as_its_verdict_says(stage: Stage, trick: Trick) -> None:
    check(trick, await seen_of(stage, trick, byte_by_byte=False))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("trick", [each for each in TRICKS if not each.in_one_breath], ids=str)
async def test_a_trick_that_comes_byte_by_byte_ends_the_same(stage: Stage, trick: Trick) -> None:
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


def test_no_two_tricks_have_the_same_name() -> None:
    names = [trick.name for trick in TRICKS]

    assert len(names) == len(set(names))
