"""Tests that the simulated engine's transcription API behaves like vLLM."""

from typing import Any, Literal

import openai
import pytest

from testing.forms import SPEECH
from tests.simulation.servers import Running, an_engine


def sdk(engine: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0)


async def test_openai_client_transcribes() -> None:
    async with an_engine() as engine, sdk(engine) as client:
        asked: dict[str, Any] = {"file": SPEECH, "model": "m"}
        whole = await client.audio.transcriptions.create(**asked, extra_body={"max_completion_tokens": 5})
        again = await client.audio.transcriptions.create(**asked, extra_body={"max_completion_tokens": 5})
        other = await client.audio.transcriptions.create(file=SPEECH + b"x", model="m")
        verbose = await client.audio.transcriptions.create(**asked, response_format="verbose_json")

    assert len(whole.text.split()) == 5
    assert whole.text == again.text != other.text
    assert whole.usage is not None
    assert whole.usage.model_dump() == {"type": "duration", "seconds": 3.0}
    assert (verbose.duration, verbose.language) == (3.0, "en")


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("kind", ["transcription", "translation"])
async def test_stream_has_vllms_format(kind: Literal["transcription", "translation"], *, include_usage: bool) -> None:
    fields = {"stream_include_usage": "true"} if include_usage else {}
    async with an_engine() as engine, sdk(engine) as client:
        stream = await client.post(
            f"/audio/{kind}s",
            cast_to=object,
            files={"file": ("a.wav", SPEECH)},
            body={"model": "m", "stream": "true", "max_completion_tokens": "5", **fields},
            options={"headers": {"content-type": "multipart/form-data"}},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        chunks: list[Any] = [chunk async for chunk in stream]

    assert {chunk["object"] for chunk in chunks} == {f"{kind}.chunk"}
    last = chunks[4]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("length", None)
    assert len("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:5]).split()) == 5
    usage = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    assert usage == [{"prompt_tokens": 150, "total_tokens": 155, "completion_tokens": 5}] * include_usage


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist"),
        ({"response_format": "srt"}, 400, "Currently only support response_format"),
        ({"response_format": "verbose_json", "stream": True}, 400, "doesn't support streaming"),
        ({"extra_body": {"n": "many"}}, 400, '"n" must be an integer'),
        ({"file": bytes(700_000)}, 400, "maximum context length"),
    ],
)
async def test_invalid_request_is_rejected(fields: dict[str, Any], status: int, message: str) -> None:
    async with an_engine() as engine, sdk(engine) as client:
        with pytest.raises(openai.APIStatusError, match=message) as caught:
            await client.audio.transcriptions.create(**({"file": SPEECH, "model": "m"} | fields))

    assert caught.value.status_code == status
