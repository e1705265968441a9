"""How is a call put to Triton, and how does its answer become one in the caller's shape?

Tensors pass both ways as they are. A chat or a completion is put to `generate_stream`, also where the caller wants a
whole answer: the other path, `generate`, refuses models that answer in several pieces, and hears of nobody who leaves.
What the model takes is read off its own description before the first such call, and again after one that failed: the
model may have been replaced.
"""

import asyncio
import time
from typing import Final
from urllib.parse import quote

from headgate.engines.at_hand import AtHandAnswer
from headgate.engines.dialect import Courier
from headgate.engines.triton.answers import TranslatedAnswer
from headgate.model.ticket import Api
from headgate.ports.engine import Answer, Call, EngineFault
from headgate.wire.fields import BadRequest
from headgate.wire.kserve.events import Generated, Setting, whole_body
from headgate.wire.kserve.generate import Question, TextModel, ask, read_model
from headgate.wire.kserve.infer import HEADER_LENGTH, Asked, InferBody
from headgate.wire.kserve.infer import error_body as kserve_error
from headgate.wire.replies import error_body, read_error
from headgate.wire.sse import ASSEMBLED_BYTES_MAX, payload_of

PAGE_BYTES_MAX: Final = 1024 * 1024
"""As much is read of a page about a model, or of an error."""
_GENERATING: Final = (Api.CHAT, Api.COMPLETIONS)
_ID_PREFIX: Final = {Api.CHAT: "chatcmpl", Api.COMPLETIONS: "cmpl"}


class TritonSpeaker:
    """Asks one endpoint's Triton."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._path = f"/v2/models/{quote(courier.served_model, safe='')}"
        self._model: TextModel | None = None

    async def ask(self, call: Call) -> Answer:
        if isinstance(call.body, InferBody):
            return await self._pass_on(call, call.body)
        if call.api not in _GENERATING:
            return _refused(404, f"no model of Triton is asked for {call.api}; use /v2/models/MODEL/infer")
        try:
            model = self._model or await self._read_model(call)
        except _NotWell as not_well:
            return not_well.answer
        if model is None:
            return _refused(404, "this model neither takes nor gives text; use /v2/models/MODEL/infer")
        self._model = model
        return await self._generate(call, model)

    # Tensors

    async def _pass_on(self, call: Call, body: InferBody) -> Answer:
        method = "POST" if body.asked is Asked.INFERENCE else "GET"
        headers = dict(call.headers)
        if body.json_bytes is not None:
            headers[HEADER_LENGTH] = str(body.json_bytes)
        pieces = body.encode_in_pieces(served_model=self._courier.served_model)
        path = self._path + body.asked
        answer = await self._courier.send(method, path, call.request_id, headers, pieces, sent=call.sent)
        if body.asked is Asked.READINESS and answer.status == 400:
            # Not ready is a state of the engine and no mistake of whoever asks; elsewhere the model may be ready.
            answer.close()
            return AtHandAnswer(503, kserve_error("the model is not ready at this endpoint"))
        return answer

    # Text

    async def _read_model(self, call: Call) -> TextModel | None:
        status, metadata = await self._page(call, self._path)
        if status != 200:
            raise _NotWell(AtHandAnswer(502, _openai_error(read_error(metadata), "engine_error")))
        status, config = await self._page(call, f"{self._path}/config")
        return read_model(metadata, config if status == 200 else b"")

    async def _page(self, call: Call, path: str) -> tuple[int, bytes]:
        answer = await self._courier.send("GET", path, call.request_id, {}, [])
        return answer.status, await _all_of(answer)

    async def _generate(self, call: Call, model: TextModel) -> Answer:
        try:
            question = await self._question(call, model)
        except BadRequest as bad:
            return _refused(400, bad.message, bad.param)
        path = f"{self._path}/generate_stream"
        body: list[bytes | memoryview] = [question.body]
        answer = await self._courier.send("POST", path, call.request_id, call.headers, body, sent=call.sent)
        if answer.status != 200:
            self._model = None
            return await _error(answer)
        if not answer.is_framed:
            answer.close()
            raise EngineFault("the end of the engine's stream cannot be told from a broken connection")
        setting = self._setting(call, model, question)
        if call.body.stream:
            return TranslatedAnswer(answer, setting)
        return await _whole(answer, setting)

    async def _question(self, call: Call, model: TextModel) -> Question:
        def put() -> Question:
            return ask(call.body.encode(served_model=self._courier.served_model), call.api, model)

        return await asyncio.to_thread(put) if call.body.is_large else put()

    def _setting(self, call: Call, model: TextModel, question: Question) -> Setting:
        return Setting(
            api=call.api,
            answer_id=f"{_ID_PREFIX[call.api]}-{call.request_id}",
            created=int(time.time()),
            model=self._courier.served_model,
            text_output=model.text_output,
            prompt_bytes=question.prompt_bytes,
            output_tokens_max=question.output_tokens_max,
        )


class _NotWell(Exception):
    """The model could not be asked what it takes."""

    def __init__(self, answer: AtHandAnswer) -> None:
        super().__init__()
        self.answer = answer


async def _whole(answer: Answer, setting: Setting) -> Answer:
    """The answer that the stream adds up to, once it has ended. Raises `EngineFault`."""
    generated = Generated(setting, bytes_max=ASSEMBLED_BYTES_MAX)

    def take(data: bytes) -> bool:
        generated.feed(data)
        return generated.error is not None

    try:
        await answer.pour(take)
    except BaseException:
        answer.close()
        raise
    if generated.error is not None:
        answer.close()
        return AtHandAnswer(500, _openai_error(generated.error, "engine_error"))
    if not generated.answered:
        raise EngineFault("the engine's stream ended without an answer")
    return AtHandAnswer(200, whole_body(generated, setting))


async def _error(answer: Answer) -> Answer:
    """An error status, in OpenAI's shape; Triton tells it as an event where the model has told it."""
    body = await _all_of(answer)
    message = read_error(payload_of(body) or body) or f"Triton answered {answer.status} without a message"
    blames = answer.blames_request(body)
    code = "invalid_request_error" if blames else "engine_error"
    return AtHandAnswer(answer.status, _openai_error(message, code), blames=blames)


async def _all_of(answer: Answer) -> bytes:
    body = bytearray()
    try:
        while len(body) <= PAGE_BYTES_MAX and (data := await answer.read()):
            body += data
    finally:
        answer.close()
    return bytes(body)


def _refused(status: int, message: str, param: str | None = None) -> Answer:
    body = error_body(message=message, type="invalid_request_error", code="invalid_request_error", param=param)
    return AtHandAnswer(status, body, blames=True)


def _openai_error(message: str, code: str) -> bytes:
    kind = code if code == "invalid_request_error" else "server_error"
    return error_body(message=message, type=kind, code=code)
