"""A malicious engine can affect only the responses to its own requests.

It must not be able to inject headers into the gateway's responses, respond to requests that it did not receive,
redirect the gateway or exhaust its memory.
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
    health = {"consecutive_failures_max": 1_000_000}
    config = a_config(engine.url, retry={"attempts_max": 1}, health=health, **settings)
    async with gateway_in_loop(config, folder) as gateway:
        yield gateway


async def ask(gateway: GatewayInLoop, content: str, *headers: bytes, **fields: Any) -> Answer:
    async with connected(gateway.url) as caller:
        await caller.send(request_of(body_of(content, **fields), *headers))
        return await caller.answer()


def said(answer: Answer) -> str | None:
    """Return the content of a successful response, or None for an error."""
    return json.loads(answer.body)["choices"][0]["message"]["content"] if answer.status == 200 else None


# Engine responses, keyed by their defect. "good" may reach the caller if the standard defines how to read the response.
ANSWERS: dict[str, tuple[bytes, ...]] = {
    "length and chunks": (HEAD + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS + POISON,),
    "chunks and length": (HEAD + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS + POISON,),
    "two lengths": (HEAD + LENGTH + b"content-length: 5\r\n\r\n" + GOOD + POISON,),
    "negative length": (HEAD + b"content-length: -1\r\n\r\n" + GOOD + POISON,),
    "overflowing length": (HEAD + b"content-length: %d\r\n\r\n" % (2**64 + len(GOOD)) + GOOD + POISON,),
    "another coding": (HEAD + b"transfer-encoding: gzip\r\n\r\n" + GOOD + POISON,),
    "chunk size with a sign": (HEAD + b"transfer-encoding: chunked\r\n\r\n+" + CHUNKS + POISON,),
    "overlong chunk size": (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\n" + POISON,),
    "chunk longer than declared": (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n" + GOOD + b"\r\n" + POISON,),
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
    "a redirect": (framed(b"{}", b"location: http://127.0.0.1:1/", status=b"302 Found"),),
    "a flood of informational responses": (
        b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" * 2000,
        HEAD + LENGTH + b"\r\n" + GOOD,
    ),
    "informational responses": (b"HTTP/1.1 100 Continue\r\n\r\n" * 3, HEAD + LENGTH + b"\r\n" + GOOD),
    "many headers": (HEAD + b"x-a: b\r\n" * 20_000 + LENGTH + b"\r\n" + GOOD,),
    "a long header": (HEAD + b"x-a: " + b"b" * 500_000 + b"\r\n" + LENGTH + b"\r\n" + GOOD,),
    "an immediate close": (),
}
MAY_BE_GOOD = {
    "length and chunks",
    "chunks and length",
    "informational responses",
    "a flood of informational responses",
    "many headers",
}
MAY_BE_GOOD |= {"a long header", "a status of 999"}


@pytest.mark.parametrize("closes", [True, False], ids=["closes", "keeps the connection"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_malformed_response_yields_valid_data_or_an_error_and_never_reaches_another_request(
    tmp_path: Path, name: str, closes: bool
) -> None:
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        engine.script.append(Script(ANSWERS[name], close=closes))
        # Repeated, because if the process is suspended, the deadline can pass before the engine gets the request.
        while engine.script:
            first = await ask(gateway, "first", b"x-headgate-deadline-ms: 300")
        # If bytes after the response were kept, a later request would get them.
        later = [said(await ask(gateway, f"later {number}")) for number in range(3)]

    assert b"poison" not in first.body
    assert (said(first) == "good" and name in MAY_BE_GOOD) or first.status in {502, 504}, first
    assert later == ["later 0", "later 1", "later 2"]


async def test_unsolicited_response_on_a_reused_connection_is_discarded(tmp_path: Path) -> None:
    """Response queue poisoning: the engine sends a second response after the first, in the same read or later."""
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        for pieces in ((framed(GOOD) + POISON,), (framed(GOOD), POISON), (framed(GOOD) + POISON[:20],)):
            engine.script.append(Script(pieces, close=False))
            assert said(await ask(gateway, "first")) in {"good", None}
            # Wait for the second piece to arrive.
            await asyncio.sleep(0.05)
            assert said(await ask(gateway, "second")) == "second"


@pytest.mark.process
async def test_early_response_is_not_used_for_the_next_request(tmp_path: Path) -> None:
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
async def test_engine_cannot_inject_response_headers(tmp_path: Path, kind: bytes, status: bytes) -> None:
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        engine.script.append(Script((framed(GOOD, b"x-evil: 1", b"x-request-id: 2", kind=kind, status=status),)))
        answer = await ask(gateway, "hi")

    assert not {b"set-cookie", b"x-evil"} & answer.headers.keys()
    assert answer.headers[b"x-request-id"].startswith(b"req_")
    assert all(0x20 <= byte < 0x7F for value in answer.headers.values() for byte in value)
    assert sum(map(len, answer.headers.values())) < 64 * 1024


async def test_endless_response_head_is_cut_off(tmp_path: Path) -> None:
    """The gateway closes the connection long before the head has filled its memory."""
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        piece = b"x-a: " + b"b" * 65_531 + b"\r\n"
        engine.script.append(Script((HEAD, *[piece] * 512, HANG)))
        answer = await ask(gateway, "hi")

    assert answer.status == 502


async def test_endless_event_is_cut_off(tmp_path: Path) -> None:
    async with HostileEngine() as engine, gateway_to(engine, tmp_path) as gateway:
        piece = b"data: " + b"x" * 65_536
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        engine.script.append(Script((head, *[piece] * 512, HANG)))
        answer = await ask(gateway, "hi", stream=True)

    assert answer.status == 502


async def test_endless_error_body_is_cut_off(tmp_path: Path) -> None:
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
        ({"prompt_tokens": 9, "completion_tokens": 500}, "reported 500 output tokens; the limit was 20"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_implausible_usage_is_flagged_and_not_charged(
    tmp_path: Path, usage: dict[str, int], flaw: str, stream: bool
) -> None:
    ends: list[AttemptEnded] = []

    class Watcher:
        def observe(self, event: Event, commands: object, now: int) -> None:
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

    assert (ends[0].ending, ends[0].usage, ends[0].usage_implausible) == (AttemptEnding.COMPLETED, None, True)
    assert flaw in ends[0].detail
    assert not ends[1].usage_implausible


async def test_large_image_usage_is_accepted(tmp_path: Path) -> None:
    ends: list[AttemptEnded] = []

    class Watcher:
        def observe(self, event: Event, commands: object, now: int) -> None:
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
    assert not end.usage_implausible
    assert end.usage is not None
    assert end.usage.prompt_tokens == 15_500
