"""Checks request fields before any engine receives them.

The rejected values have harmed engines: counts that multiply one request into thousands, numbers beyond 32 bits (one
engine treats 2^40 tokens as 0), a salt that is not a string, and fields that let a client choose an address for the
engine to connect to. Fields that the gateway does not need are left for the engine to check.
"""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from headgate.model.ticket import FORM_APIS, Api
from headgate.wire.doors import DOORS
from headgate.wire.fields import BOOL, FIELDS, STRING, BadRequest, Fields, is_given, read_field
from headgate.wire.kserve.tensor_checks import check_parameters, check_tensors

CHOICES_MAX: Final = 128
"""Maximum number of choices per prompt in OpenAI's API."""
LOGPROBS_MAX: Final = 20
CACHE_SALT_CHARS_MAX: Final = 256
_INT32_MAX: Final = 2**31 - 1

_Check = Callable[[Fields, str], object]


def _integer(least: int, most: int = _INT32_MAX, *, in_form: bool = False) -> _Check:
    """Returns a check of an integer. Those in a form are strings."""
    decoder = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=least, le=most)], strict=not in_form)
    kind = f"an integer from {least} to {most}"

    def check(fields: Fields, name: str) -> int | None:
        return read_field(fields, name, decoder, kind)

    return check


def _completion_tokens(fields: Fields, name: str) -> None:
    """Accepts 0 output tokens only if the prompt is to be echoed."""
    if _ZERO_OR_MORE(fields, name) == 0 and not read_field(fields, "echo", BOOL, "true or false"):
        raise BadRequest(f'"{name}" may be 0 only with "echo": true; set it to at least 1', name)


def _text(fields: Fields, name: str) -> None:
    read_field(fields, name, STRING, "a string")


def _flag(fields: Fields, name: str) -> None:
    read_field(fields, name, BOOL, "true or false")


def _salt(fields: Fields, name: str) -> None:
    read_field(fields, name, _SALT, f"a string of 1 to {CACHE_SALT_CHARS_MAX} characters")


def _reasoning(fields: Fields, name: str) -> None:
    inner = read_field(fields, name, FIELDS, "an object")
    if inner is not None:
        read_field(inner, "effort", STRING, "a string", inside=name)


def _background(fields: Fields, name: str) -> None:
    if read_field(fields, name, BOOL, "true or false"):
        reason = "background responses cannot be retrieved later"
        raise BadRequest(f'"{name}" is not supported: {reason}; use "stream" or wait for the response', name)


def _previous_response(fields: Fields, name: str) -> None:
    if is_given(fields, name):
        reason = "each engine stores only its own responses"
        raise BadRequest(f'"{name}" is not supported: {reason}; send the earlier items in "input"', name)


def _thinking(fields: Fields, name: str) -> None:
    inner = read_field(fields, name, FIELDS, "an object")
    if inner is not None:
        _integer(0)(inner, "budget_tokens")


def _output_config(fields: Fields, name: str) -> None:
    inner = read_field(fields, name, FIELDS, "an object")
    if inner is not None:
        read_field(inner, "effort", STRING, "a string", inside=name)


def _json_encoding(fields: Fields, name: str) -> None:
    if (read_field(fields, name, STRING, "a string") or "").startswith("bytes"):
        raise BadRequest(f'"{name}" must be "float" or "base64", because responses are JSON', name)


def _reject_engine_internal(fields: Fields, name: str) -> None:
    if is_given(fields, name):
        raise BadRequest(f'"{name}" is reserved for traffic between engines; remove it', name)


def _reject_other_audio(fields: Fields, name: str) -> None:
    if is_given(fields, name):
        raise BadRequest(f'"{name}" is not supported; send the audio as "file"', name)


_ZERO_OR_MORE: Final = _integer(0)
_SALT: Final = msgspec.json.Decoder(Annotated[str, msgspec.Meta(min_length=1, max_length=CACHE_SALT_CHARS_MAX)])

_COMMON_CHECKS: Final[dict[str, _Check]] = {
    "priority": _integer(-(2**31)),
    "cache_salt": _salt,
    # These fields make an engine fetch a prompt's state from an address. Addresses must come from the configuration.
    "kv_transfer_params": _reject_engine_internal,
    "ec_transfer_params": _reject_engine_internal,
    "disaggregated_params": _reject_engine_internal,
    "bootstrap_host": _reject_engine_internal,
    "bootstrap_port": _reject_engine_internal,
    "bootstrap_room": _reject_engine_internal,
}
_GENERATION_CHECKS: Final[dict[str, _Check]] = {
    **_COMMON_CHECKS,
    # llama.cpp has additional names that take precedence over the common ones.
    "n": _integer(1, CHOICES_MAX),
    "n_cmpl": _integer(1, CHOICES_MAX),
    "n_predict": _integer(-1),
    "n_probs": _integer(0, LOGPROBS_MAX),
    "min_tokens": _integer(0),
    "best_of": _integer(1, CHOICES_MAX),
}
_FORM_CHECKS: Final[dict[str, _Check]] = {
    **{name: check for name, check in _COMMON_CHECKS.items() if check is _reject_engine_internal},
    # In vLLM, the number of beams.
    "n": _integer(1, CHOICES_MAX, in_form=True),
    "max_completion_tokens": _integer(1, in_form=True),
    "file_id": _reject_other_audio,
    "file_url": _reject_other_audio,
    "url": _reject_other_audio,
}
_TEXT_CHECKS: Final[dict[str, _Check]] = {
    **_GENERATION_CHECKS,
    "max_completion_tokens": _integer(1),
    # In vLLM, -1 means the whole vocabulary.
    "prompt_logprobs": _integer(-1),
    "reasoning_effort": _text,
}
_CHECKS: Final[dict[Api, dict[str, _Check]]] = {
    Api.CHAT: {
        **_TEXT_CHECKS,
        "max_tokens": _integer(1),
        "logprobs": _flag,
        "top_logprobs": _integer(0, LOGPROBS_MAX),
    },
    Api.COMPLETIONS: {
        **_TEXT_CHECKS,
        "max_tokens": _completion_tokens,
        "echo": _flag,
        "logprobs": _integer(0, LOGPROBS_MAX),
    },
    Api.EMBEDDINGS: _COMMON_CHECKS,
    Api.RESPONSES: {
        **_GENERATION_CHECKS,
        "max_output_tokens": _integer(1),
        "top_logprobs": _integer(0, LOGPROBS_MAX),
        "reasoning": _reasoning,
        "background": _background,
        "previous_response_id": _previous_response,
    },
    Api.INFER: {**_COMMON_CHECKS, "inputs": check_tensors, "outputs": check_tensors, "parameters": check_parameters},
    Api.MESSAGES: {
        **_GENERATION_CHECKS,
        "max_tokens": _integer(1),
        "prompt_logprobs": _integer(-1),
        "thinking": _thinking,
        "output_config": _output_config,
    },
    Api.COUNT_TOKENS: _COMMON_CHECKS,
    **dict.fromkeys(DOORS, _COMMON_CHECKS),
    **dict.fromkeys(FORM_APIS, _FORM_CHECKS),
    Api.POOLING: {**_COMMON_CHECKS, "encoding_format": _json_encoding},
}


def check_fields(fields: Fields, api: Api) -> None:
    """Raises `BadRequest` for the first value that must not reach an engine."""
    checks = _CHECKS[api]
    # A body has fewer fields than there are checks.
    checked = 0
    last = ""
    for name in fields:
        if name in checks:
            checked += 1
            last = name
    if checked == 1:
        checks[last](fields, last)
    elif checked:
        # In a fixed order, so that the message does not depend on the order of the fields.
        for name, check in checks.items():
            if name in fields:
                check(fields, name)
