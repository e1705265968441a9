"""Which values may a field have, before any engine sees it?

What is stopped here has harmed engines: counts that multiply one request into thousands, numbers beyond 32 bits (one
engine takes 2^40 tokens for none), a salt that is no text, fields that let a caller name another machine for the engine
to connect to. Fields that no decision needs are not looked at; their engine judges them.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec

from headgate.model.ticket import Api
from headgate.wire.fields import BOOL, FIELDS, STRING, BadRequest, Fields, is_given, read
from headgate.wire.kserve.checks import check_parameters, check_tensors

CHOICES_MAX: Final = 128
"""The most answers to one prompt that OpenAI's own interface allows."""
LOGPROBS_MAX: Final = 20
CACHE_SALT_CHARS_MAX: Final = 256
_INT32_MAX: Final = 2**31 - 1

_Check = Callable[[Fields, str], object]


def _integer(least: int, most: int = _INT32_MAX) -> _Check:
    decoder = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=least, le=most)])
    kind = f"an integer from {least} to {most}"

    def check(fields: Fields, name: str) -> int | None:
        return read(fields, name, decoder, kind)

    return check


def _completion_tokens(fields: Fields, name: str) -> None:
    """No output at all makes sense only where the prompt itself is asked back."""
    if _NO_TOKENS(fields, name) == 0 and not read(fields, "echo", BOOL, "true or false"):
        raise BadRequest(f'"{name}" may be 0 only with "echo": true; ask for at least 1', name)


def _text(fields: Fields, name: str) -> None:
    read(fields, name, STRING, "a string")


def _flag(fields: Fields, name: str) -> None:
    read(fields, name, BOOL, "true or false")


def _salt(fields: Fields, name: str) -> None:
    read(fields, name, _SALT, f"a string of 1 to {CACHE_SALT_CHARS_MAX} characters")


def _reasoning(fields: Fields, name: str) -> None:
    inner = read(fields, name, FIELDS, "an object")
    if inner is not None:
        read(inner, "effort", STRING, "a string", inside=name)


def _background(fields: Fields, name: str) -> None:
    if read(fields, name, BOOL, "true or false"):
        reason = "a response in the background would go on with nobody to fetch it"
        raise BadRequest(f'"{name}" is not supported here: {reason}; stream it, or wait for it', name)


def _previous_response(fields: Fields, name: str) -> None:
    if is_given(fields, name):
        reason = "each engine knows only the responses that it gave itself"
        raise BadRequest(f'"{name}" is not supported here: {reason}; send the earlier items in "input"', name)


def _between_engines(fields: Fields, name: str) -> None:
    if is_given(fields, name):
        raise BadRequest(f'"{name}" is for engines among themselves; leave it out', name)


_NO_TOKENS: Final = _integer(0)
_SALT: Final = msgspec.json.Decoder(Annotated[str, msgspec.Meta(min_length=1, max_length=CACHE_SALT_CHARS_MAX)])

_ALWAYS: Final[Mapping[str, _Check]] = {
    "priority": _integer(-(2**31)),
    "cache_salt": _salt,
    # They make an engine fetch a prompt's state from an address; addresses come from the configuration alone.
    "kv_transfer_params": _between_engines,
    "ec_transfer_params": _between_engines,
    "disaggregated_params": _between_engines,
    "bootstrap_host": _between_engines,
    "bootstrap_port": _between_engines,
    "bootstrap_room": _between_engines,
}
_GENERATING: Final[Mapping[str, _Check]] = _ALWAYS | {
    # llama.cpp has names of its own beside the common ones, and they win.
    "n": _integer(1, CHOICES_MAX),
    "n_cmpl": _integer(1, CHOICES_MAX),
    "n_predict": _integer(-1),
    "n_probs": _integer(0, LOGPROBS_MAX),
    "min_tokens": _integer(0),
    "best_of": _integer(1, CHOICES_MAX),
}
_CHAT_OR_COMPLETION: Final[Mapping[str, _Check]] = _GENERATING | {
    "max_completion_tokens": _integer(1),
    # vLLM takes -1 for the whole vocabulary.
    "prompt_logprobs": _integer(-1),
    "reasoning_effort": _text,
}
_CHECKS: Final[Mapping[Api, tuple[tuple[str, _Check], ...]]] = {
    api: tuple(checks.items())
    for api, checks in {
        Api.CHAT: _CHAT_OR_COMPLETION
        | {"max_tokens": _integer(1), "logprobs": _flag, "top_logprobs": _integer(0, LOGPROBS_MAX)},
        Api.COMPLETIONS: _CHAT_OR_COMPLETION
        | {"max_tokens": _completion_tokens, "echo": _flag, "logprobs": _integer(0, LOGPROBS_MAX)},
        Api.EMBEDDINGS: _ALWAYS,
        Api.RESPONSES: _GENERATING
        | {
            "max_output_tokens": _integer(1),
            "top_logprobs": _integer(0, LOGPROBS_MAX),
            "reasoning": _reasoning,
            "background": _background,
            "previous_response_id": _previous_response,
        },
        Api.INFER: _ALWAYS | {"inputs": check_tensors, "outputs": check_tensors, "parameters": check_parameters},
    }.items()
}


def check(fields: Fields, api: Api) -> None:
    """Raises `BadRequest` for the first value that no engine should see."""
    for name, judge in _CHECKS[api]:
        if name in fields:
            judge(fields, name)
