"""Error responses with vLLM's wording, as recorded from version 0.32."""

from typing import Final

import msgspec

_ENCODER: Final = msgspec.json.Encoder()


class ErrorResponse(Exception):
    """Raised for a request that is answered with an error."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def _error(status: int, type_: str, message: str, param: str | None) -> ErrorResponse:
    error = {"message": message, "type": type_, "param": param, "code": status}
    return ErrorResponse(status, _ENCODER.encode({"error": error}))


def validation_error(problem: str, field: str) -> ErrorResponse:
    place = f"body.{field}" if field else "body"
    said = f"1 validation error:\n  {{'loc': '{place}', 'msg': '{problem}'}}"
    return _error(400, "Bad Request", said, place)


def bad_request(message: str, param: str | None) -> ErrorResponse:
    return _error(400, "BadRequestError", message, param)


def prompt_too_long(context_tokens: int, prompt_tokens: int) -> ErrorResponse:
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains at least "
        f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        f"length of the input prompt. (parameter=input_tokens, value={prompt_tokens})"
    )
    return bad_request(message, "input_tokens")


def output_too_long(context_tokens: int, prompt_tokens: int, output_tokens: int) -> ErrorResponse:
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, you requested {output_tokens} "
        f"output tokens and your prompt contains at least {prompt_tokens} input tokens. Please reduce the length of "
        f"the input prompt or the number of requested output tokens. (parameter=max_tokens, value={output_tokens})"
    )
    return bad_request(message, "max_tokens")


def model_not_found(asked: str, served: str) -> ErrorResponse:
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return _error(404, "NotFoundError", message, "model")


def internal_error() -> ErrorResponse:
    return _error(500, "InternalServerError", "EngineCore encountered an issue (simulated)", None)
