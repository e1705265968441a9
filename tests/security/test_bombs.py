"""Small bodies that would be expensive to decompress or parse are rejected or processed in linear time.

Compressed bodies are rejected without decompression. JSON depth is measured without building objects, and the body is
rejected or forwarded in time proportional to its size.
"""

import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from headgate.model.ticket import Api
from headgate.wire.request_body import BadRequest, RequestBody
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from tests.security.raw import CHUNKED, body_of, chunk, connected, head_of, request_of

MIB = 1024 * 1024
A_BOMB = b'{"model":"m","messages":[{"role":"user","content":"' + b"a" * 20 * MIB + b'"}]}'
OPENED_S_MAX = 5.0
"""CPU seconds for one body of a few megabytes, including parsing by the fake engine. Linear work takes tens of
milliseconds in the gateway and up to a second in the engine; anything worse than linear takes minutes.
"""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Stage:
    engine: FakeEngine
    gateway: GatewayInLoop


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path_factory.mktemp("bombs")) as gateway:
            yield Stage(engine, gateway)


# Compressed bodies

ENCODINGS = {
    "gzip": b"gzip",
    "x-gzip": b"x-gzip",
    "deflate": b"deflate",
    "brotli": b"br",
    "zstd": b"zstd",
    "compress": b"compress",
    "upper case": b"GZIP",
    "several": b"gzip, deflate",
    "identity and another": b"identity, gzip",
    "identity excluded": b"identity;q=0",
    "unknown encoding": b"banana",
    "two lines": b"identity\r\ncontent-encoding: gzip",
    "two lines, reversed": b"gzip\r\ncontent-encoding: identity",
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ENCODINGS)
async def test_compressed_body_is_rejected_before_it_is_read(stage: Stage, name: str) -> None:
    async with connected(stage.gateway.url) as caller:
        # Send only the head: a gateway that reads the body first would wait for it.
        await caller.send(head_of(b"content-encoding: " + ENCODINGS[name], b"content-length: 100"))
        answer = await caller.answer(seconds_max=PATIENCE_S)

    assert answer.status in {400, 415}
    assert "compressed" in answer.error["message"]
    assert stage.engine.requests == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("coding", [b"gzip, chunked", b"deflate, chunked", b"gzip", b"br, chunked"])
async def test_compressed_transfer_coding_is_rejected(stage: Stage, coding: bytes) -> None:
    bomb = gzip.compress(A_BOMB)
    async with connected(stage.gateway.url) as caller:
        await caller.send(head_of(b"transfer-encoding: " + coding) + chunk(bomb) + b"0\r\n\r\n")
        answer = await caller.answer(seconds_max=PATIENCE_S)

    assert answer.status in {400, 501}
    assert stage.engine.requests == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("packed", [gzip.compress(A_BOMB), zlib.compress(A_BOMB)], ids=["gzip", "zlib"])
async def test_undeclared_compressed_bytes_are_not_decompressed(stage: Stage, packed: bytes) -> None:
    async with connected(stage.gateway.url) as caller:
        await caller.send(request_of(packed))
        answer = await caller.answer(seconds_max=PATIENCE_S)
        await caller.send(head_of(CHUNKED, b"content-type: application/gzip") + chunk(packed) + b"0\r\n\r\n")
        chunked = await caller.answer(seconds_max=PATIENCE_S)

    assert (answer.status, chunked.status) == (400, 400)
    assert stage.engine.requests == []


@pytest.mark.asyncio(loop_scope="module")
async def test_identity_encoding_is_accepted(stage: Stage) -> None:
    async with connected(stage.gateway.url) as caller:
        await caller.send(request_of(body_of("hi"), b"content-encoding: identity"))
        assert (await caller.answer()).status == 200
    stage.engine.requests.clear()


# JSON


def with_field(name: bytes, value: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"hi"}],"' + name + b'":' + value + b"}"


DEEP = 50_000
MANY = 300_000
REFUSED = {
    "arrays": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "arrays in a field": with_field(b"x", b"[" * DEEP + b"]" * DEEP),
    "objects in a field": with_field(b"x", b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "alternating arrays and objects": with_field(b"x", b'[{"a":' * DEEP + b"1" + b"}]" * DEEP),
    "arrays in a message": b'{"model":"m","messages":[{"role":"user","content":' + b"[" * DEEP + b"]" * DEEP + b"}]}",
    "arrays that do not end": with_field(b"x", b"[" * MANY),
    "objects that do not end": with_field(b"x", b'{"a":' * MANY),
    "closing brackets without opening ones": with_field(b"x", b"]" * MANY),
    "escaped quotes between brackets": with_field(b"x", b'["\\"[[",' * DEEP + b"1" + b"]" * DEEP),
    "backslashes between brackets": with_field(b"x", b'["\\\\",' * DEEP + b"1" + b"]" * DEEP),
    "a string that does not end": with_field(b"x", b'"' + b"a" * MANY),
    "a string of escapes that does not end": with_field(b"x", b'"' + b"\\" * (2 * MANY + 1)),
    "an invalid number": with_field(b"x", b"-" * MANY),
    "a model name of escapes that is empty": b'{"messages":[1],"model":"' + b"\\u0020" * DEEP + b'"}',
    "a key that is not UTF-8": with_field(b"\xff" * 100, b"1"),
    "half a surrogate in a key": with_field(b"\\ud800", b"1"),
    "only spaces": b" " * 8 * MANY,
}
TAKEN = {
    "a long array": with_field(b"x", b"[" + b"1," * MANY + b"1]"),
    "many empty arrays": with_field(b"x", b"[" + b"[]," * MANY + b"[]]"),
    "many keys": with_field(b"x", b"{" + b",".join(b'"k%d":1' % number for number in range(MANY)) + b"}"),
    "many keys at the top": with_field(b"x", b"1,")[:-2]
    + b",".join(b'"k%d":1' % number for number in range(DEEP))
    + b"}",
    "the same key many times": with_field(b"x", b"1," + b",".join([b'"k":1'] * DEEP)),
    "a string of escapes": with_field(b"x", b'"' + b"\\u0041" * MANY + b'"'),
    "a string of backslashes": with_field(b"x", b'"' + b"\\\\" * MANY + b'"'),
    "a string of quotes": with_field(b"x", b'"' + b'\\"' * MANY + b'"'),
    "a string of brackets": with_field(b"x", b'"' + b"[{" * MANY + b'"'),
    "many strings of brackets": with_field(b"x", b"[" + b'"[[[[","{{{{",' * DEEP + b"1]"),
    "a number of many digits": with_field(b"x", b"1" * MANY),
    "a huge exponent": with_field(b"x", b"1e999999999"),
    "a tiny exponent": with_field(b"x", b"1e-999999999"),
}


@pytest.mark.process
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", REFUSED)
async def test_json_bomb_is_rejected_in_linear_time(stage: Stage, name: str) -> None:
    async with connected(stage.gateway.url) as caller:
        began = time.process_time()
        await caller.send(request_of(REFUSED[name]))
        answer = await caller.answer(seconds_max=PATIENCE_S)
        took = time.process_time() - began

    assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")
    assert len(answer.body) < 4096
    assert took < OPENED_S_MAX
    assert stage.engine.requests == []


@pytest.mark.process
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", TAKEN)
async def test_large_json_is_processed_in_linear_time(stage: Stage, name: str) -> None:
    async with connected(stage.gateway.url) as caller:
        began = time.process_time()
        await caller.send(request_of(TAKEN[name]))
        answer = await caller.answer(seconds_max=PATIENCE_S)
        took = time.process_time() - began
    engine_got = [bytes(each.raw) for each in stage.engine.requests]
    stage.engine.requests.clear()

    # Unusual bodies may be rejected too, but within the same time.
    assert answer.status in {200, 400}
    assert len(engine_got) == (answer.status == 200)
    assert took < OPENED_S_MAX


@pytest.mark.parametrize("name", ["model", "stream", "messages", "max_tokens", "n"])
def test_engine_sees_the_validated_value_of_a_duplicate_key(name: str) -> None:
    """Parsers differ in which of the two values they use, so only one of them may be forwarded."""
    first = {"model": '"small"', "stream": "false", "messages": '[{"role":"user"}]', "max_tokens": "1", "n": "1"}
    second = {"model": '"large"', "stream": "true", "messages": "[1]", "max_tokens": "9", "n": "2"}
    fields = ",".join(f'"{key}":{value}' for key, value in first.items())
    raw = f'{{{fields},"{name}":{second[name]}}}'.encode()
    try:
        body = RequestBody.parse(raw, Api.CHAT)
    except BadRequest:
        return
    sent = json.loads(body.encode(served_model=body.model), object_pairs_hook=list)

    assert [key for key, _ in sent].count(name) == 1
    if name in ("model", "stream"):
        assert dict(sent)[name] == getattr(body, name)


def test_depth_measurement_takes_linear_time(tmp_path: Path) -> None:
    """Ten times as many bytes must not take a hundred times as long."""

    def took(count: int) -> float:
        raws = [with_field(b"x", b'[{"a":"[\\"["},' * count + b"1" + b"]" * count), with_field(b"x", b"[" * count)]
        began = time.process_time()
        for raw in raws * 3:
            with pytest.raises(BadRequest):
                RequestBody.parse(raw, Api.CHAT)
        return time.process_time() - began

    small = min(took(20_000) for _ in range(3))
    large = min(took(200_000) for _ in range(3))

    assert large < 60 * small
