"""Sends calls to Triton and translates its responses into the API that the caller used.

Tensors are passed through unchanged in both directions. Chats and completions use `generate_stream`, even for a
non-streaming response. The alternative, `generate`, rejects models that respond in several pieces and does not notice
disconnected clients. The adapter reads the model's metadata before the first such call, and again after a failed one,
because the model may have been replaced.
"""

import asyncio
import time
from typing import Final
from urllib.parse import quote

from headgate.engines.buffered_response import BufferedResponse
from headgate.engines.dialect import EngineTransport
from headgate.engines.triton.responses import TranslatedResponse
from headgate.model.ticket import Api
from headgate.ports.engine import Call, EngineFault, EngineResponse
from headgate.wire.fields import BadRequest
from headgate.wire.kserve.generate import GenerateRequest, TextModel, build_request, read_model
from headgate.wire.kserve.generate_stream import GeneratedText, TranslationContext, whole_body
from headgate.wire.kserve.infer import JSON_LENGTH_HEADER, InferBody, ModelOperation
from headgate.wire.kserve.infer import error_body as kserve_error
from headgate.wire.openai_bodies import error_body, quoted_error, read_error
from headgate.wire.sse import ASSEMBLED_BYTES_MAX, payload_of

PAGE_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes read from a model metadata page or an error body."""
_TEXT_APIS: Final = (Api.CHAT, Api.COMPLETIONS)
_ID_PREFIX: Final = {Api.CHAT: "chatcmpl", Api.COMPLETIONS: "cmpl"}


class TritonAdapter:
    """Protocol adapter for one Triton endpoint."""

    def __init__(self, courier: EngineTransport) -> None:
        self._transport = courier
        self._path = f"/v2/models/{quote(courier.served_model, safe='')}"
        self._model: TextModel | None = None

    async def ask(self, call: Call) -> EngineResponse:
        if isinstance(call.body, InferBody):
            return await self._forward_tensors(call, call.body)
        if call.api not in _TEXT_APIS:
            return _rejection(404, f"the API {call.api} is not available for Triton models; use /v2/models/MODEL/infer")
        try:
            model = self._model or await self._read_model(call)
        except _ModelUnavailable as not_well:
            return not_well.answer
        if model is None:
            return _rejection(404, "this model has no text input and output; use /v2/models/MODEL/infer")
        self._model = model
        return await self._generate(call, model)

    # Tensors

    async def _forward_tensors(self, call: Call, body: InferBody) -> EngineResponse:
        method = "POST" if body.operation is ModelOperation.INFERENCE else "GET"
        headers = dict(call.headers)
        if body.json_bytes is not None:
            headers[JSON_LENGTH_HEADER] = str(body.json_bytes)
        pieces = body.encode_in_pieces(served_model=self._transport.served_model)
        path = self._path + body.operation
        answer = await self._transport.send(method, path, call.request_id, headers, pieces, sent=call.on_sent)
        if body.operation is ModelOperation.READINESS and answer.status == 400:
            # If an engine is not ready, that does not make the request invalid. Another endpoint may be ready.
            answer.close()
            return BufferedResponse(503, kserve_error("the model is not ready on this endpoint"))
        return answer

    # Text

    async def _read_model(self, call: Call) -> TextModel | None:
        status, metadata = await self._get_page(call, self._path)
        if status != 200:
            raise _ModelUnavailable(BufferedResponse(502, _openai_error(read_error(metadata), "engine_error")))
        status, config = await self._get_page(call, f"{self._path}/config")
        return read_model(metadata, config if status == 200 else b"")

    async def _get_page(self, call: Call, path: str) -> tuple[int, bytes]:
        answer = await self._transport.send("GET", path, call.request_id, {}, [])
        return answer.status, await _read_all(answer)

    async def _generate(self, call: Call, model: TextModel) -> EngineResponse:
        try:
            question = await self._generate_request(call, model)
        except BadRequest as bad:
            return _rejection(400, bad.message, bad.param)
        path = f"{self._path}/generate_stream"
        body: list[bytes | memoryview] = [question.body]
        answer = await self._transport.send("POST", path, call.request_id, call.headers, body, sent=call.on_sent)
        if answer.status != 200:
            self._model = None
            return await _error(answer)
        if not answer.is_framed:
            answer.close()
            raise EngineFault("the engine's stream has no end marker, so a lost connection could go unnoticed")
        setting = self._context(call, model, question)
        if call.body.stream:
            return TranslatedResponse(answer, setting)
        return await _join_stream(answer, setting)

    async def _generate_request(self, call: Call, model: TextModel) -> GenerateRequest:
        def put() -> GenerateRequest:
            return build_request(call.body.encode(served_model=self._transport.served_model), call.api, model)

        return await asyncio.to_thread(put) if call.body.is_large else put()

    def _context(self, call: Call, model: TextModel, question: GenerateRequest) -> TranslationContext:
        return TranslationContext(
            api=call.api,
            answer_id=f"{_ID_PREFIX[call.api]}-{call.request_id}",
            created=int(time.time()),
            model=self._transport.served_model,
            text_output=model.text_output,
            prompt_bytes=question.prompt_bytes,
            output_tokens_max=question.output_tokens_max,
        )


class _ModelUnavailable(Exception):
    """The model's metadata could not be read."""

    def __init__(self, answer: BufferedResponse) -> None:
        super().__init__()
        self.answer = answer


async def _join_stream(answer: EngineResponse, setting: TranslationContext) -> EngineResponse:
    """Joins a stream into a non-streaming response. Raises `EngineFault`."""
    generated = GeneratedText(setting, bytes_max=ASSEMBLED_BYTES_MAX)

    def take(data: bytes) -> bool:
        generated.feed(data)
        return generated.error is not None

    try:
        await answer.stream_to(take)
    except BaseException:
        answer.close()
        raise
    if generated.error is not None:
        answer.close()
        return BufferedResponse(500, _openai_error(quoted_error(generated.error, answer.secret), "engine_error"))
    if not generated.has_answer:
        raise EngineFault("the engine's stream ended without a response")
    return BufferedResponse(200, whole_body(generated, setting))


async def _error(answer: EngineResponse) -> EngineResponse:
    """Translates an error response into OpenAI format. Model errors arrive as an event."""
    body = await _read_all(answer)
    message = (
        read_error(payload_of(body) or body, answer.secret) or f"Triton returned {answer.status} without a message"
    )
    blames = answer.is_request_error(body)
    code = "invalid_request_error" if blames else "engine_error"
    return BufferedResponse(answer.status, _openai_error(message, code), blames=blames)


async def _read_all(answer: EngineResponse) -> bytes:
    body = bytearray()
    try:
        while len(body) <= PAGE_BYTES_MAX and (data := await answer.read()):
            body += data
    finally:
        answer.close()
    return bytes(body)


def _rejection(status: int, message: str, param: str | None = None) -> EngineResponse:
    body = error_body(message=message, type="invalid_request_error", code="invalid_request_error", param=param)
    return BufferedResponse(status, body, blames=True)


def _openai_error(message: str, code: str) -> bytes:
    kind = code if code == "invalid_request_error" else "server_error"
    return error_body(message=message, type=kind, code=code)
