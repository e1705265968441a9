"""How does the engine refuse? In vLLM's words, as they were recorded from version 0.32."""

from typing import Final

import msgspec

_ENCODER: Final = msgspec.json.Encoder()


class Refusal(Exception):
    """A request that gets an error for its answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def _error(status: int, type_: str, message: str, param: str | None) -> Refusal:
    error = {"message": message, "type": type_, "param": param, "code": status}
    return Refusal(status, _ENCODER.encode({"error": error}))


def malformed(problem: str, field: str) -> Refusal:
    place = f"body.{field}" if field else "body"
    said = f"1 validation error:\n  {{'loc': '{place}', 'msg': '{problem}'}}"
    return _error(400, "Bad Request", said, place)


def unacceptable(message: str, param: str | None) -> Refusal:
    return _error(400, "BadRequestError", message, param)


def too_long(context_tokens: int, prompt_tokens: int) -> Refusal:
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains at least "
        f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        f"length of the input prompt. (parameter=input_tokens, value={prompt_tokens})"
    )
    return unacceptable(message, "input_tokens")


def too_much(context_tokens: int, prompt_tokens: int, output_tokens: int) -> Refusal:
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, you requested {output_tokens} "
        f"output tokens and your prompt contains at least {prompt_tokens} input tokens. Please reduce the length of "
        f"the input prompt or the number of requested output tokens. (parameter=max_tokens, value={output_tokens})"
    )
    return unacceptable(message, "max_tokens")


def no_such_model(asked: str, served: str) -> Refusal:
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return _error(404, "NotFoundError", message, "model")


def broken() -> Refusal:
    return _error(500, "InternalServerError", "EngineCore encountered an issue (simulated)", None)
