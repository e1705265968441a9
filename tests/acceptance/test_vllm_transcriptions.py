"""Transcriptions with real vLLM and a tiny Whisper model."""

import asyncio
import io
import wave
from array import array
from collections.abc import Iterator
from math import sin
from pathlib import Path
from typing import Any, Literal

import openai
import pytest

from testing.gateway import RunningGateway, gateway_in_loop
from testing.real_engines import RealEngine, vllm_whisper
from tests.acceptance.scenarios import config_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

RATE = 16_000
SECONDS = 3


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with vllm_whisper() as engine:
        yield engine


def a_tone(seconds: int = SECONDS) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as tone:
        tone.setnchannels(1)
        tone.setsampwidth(2)
        tone.setframerate(RATE)
        tone.writeframes(array("h", (int(8_000 * sin(0.05 * at)) for at in range(RATE * seconds))).tobytes())
    return file.getvalue()


def sdk(gateway: RunningGateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)


async def booked(gateway: RunningGateway, direction: Literal["prompt", "output"]) -> float:
    await gateway.wait_until_idle()
    async with gateway.http.get(gateway.admin_url + "/metrics") as page:
        lines = (await page.text()).splitlines()
    counts = [line.split() for line in lines if line.startswith("headgate_tokens_total{")]
    return sum(float(value) for name, value in counts if f'direction="{direction}"' in name)


async def test_openai_sdk_transcribes(engine: RealEngine, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"language": "en", "extra_body": {"max_completion_tokens": 6}}
    async with gateway_in_loop(config_for(engine, dialect="vllm"), tmp_path) as gateway, sdk(gateway) as client:
        whole = await client.audio.transcriptions.create(file=("tone.wav", a_tone()), model="chat", **asked)
        reported = await booked(gateway, "prompt")
        verbose = await client.audio.transcriptions.create(
            file=("tone.wav", a_tone()), model="chat", response_format="verbose_json", **asked
        )

    assert len(whole.text) == 6
    assert reported == 50 * SECONDS, "vLLM reported the duration"
    assert (verbose.duration, verbose.language) == (SECONDS, "en")


async def test_stream_has_usage(engine: RealEngine, tmp_path: Path) -> None:
    async with gateway_in_loop(config_for(engine, dialect="vllm"), tmp_path) as gateway, sdk(gateway) as client:
        stream = await client.audio.transcriptions.create(
            file=("tone.wav", a_tone()),
            model="chat",
            language="en",
            stream=True,
            extra_body={"max_completion_tokens": 6},
        )
        events: list[Any] = [event async for event in stream]
        output, prompt = await booked(gateway, "output"), await booked(gateway, "prompt")

    assert "".join(event.choices[0]["delta"]["content"] for event in events) == "!" * 6
    assert output == 6
    assert prompt > 50 * SECONDS


# The SDK marks translations as deprecated.
@pytest.mark.filterwarnings("ignore:deprecated")
async def test_openai_sdk_translates(engine: RealEngine, tmp_path: Path) -> None:
    async with gateway_in_loop(config_for(engine, dialect="vllm"), tmp_path) as gateway, sdk(gateway) as client:
        english = await client.audio.translations.create(
            file=("tone.wav", a_tone()), model="chat", response_format="json", extra_body={"max_completion_tokens": 6}
        )

    assert len(english.text) == 6


@pytest.mark.parametrize(
    ("file", "format_name", "message"),
    [(b"no audio", "json", "Invalid or unsupported audio file"), (a_tone(1), "srt", "response_format")],
)
async def test_request_that_vllm_rejects_is_not_a_failure(
    engine: RealEngine, tmp_path: Path, file: bytes, format_name: Any, message: str
) -> None:
    async with gateway_in_loop(config_for(engine, dialect="vllm"), tmp_path) as gateway, sdk(gateway) as client:
        with pytest.raises(openai.BadRequestError, match=message):
            await client.audio.transcriptions.create(file=file, model="chat", response_format=format_name)
        [endpoint] = (await gateway.status())["endpoints"]

    assert endpoint["state"] == "ready"


async def test_long_audio_and_eight_clients_share_four_slots(engine: RealEngine, tmp_path: Path) -> None:
    """Check that all transcripts are complete. vLLM splits audio of more than 30 seconds into several sequences."""
    config = config_for(engine, dialect="vllm")
    config["pools"]["small"]["in_flight_max"] = 4
    async with gateway_in_loop(config, tmp_path) as gateway, sdk(gateway) as client:
        asked: dict[str, Any] = {"language": "en", "extra_body": {"max_completion_tokens": 6}}
        whole = await asyncio.gather(*(
            client.audio.transcriptions.create(file=("tone.wav", a_tone(seconds)), model="chat", **asked)
            for seconds in (1, 2, 3, 65, 1, 2, 3, 65)
        ))  # fmt: skip

    assert [len(each.text) for each in whole if len(each.text) == 6] == [6] * 6
    assert [len(each.text.replace(" ", "")) for each in whole if len(each.text) != 6] == [18] * 2
