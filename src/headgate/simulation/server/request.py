"""Parses requests to the simulated engine.

There is no tokenizer. Four bytes of text count as one token, and the tokens per image are set in the engine's options.
Block names are hashes of the prompt's bytes, so that equal prefixes hit the prefix cache as in vLLM.
"""

import math
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeVar, cast

import msgspec

from headgate.model.engine_profile import EngineProfile
from headgate.model.ticket import Api
from headgate.simulation.server.error_response import (
    bad_request,
    model_not_found,
    output_too_long,
    prompt_too_long,
    validation_error,
)
from headgate.simulation.server.options import EngineOptions

BYTES_PER_TOKEN: Final = 4
CHOICES_MAX: Final = 128
COMPLETION_TOKENS_DEFAULT: Final = 16
"""Default output limit for /v1/completions, in both the OpenAI API and vLLM."""

_FIELD: Final = re.compile(r" - at `\$\.?([^`]*)`$")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    temperature: float | None = None
    top_p: float | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _ChatBody(_Body, kw_only=True):
    messages: list[_Message]


class _CompletionsBody(_Body, kw_only=True):
    prompt: str | list[Any]


class _EmbeddingsBody(_Body, kw_only=True):
    input: str | list[Any]
    encoding_format: str | None = None
    dimensions: int | None = None


_CHAT: Final = msgspec.json.Decoder(_ChatBody)
_COMPLETIONS: Final = msgspec.json.Decoder(_CompletionsBody)
_EMBEDDINGS: Final = msgspec.json.Decoder(_EmbeddingsBody)
_T = TypeVar("_T", bound=_Body)


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: int
    block_hashes: tuple[int, ...]
    digest: bytes
    """Digest of the prompt's text only. The output is drawn from it."""


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    api: Api
    prompts: list[Prompt]
    choices_per_prompt: int
    """Number of outputs per prompt."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    output_tokens_max: int
    output_tokens_min: int
    ignores_eos: bool
    """Whether outputs continue to the maximum length without a stop token."""
    priority: int
    as_base64: bool = False
    is_verbose: bool = False
    """Whether a transcript has details such as its language."""

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)


def parse_request(raw: bytes, api: Api, options: EngineOptions) -> SimulatedRequest:
    """Parses a request body. Raises `Refusal`."""
    match api:
        case Api.CHAT:
            chat = _decode(_CHAT, raw)
            text, images = _chat_text(chat.messages)
            if images and not options.image_tokens:
                raise bad_request(f"{options.model} is not a multimodal model", None)
            prompts = [_prompt(text, chat, options.profile, extra_tokens=images * options.image_tokens)]
            return _generation_request(api, chat, prompts, options)
        case Api.COMPLETIONS:
            completion = _decode(_COMPLETIONS, raw)
            texts = _texts(completion.prompt, "prompt")
            return _generation_request(
                api, completion, [_prompt(each, completion, options.profile) for each in texts], options
            )
        case Api.EMBEDDINGS:
            embedding = _decode(_EMBEDDINGS, raw)
            texts = _texts(embedding.input, "input")
            return _embeddings_request(
                embedding, [_prompt(each, embedding, options.profile) for each in texts], options
            )
        case _:
            raise AssertionError(f"the simulated engine does not support {api}")


def _decode(decoder: msgspec.json.Decoder[_T], raw: bytes) -> _T:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _FIELD.search(message)
        if found:
            raise validation_error(message[: found.start()], found[1]) from None
        missing = re.search(r"required field `(\w+)`", message)
        raise validation_error(message, missing[1] if missing else "") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise validation_error(f"JSON decode error: {error}", "") from None


def _generation_request(api: Api, body: _Body, prompts: list[Prompt], options: EngineOptions) -> SimulatedRequest:
    _check_model(body, options)
    context = options.profile.context_tokens
    longest = max(prompt.tokens for prompt in prompts)
    if longest >= context:
        raise prompt_too_long(context, longest)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if asked is None and api is Api.COMPLETIONS:
        asked = min(COMPLETION_TOKENS_DEFAULT, context - longest)
    if asked is not None and asked < 1:
        message = f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})"
        raise bad_request(message, "max_tokens")
    if asked is not None and longest + asked > context:
        raise output_too_long(context, longest, asked)
    output_max = context - longest if asked is None else asked
    stream_options = body.stream_options or _StreamOptions()
    return SimulatedRequest(
        api=api,
        prompts=prompts,
        choices_per_prompt=_choices(body),
        stream=body.stream or False,
        include_usage=stream_options.include_usage or False,
        continuous_usage=bool(stream_options.include_usage and stream_options.continuous_usage_stats),
        output_tokens_max=output_max,
        output_tokens_min=_output_min(body, output_max),
        ignores_eos=body.ignore_eos or False,
        priority=body.priority or 0,
    )


def _embeddings_request(body: _EmbeddingsBody, prompts: list[Prompt], options: EngineOptions) -> SimulatedRequest:
    _check_model(body, options)
    longest = max(prompt.tokens for prompt in prompts)
    if longest > options.profile.context_tokens:
        raise prompt_too_long(options.profile.context_tokens, longest)
    return SimulatedRequest(
        api=Api.EMBEDDINGS,
        prompts=prompts,
        choices_per_prompt=1,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        output_tokens_max=0,
        output_tokens_min=0,
        ignores_eos=False,
        priority=body.priority or 0,
        as_base64=body.encoding_format == "base64",
    )


def _check_model(body: _Body, options: EngineOptions) -> None:
    # Like vLLM, the engine accepts a request that does not specify a model.
    if body.model not in (None, "", options.model):
        raise model_not_found(str(body.model), options.model)


def _choices(body: _Body) -> int:
    choices = 1 if body.n is None else body.n
    if not 1 <= choices <= CHOICES_MAX:
        raise bad_request(f"n must be from 1 to {CHOICES_MAX}, got {choices}. (parameter=n, value={choices})", "n")
    return choices


def _output_min(body: _Body, output_max: int) -> int:
    least = body.min_tokens or 0
    if not 0 <= least <= output_max:
        message = f"min_tokens must be between 0 and max_tokens={output_max}, got {least}."
        raise bad_request(message, "min_tokens")
    return least


def _chat_text(messages: list[_Message]) -> tuple[bytes, int]:
    """Returns the text of the conversation and the number of parts that are not text."""
    if not messages:
        raise validation_error("List should have at least 1 item", "messages")
    said: list[str] = []
    media = 0
    for message in messages:
        said.append(message.role)
        content = message.content
        if isinstance(content, str):
            said.append(content)
        for part in content if isinstance(content, list) else ():
            text = part.get("text")
            media += not isinstance(text, str)
            said.append(text if isinstance(text, str) else "")
    return "\n".join(said).encode("utf-8", "surrogatepass"), media


def _texts(given: str | list[Any], field: str) -> list[bytes]:
    """Returns one or more prompts, given as text or as token IDs."""
    match given:
        case str():
            return [given.encode("utf-8", "surrogatepass")]
        case [int(), *_]:
            return [_token_ids(cast("list[object]", given), field)]
        case [str() | list(), *_]:
            return [text for each in given for text in _texts(cast("str | list[Any]", each), field)]
        case _:
            raise validation_error("Input should be a text, a list of texts or of token ids", field)


def _token_ids(ids: list[object], field: str) -> bytes:
    if not all(isinstance(each, int) and 0 <= each < 2**32 for each in ids):
        raise validation_error("Input should be a list of token ids", field)
    return b"".join(cast("int", each).to_bytes(BYTES_PER_TOKEN, "little") for each in ids)


def _prompt(text: bytes, body: _Body, profile: EngineProfile, *, extra_tokens: int = 0) -> Prompt:
    tokens = max(1, math.ceil(len(text) / BYTES_PER_TOKEN)) + extra_tokens
    names = () if tokens >= profile.context_tokens else block_hashes(text, body.cache_salt or "", profile.block_tokens)
    return Prompt(tokens, names, blake2b(text, digest_size=16).digest())


def block_hashes(text: bytes, salt: str, block_tokens: int) -> tuple[int, ...]:
    """Returns the names of a text's full blocks. Each depends on all previous blocks and on the salt."""
    size = block_tokens * BYTES_PER_TOKEN
    chain = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=7)
    names: list[int] = []
    for start in range(0, len(text) - size + 1, size):
        chain.update(text[start : start + size])
        names.append(int.from_bytes(chain.digest()))
    return tuple(names)
