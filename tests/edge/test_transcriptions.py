"""Tests for /v1/audio/transcriptions and /v1/audio/translations through the gateway."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest

from headgate.edge.client import Client
from headgate.edge.mirroring import DiscardingTransport
from headgate.edge.parsed_request import read_request
from headgate.model.ticket import Api
from headgate.model.units import RequestId, TenantId
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_responses import token_text
from testing.forms import BOUNDARY, CONTENT_TYPE, SPEECH, a_field, a_file, a_form
from testing.gateway import NO_TARGETS, GatewayInLoop, a_config, gateway_in_loop
from tests.edge.test_hosted_overflow import stage as overflow_stage

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
PATHS = [TRANSCRIPTIONS, TRANSLATIONS]
FORM = a_form(a_field("model", "m"), a_file())
TEXT = "".join(map(token_text, range(4)))


def sdk(gateway: GatewayInLoop) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)


def post(
    gateway: GatewayInLoop, form: bytes | AsyncIterator[bytes] = FORM, path: str = TRANSCRIPTIONS, **headers: str
) -> Any:
    headers = {"content-type": CONTENT_TYPE} | {name.replace("_", "-"): value for name, value in headers.items()}
    data = BytesIO(form) if isinstance(form, bytes) else form
    return gateway.http.post(gateway.url + path, data=data, headers=headers)


@asynccontextmanager
async def stage(folder: Path, kind: str = "vllm", **settings: Any) -> AsyncIterator[tuple[FakeEngine, GatewayInLoop]]:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, engine=kind, **settings), folder) as gateway:
            yield engine, gateway


async def booked(gateway: GatewayInLoop) -> tuple[float, float]:
    """The prompt and output tokens in the metrics."""
    await gateway.wait_until_idle()
    async with gateway.http.get(gateway.admin_url + "/metrics") as page:
        lines = (await page.text()).splitlines()
    counts = [line.split() for line in lines if line.startswith("headgate_tokens_total{")]
    prompt, output = (
        sum(float(value) for name, value in counts if f'direction="{direction}"' in name)
        for direction in ("prompt", "output")
    )
    return prompt, output


@pytest.mark.parametrize("path", PATHS)
async def test_form_is_forwarded_billed_and_explained(tmp_path: Path, path: str) -> None:
    async with stage(tmp_path) as (engine, gateway):
        form = a_form(a_file(), a_field("language", "en"), a_field("model", "m"), a_field("cache_salt", "x"))
        async with post(gateway, form, path) as answer:
            body = await answer.json()
        tokens = await booked(gateway)
        async with gateway.http.get(f"{gateway.admin_url}/explain/{answer.headers['x-request-id']}") as page:
            explained = await page.text()
        received = await engine.next_request()

    assert (answer.status, body) == (200, {"text": TEXT, "usage": {"type": "duration", "seconds": 3}})
    assert received.path == path
    assert received.headers["content-type"].startswith("multipart/form-data; boundary=headgate-")
    assert received.form.texts == [("language", "en"), ("model", "fake")]
    assert received.form.file == SPEECH
    assert tokens == (150, 0), "the three seconds that the engine reported"
    assert f"{path.rpartition('/')[2]} for model m" in explained


# The SDK marks translations as deprecated.
@pytest.mark.filterwarnings("ignore:deprecated")
async def test_openai_sdk_transcribes_and_translates(tmp_path: Path) -> None:
    async with stage(tmp_path) as (engine, gateway), sdk(gateway) as client:
        whole = await client.audio.transcriptions.create(
            file=("speech.wav", SPEECH),
            model="m",
            prompt="Names: Ann.",
            temperature=0.2,
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
        english = await client.audio.translations.create(file=SPEECH, model="m", response_format="json")
        received = [each.form.texts for each in engine.requests]

    assert (whole.text, whole.duration, english.text) == (TEXT, 3.0, TEXT)
    assert sorted(received[0]) == [
        ("model", "fake"),
        ("prompt", "Names: Ann."),
        ("response_format", "verbose_json"),
        ("temperature", "0.2"),
        ("timestamp_granularities[]", "segment"),
        ("timestamp_granularities[]", "word"),
    ]
    assert received[1] == [("model", "fake"), ("response_format", "json")]


@pytest.mark.parametrize("format_name", ["text", "srt", "vtt"])
async def test_plain_formats_pass_through(tmp_path: Path, format_name: Any) -> None:
    async with stage(tmp_path) as (engine, gateway), sdk(gateway) as client:
        # Speech that looks like usage is not billed as such.
        engine.behaviour = Behaviour(body=b'"usage": {"prompt_tokens": 1, "completion_tokens": 1} ')
        text = await client.audio.transcriptions.create(file=SPEECH, model="m", response_format=format_name)
        tokens = await booked(gateway)

    assert text == '"usage": {"prompt_tokens": 1, "completion_tokens": 1} '
    assert tokens == (0, 0)


async def test_empty_transcript_passes_through(tmp_path: Path) -> None:
    async with stage(tmp_path) as (engine, gateway):
        engine.behaviour = Behaviour(tokens=0)
        async with post(gateway, a_form(a_field("model", "m"), a_field("response_format", "text"), a_file())) as answer:
            assert (answer.status, await answer.read()) == (200, b"")


async def test_openai_sdk_streams_events(tmp_path: Path) -> None:
    async with stage(tmp_path, "openai_compatible") as (engine, gateway), sdk(gateway) as client:
        stream = await client.audio.transcriptions.create(file=SPEECH, model="m", stream=True)
        events = [event async for event in stream]
        tokens = await booked(gateway)
        received = await engine.next_request()

    assert [event.type for event in events] == [*["transcript.text.delta"] * 4, "transcript.text.done"]
    assert events[-1].text == TEXT  # pyright: ignore[reportAttributeAccessIssue]
    assert received.form.texts == [("model", "fake"), ("stream", "true")]
    assert tokens == (7, 4)


@pytest.mark.parametrize("wants_usage", [False, True])
async def test_stream_of_vllm_is_asked_for_usage(tmp_path: Path, *, wants_usage: bool) -> None:
    asked = [a_field("stream", "true")] + [a_field("stream_include_usage", "true")] * wants_usage
    async with stage(tmp_path) as (engine, gateway):
        async with post(gateway, a_form(a_field("model", "m"), a_file(), *asked)) as answer:
            events = (await answer.read()).split(b"\n\n")
        tokens = await booked(gateway)
        received = await engine.next_request()

    assert ("stream_include_usage", "true") in received.form.texts
    assert events[-2] == b"data: [DONE]"
    assert (b'"usage"' in events[-3]) is wants_usage
    assert len(events) == 6 + wants_usage
    assert tokens == (7, 4)


async def test_engine_that_ignores_the_stream_field_is_not_at_fault(tmp_path: Path) -> None:
    async with stage(tmp_path) as (engine, gateway):
        engine.behaviour = Behaviour(body=b'{"text":"hi"}', content_type="application/json")
        async with post(gateway, a_form(a_field("model", "m"), a_field("stream", "1"), a_file())) as answer:
            assert (answer.status, await answer.json()) == (200, {"text": "hi"})
        [endpoint] = (await gateway.status())["endpoints"]

    assert (len(engine.requests), endpoint["state"]) == (1, "ready")


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Behaviour(cut_after=2), "the engine"),
        (Behaviour(error_after=2), "the engine reported an error"),
        (Behaviour(without_done=True, tokens=2), "the stream ended before its last event"),
    ],
    ids=["cut", "error", "no end"],
)
async def test_broken_stream_raises_an_error_in_the_sdk(tmp_path: Path, behaviour: Behaviour, message: str) -> None:
    async with stage(tmp_path, "openai_compatible") as (engine, gateway), sdk(gateway) as client:
        engine.behaviour = behaviour
        stream = await client.audio.transcriptions.create(file=SPEECH, model="m", stream=True)
        got: list[str] = []

        async def receive() -> None:
            async for event in stream:
                got.append(event.type)  # noqa: PERF401 (the events before the error)

        with pytest.raises(openai.APIError, match=message):
            await receive()

    assert got == ["transcript.text.delta"] * 2
    assert len(engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_failed_attempt_is_retried_with_the_same_file(tmp_path: Path, *, stream: bool) -> None:
    large = bytes(range(256)) * 8192
    form = a_form(a_field("model", "m"), a_field("stream", str(stream)), a_file(large))
    async with FakeEngine() as broken, FakeEngine() as sound:
        broken.behaviour = Behaviour(status=500)
        async with gateway_in_loop(a_config(broken.url, sound.url), tmp_path) as gateway:
            while not broken.requests:
                async with post(gateway, form) as answer:
                    await answer.read()

    assert (answer.status, answer.headers["x-headgate-attempts"]) == (200, "2")
    assert broken.requests[-1].form.file == sound.requests[-1].form.file == large


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("status", "body"), [(404, b'{"detail":"Not Found"}'), (405, b""), (501, b"")])
async def test_engine_without_this_api_gets_one_request(tmp_path: Path, path: str, status: int, body: bytes) -> None:
    async with stage(tmp_path) as (engine, gateway):
        engine.behaviour = Behaviour(status=status, body=body)
        async with post(gateway, path=path) as answer:
            message = (await answer.json())["error"]["message"]
        [endpoint] = (await gateway.status())["endpoints"]

    assert (answer.status, len(engine.requests), endpoint["state"]) == (404, 1, "ready")
    assert message == f"the engine does not offer {path} for this model; use another API"


async def test_deadline_ends_the_request(tmp_path: Path) -> None:
    async with stage(tmp_path) as (engine, gateway):
        engine.behaviour = Behaviour(hang_before_head=True)
        async with post(gateway, x_headgate_deadline_ms="3000") as answer:
            error = (await answer.json())["error"]
        received = await engine.next_request()
        await received.client_left.wait()

    assert (answer.status, error["code"]) == (504, "deadline_exceeded")


async def test_disconnect_of_the_client_ends_the_attempt(tmp_path: Path) -> None:
    async with stage(tmp_path) as (engine, gateway):
        engine.behaviour = Behaviour(hang_before_head=True)
        asking = asyncio.ensure_future(post(gateway))
        received = await engine.next_request()
        asking.cancel()
        await received.client_left.wait()
        await gateway.wait_until_idle()


async def test_disconnect_in_the_middle_of_the_file_reaches_no_engine(tmp_path: Path) -> None:
    async with stage(tmp_path) as (engine, gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(gateway.url).port)
        head = (
            f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: a\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: 900000\r\n"
        )
        writer.write(head.encode() + b"\r\n" + FORM[:50_000])
        await gateway.wait_for_status(lambda status: status["requests_open"])
        writer.close()
        await gateway.wait_until_idle()
        assert await reader.read() == b""

    assert engine.requests == []


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("limits", "accepted"),
    [
        ({"body_bytes_max": "64KiB"}, False),
        ({"audio_body_bytes_max": "64KiB"}, False),
        ({"body_bytes_max": "1KiB", "audio_body_bytes_max": "1MiB"}, True),
    ],
)
async def test_size_of_the_file_is_limited(
    tmp_path: Path, limits: dict[str, str], *, accepted: bool, chunked: bool
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield FORM[:40_000]
        yield FORM[40_000:]

    async with stage(tmp_path, limits=limits) as (engine, gateway):
        data: Any = pieces() if chunked else FORM
        async with post(gateway, data) as answer:
            body = await answer.json()
        async with gateway.post({"model": "m", "messages": [{"role": "user", "content": "x" * 70_000}]}) as other:
            pass

    assert (answer.status, len(engine.requests)) == ((200, 1) if accepted else (413, int(other.status == 200)))
    assert other.status == (200 if "body_bytes_max" not in limits else 413)
    if not accepted:
        assert body["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("size", [1, 3, len(BOUNDARY) + 1, 1000])
async def test_boundary_may_be_split_across_chunks(tmp_path: Path, size: int) -> None:
    raw = a_form(a_field("model", "m"), a_file(SPEECH[:200]))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    async with stage(tmp_path) as (engine, gateway):
        async with post(gateway, pieces()) as answer:
            assert answer.status == 200

    assert engine.requests[0].form.file == SPEECH[:200]


@pytest.mark.parametrize(
    ("form", "content_type", "param"),
    [
        (FORM, "application/json", None),
        (FORM, "multipart/form-data", None),
        (FORM, "multipart/form-data; boundary=other", None),
        (b'{"model": "m"}', CONTENT_TYPE, None),
        (b"", CONTENT_TYPE, None),
        (b"x" * 1_000_000 + FORM, CONTENT_TYPE, None),
        (FORM + FORM, CONTENT_TYPE, None),
        (FORM[:-10], CONTENT_TYPE, None),
        (a_form(*[a_field("x", "")] * 100_000), CONTENT_TYPE, None),
        (a_form(a_field("model", "m"), a_field("model", "n"), a_file()), CONTENT_TYPE, "model"),
        (a_form(a_file()), CONTENT_TYPE, "model"),
        (a_form(a_field("model", "m")), CONTENT_TYPE, "file"),
    ],
    ids=lambda value: None,
)
async def test_malformed_form_is_rejected(tmp_path: Path, form: bytes, content_type: str, param: str | None) -> None:
    async with stage(tmp_path) as (engine, gateway):
        async with post(gateway, form, content_type=content_type) as answer:
            error = (await answer.json())["error"]

    assert (answer.status, error["code"], error["param"]) == (400, "invalid_request_error", param)
    assert engine.requests == []


async def test_form_of_another_client_library_is_understood(tmp_path: Path) -> None:
    data = aiohttp.FormData()
    data.add_field("model", "m")
    data.add_field("file", SPEECH, filename="a b;c.mp3", content_type="audio/mpeg")
    async with stage(tmp_path) as (engine, gateway):
        async with gateway.http.post(gateway.url + TRANSCRIPTIONS, data=data) as answer:
            assert answer.status == 200

    assert engine.requests[0].form.file == SPEECH
    assert 'filename="audio.mp3"' in engine.requests[0].form.file_headers


async def test_hosted_provider_receives_no_private_fields(tmp_path: Path) -> None:
    form = a_form(
        a_field("model", "m"), a_field("user", "ann"), a_field("metadata[team]", "a"), a_file(filename="ann.mp3")
    )  # fmt: skip
    async with overflow_stage(tmp_path, after="0s") as (own, provider, gateway):
        own.behaviour = Behaviour(hang_before_head=True)
        first = asyncio.ensure_future(post(gateway))
        await own.next_request()
        async with post(gateway, form) as answer:
            assert answer.status == 200
        first.cancel()
        [received] = provider.requests

    assert received.form.texts == [("model", "vendor/m")]
    assert b"ann" not in received.raw


async def test_prompt_of_a_class_limits_the_duration(tmp_path: Path) -> None:
    classes = {"interactive": {**NO_TARGETS, "caps": {"prompt_tokens": 100}}}
    async with stage(tmp_path, classes=classes) as (engine, gateway):
        async with post(gateway) as answer:
            message = (await answer.json())["error"]["message"]

    assert answer.status == 413
    assert "about 150 tokens" in message
    assert engine.requests == []


async def test_caps_on_output_do_not_make_usage_implausible(tmp_path: Path) -> None:
    classes = {"interactive": {**NO_TARGETS, "caps": {"output_tokens": 1}}}
    async with stage(tmp_path, classes=classes) as (engine, gateway):
        engine.behaviour = Behaviour(tokens=50)
        async with post(gateway, a_form(a_field("model", "m"), a_field("stream", "true"), a_file())) as answer:
            await answer.read()
        tokens = await booked(gateway)

    assert answer.headers["x-headgate-degraded"] == "none"
    assert tokens == (7, 50)


async def test_class_rule_and_service_tier_choose_the_class(tmp_path: Path) -> None:
    async with stage(tmp_path, class_rules=[{"class": "batch", "apis": ["transcriptions"]}]) as (_, gateway):
        for path, name in ((TRANSCRIPTIONS, "batch"), (TRANSLATIONS, "interactive")):
            async with post(gateway, path=path) as answer:
                assert answer.headers["x-headgate-class"] == name


async def test_limit_of_a_tenant_applies(tmp_path: Path) -> None:
    async with stage(tmp_path, tenants={"laptop": {"limits": {"requests_per_minute": 1}}}) as (_, gateway):
        statuses = []
        for _ in range(2):
            async with post(gateway) as answer:
                statuses.append(answer.status)
                error = await answer.json()

    assert statuses == [200, 429]
    assert error["error"]["code"] == "rate_limit_exceeded"


async def test_expect_continue_is_not_sent_for_a_wrong_content_type(tmp_path: Path) -> None:
    """Check that a request that is rejected for its head alone is rejected before its file is sent."""
    async with stage(tmp_path) as (engine, gateway):
        address = urlsplit(gateway.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port, family=socket.AF_INET)
        head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\nexpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        status = await reader.readline()
        head_lines = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split()[1]) for line in head_lines.lower().split(b"\r\n") if b"content-length" in line)
        error = json.loads(await reader.readexactly(length))["error"]
        writer.close()

    assert status.startswith(b"HTTP/1.1 400 ")
    assert "content type must be multipart/form-data" in error["message"]
    assert engine.requests == []


async def test_retry_of_a_client_has_the_same_fingerprint() -> None:
    """Check that a new boundary does not hide a request that failed before, and that another file or field does."""

    async def fingerprint(form: bytes, boundary: str = BOUNDARY) -> str:
        headers = {b"content-type": f"multipart/form-data; boundary={boundary}".encode()}
        client = Client(DiscardingTransport(), "POST", TRANSCRIPTIONS.encode(), headers, len(form))
        client.add_body(form.replace(BOUNDARY.encode(), boundary.encode()))
        client.complete_body()
        read = await read_request(client, Api.TRANSCRIPTIONS, TenantId("t"), RequestId("r"), len(form))
        return read.ticket.fingerprint

    first = await fingerprint(FORM)
    assert await fingerprint(FORM, "retry") == first
    assert await fingerprint(a_form(a_field("model", "m"), a_file(SPEECH + b"x"))) != first
    assert await fingerprint(a_form(a_field("model", "m"), a_field("n", "1"), a_file())) != first
