"""Can an engine that means harm reach a caller with more than its own answer?

It may spoil the answer that it was asked for. It may not put headers into ours, answer a question that it was not
asked, speak to a caller whose question went elsewhere, send us elsewhere, or fill our memory.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.core.events import AttemptEnded, AttemptEnding, Event
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from tests.security.hostile_engine import HANG, HostileEngine, Script, a_completion, framed
from tests.security.raw import Answer, body_of, connected, request_of

GOOD = a_completion("good")
POISON = framed(a_completion("poison"))
LENGTH = b"content-length: %d\r\n" % len(GOOD)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)


@asynccontextmanager
async def gateway_to(engine: HostileEngine, folder: Path, **settings: Any) -> AsyncIterator[GatewayInLoop]:
    health = {"failures_max": 1_000_000}
    config = a_config(engine.url, retry={"attempts_max": 1}, health=health, **settings)
    async with gateway_in_loop(config, folder) as gateway:
        yield gateway


async def ask(gateway: GatewayInLoop, content: str, *headers: bytes, **fields: Any) -> Answer:
    async with connected(gateway.url) as caller:
        await caller.send(request_of(body_of(content, **fields), *headers))
        return await caller.answer()


def said(answer: Answer) -> str | None:
    """What a good answer says; None for an error."""
    return json.loads(answer.body)["choices"][0]["message"]["content"] if answer.status == 200 else None


# What the engine sends, by what is wrong with it. "good" may reach its caller where the standard says how to read it.
ANSWERS: dict[str, tuple[bytes, ...]] = {
    "length and chunks": (HEAD + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS + POISON,),
    "chunks and length": (HEAD + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS + POISON,),
    "two lengths": (HEAD + LENGTH + b"content-length: 5\r\n\r\n" + GOOD + POISON,),
    "negative length": (HEAD + b"content-length: -1\r\n\r\n" + GOOD + POISON,),
    "overflowing length": (HEAD + b"content-length: %d\r\n\r\n" % (2**64 + len(GOOD)) + GOOD + POISON,),
    "another coding": (HEAD + b"transfer-encoding: gzip\r\n\r\n" + GOOD + POISON,),
    "chunk size with a sign": (HEAD + b"transfer-encoding: chunked\r\n\r\n+" + CHUNKS + POISON,),
    "chunk size without end": (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\n" + POISON,),
    "chunk longer than told": (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n" + GOOD + b"\r\n" + POISON,),
    "length longer than the body": (HEAD + b"content-length: %d\r\n\r\n" % (len(GOOD) + 5) + GOOD,),
    "length shorter than the body": (HEAD + b"content-length: %d\r\n\r\n" % (len(GOOD) - 5) + GOOD + POISON,),
    "a header without a colon": (HEAD + b"nothing\r\n" + LENGTH + b"\r\n" + GOOD,),
    "a header with a NUL": (HEAD + b"x-a: b\x00c\r\n" + LENGTH + b"\r\n" + GOOD,),
    "no status": (b"HTTP/1.1\r\n\r\n",),
    "a status of two digits": (b"HTTP/1.1 20 OK\r\n" + LENGTH + b"\r\n" + GOOD,),
    "a status of 999": (b"HTTP/1.1 999 OK\r\n" + LENGTH + b"\r\n" + GOOD,),
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n",),
    "HTTP/2": (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" * 20,),
    "switching protocols": (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + POISON,),
    "no content, with a body": (b"HTTP/1.1 204 No Content\r\n" + LENGTH + b"\r\n" + POISON,),
    "not modified, with a body": (b"HTTP/1.1 304 Not Modified\r\n" + LENGTH + b"\r\n" + POISON,),
    "elsewhere": (framed(b"{}", b"location: http://127.0.0.1:1/", status=b"302 Found"),),
    "a flood of promises": (b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" * 2000, HEAD + LENGTH + b"\r\n" + GOOD),
    "promises": (b"HTTP/1.1 100 Continue\r\n\r\n" * 3, HEAD + LENGTH + b"\r\n" + GOOD),
    "many headers": (HEAD + b"x-a: b\r\n" * 20_000 + LENGTH + b"\r\n" + GOOD,),
    "a long header": (HEAD + b"x-a: " + b"b" * 500_000 + b"\r\n" + LENGTH + b"\r\n" + GOOD,),
    "nothing but a close": (),
}
MAY_BE_GOOD = {"length and chunks", "chunks and length", "promises", "a flood of promises", "many headers"}
MAY_BE_GOOD |= {"a long header", "a status of 999"}


@pytest.mark.parametrize("closes", [True, False], ids=["closes", "keeps the connection"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_out_of_order_is_good_or_an_error_and_never_anothers(
    tmp_path: Path, name: str, closes: bool
) -> None:
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        engine.script.append(Script(ANSWERS[name], close=closes))
        # Retried, because a pause of the process can let the deadline pass before the engine gets the request.
        while engine.script:
            first = await ask(gateway, "first", b"x-headgate-deadline-ms: 300")
        # If what stood behind the answer were kept, somebody who asks later would get it.
        later = [said(await ask(gateway, f"later {number}")) for number in range(3)]

    assert b"poison" not in first.body
    assert (said(first) == "good" and name in MAY_BE_GOOD) or first.status in {502, 504}, first
    assert later == ["later 0", "later 1", "later 2"]


async def test_what_an_engine_says_unasked_on_a_kept_connection_answers_nobody(tmp_path: Path) -> None:
    """Response-queue poisoning: a second answer behind the first, in the same read or later."""
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        for pieces in ((framed(GOOD) + POISON,), (framed(GOOD), POISON), (framed(GOOD) + POISON[:20],)):
            engine.script.append(Script(pieces, close=False))
            assert said(await ask(gateway, "first")) in {"good", None}
            # The late piece may be under way yet.
            await asyncio.sleep(0.05)
            assert said(await ask(gateway, "second")) == "second"


@pytest.mark.process
async def test_an_answer_before_the_question_was_sent_does_not_answer_the_next_one(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        engine.script.append(Script((framed(GOOD),), close=False, early=True))
        early = await ask(gateway, long)
        assert said(early) in {"good", None}
        assert said(await ask(gateway, "second")) == "second"


@pytest.mark.parametrize(
    "kind",
    [
        b"application/json\r\nset-cookie: a=b",
        b"application/json\nset-cookie: a=b",
        b"application/json\rset-cookie: a=b",
        b"application/json\x00set-cookie: a=b",
        b"application/json; a=\xff\xfe",
        b"application/json; \x01\x7f",
        b"application/json; " + b"a" * 100_000,
    ],
)
@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
async def test_nothing_that_an_engine_puts_into_its_head_becomes_a_header_of_ours(
    tmp_path: Path, kind: bytes, status: bytes
) -> None:
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        engine.script.append(Script((framed(GOOD, b"x-evil: 1", b"x-request-id: 2", kind=kind, status=status),)))
        answer = await ask(gateway, "hi")

    assert not {b"set-cookie", b"x-evil"} & answer.headers.keys()
    assert answer.headers[b"x-request-id"].startswith(b"req_")
    assert all(0x20 <= byte < 0x7F for value in answer.headers.values() for byte in value)
    assert sum(map(len, answer.headers.values())) < 64 * 1024


async def test_bytes_before_the_answer_are_not_kept_for_ever(tmp_path: Path) -> None:
    """A head without an end: the engine is let go long before it has filled the memory."""
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        piece = b"x-a: " + b"b" * 65_531 + b"\r\n"
        engine.script.append(Script((HEAD, *[piece] * 512, HANG)))
        answer = await ask(gateway, "hi")

    assert answer.status == 502


async def test_an_event_without_end_is_not_kept_for_ever(tmp_path: Path) -> None:
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        piece = b"data: " + b"x" * 65_536
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        engine.script.append(Script((head, *[piece] * 512, HANG)))
        answer = await ask(gateway, "hi", stream=True)

    assert answer.status == 502


async def test_an_error_body_without_end_is_not_kept_for_ever(tmp_path: Path) -> None:
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\r\n"
        engine.script.append(Script((head, *[b"x" * 65_536] * 512, HANG)))
        answer = await ask(gateway, "hi")

    assert answer.status in {400, 502}
    assert len(answer.body) <= 128 * 1024


@pytest.mark.parametrize(
    ("usage", "flaw"),
    [
        ({"prompt_tokens": 10**9, "completion_tokens": 1}, "reported 1000000000 tokens for a prompt of"),
        ({"prompt_tokens": 9, "completion_tokens": 500}, "reported 500 output tokens and was asked for 20"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_implausible_usage_is_flagged_and_not_charged(
    tmp_path: Path, usage: dict[str, int], flaw: str, stream: bool
) -> None:
    ends: list[AttemptEnded] = []

    class Watcher:
        def saw(self, event: Event, commands: object, now: int) -> None:
            del commands, now
            if isinstance(event, AttemptEnded):
                ends.append(event)

    body = GOOD[:-1] + b', "usage": %b}' % json.dumps(usage).encode()
    answer = framed(body)
    if stream:
        chunk = {"choices": [{"index": 0, "delta": {"content": "good"}}], "usage": usage}
        answer = framed(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chunk).encode(), kind=b"text/event-stream")
    tenants = {"laptop": {"limits": {"tokens_per_minute": 100_000}}}
    async with HostileEngine() as engine:
        engine.script.extend([Script((answer,)), Script((framed(GOOD),))])
        config = a_config(engine.url, tenants=tenants)
        async with gateway_in_loop(config, tmp_path, observers=[Watcher()]) as gateway:
            assert (await ask(gateway, "hi", stream=stream, max_tokens=20)).status == 200
            assert said(await ask(gateway, "hi", max_tokens=20)) == "good"

    assert (ends[0].ending, ends[0].usage, ends[0].disbelieved) == (AttemptEnding.COMPLETED, None, True)
    assert flaw in ends[0].detail
    assert not ends[1].disbelieved


async def test_usage_of_a_large_image_is_accepted(tmp_path: Path) -> None:
    ends: list[AttemptEnded] = []

    class Watcher:
        def saw(self, event: Event, commands: object, now: int) -> None:
            del commands, now
            if isinstance(event, AttemptEnded):
                ends.append(event)

    photo = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer = framed(GOOD[:-1] + b', "usage": {"prompt_tokens": 15500, "completion_tokens": 1}}')
    async with HostileEngine() as engine:
        engine.script.append(Script((answer,)))
        async with gateway_in_loop(a_config(engine.url), tmp_path, observers=[Watcher()]) as gateway:
            messages = [{"role": "user", "content": [photo]}]
            assert (await ask(gateway, "", messages=messages, max_tokens=20)).status == 200

    [end] = ends
    assert not end.disbelieved
    assert end.usage is not None
    assert end.usage.prompt_tokens == 15_500
