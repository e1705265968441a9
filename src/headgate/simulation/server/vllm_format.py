"""Response bodies in the format of vLLM 0.32, as stream chunks or as one body.

Most chunks in a stream differ only in their word. The bytes before and after it are prepared once per choice, so that a
token costs only one concatenation.
"""

import base64
import struct
from hashlib import blake2b
from typing import Any, Final

import msgspec

from headgate.model.ticket import FORM_APIS, Api
from headgate.simulation.server.request import Prompt
from headgate.simulation.server.sampling import WORDS, SampledOutput

DONE: Final = b"data: [DONE]\n\n"
EMBEDDING_SIZE: Final = 64
VERSION: Final = "0.32.0+headgate.simulated"
FINGERPRINT: Final = "headgate-simulated"

_ENCODER: Final = msgspec.json.Encoder()
_WORDS: Final = tuple(word.encode() for word in WORDS)
_END: Final = b"}\n\n"
_CHUNKS: Final = {
    Api.CHAT: "chat.completion.chunk",
    Api.TRANSCRIPTIONS: "transcription.chunk",
    Api.TRANSLATIONS: "translation.chunk",
}


def usage_of(prompt_tokens: int, output_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


class ChunkWriter:
    """Writes the stream chunks of one choice."""

    __slots__ = ("_finish", "_head", "_last", "_place", "_stride", "_tail", "_usage", "opening", "sent", "total")

    def __init__(
        self, start: bytes, index: int, script: SampledOutput, api: Api, *, usage: "RunningUsage | None"
    ) -> None:
        """Prepares the constant parts. `start` is the beginning shared by all chunks of the response."""
        place = b'"choices":[{"index":%d,' % index
        reason = b"stop" if script.ends_with_eos else b"length"
        if api is Api.CHAT:
            self.opening = (
                start + place + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            )
            self._head = start + place + b'"delta":{"content":"'
            self._tail = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
            self._finish = b'"},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]' % reason
        elif api in FORM_APIS:
            self.opening = b""
            self._head = start + b'"choices":[{"delta":{"content":"'
            self._tail = b'"}}]'
            self._finish = b'"},"finish_reason":"%b","stop_reason":null}]' % reason
        else:
            self.opening = b""
            self._head = start + place + b'"text":"'
            self._tail = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}]'
            self._finish = b'","logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]' % reason
        if usage is None:
            # Without usage fields, every chunk has the same ending.
            self._tail += _END
            self._finish += _END
        if self.opening:
            self.opening += _END if usage is None else usage.field(0) + _END
        self._usage = usage
        self._last = b"" if script.ends_with_eos else None
        """Text of a stop token. None if the last token is a word."""
        self._place = script.first_word
        self._stride = script.stride
        self.sent = 0
        self.total = script.output_tokens

    def next_chunk(self) -> bytes:
        """Returns the next token's chunk.

        The first one includes the opening chunk, and the last one has the finish reason.
        """
        word = _WORDS[self._place]
        self._place = (self._place + self._stride) % len(_WORDS)
        self.sent += 1
        if 1 < self.sent < self.total and self._usage is None:
            return self._head + word + self._tail
        if self.sent == 1:
            word = word.lstrip()
        if self.sent < self.total:
            chunk = self._head + word + self._tail
        else:
            chunk = self._head + (word if self._last is None else self._last) + self._finish
        if self._usage is not None:
            chunk += self._usage.field(1) + _END
        return self.opening + chunk if self.sent == 1 else chunk


class RunningUsage:
    """Usage field of every stream chunk, if the client requested it."""

    __slots__ = ("_prompt_tokens", "_sent")

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._sent = 0

    def field(self, more: int) -> bytes:
        self._sent += more
        return b',"usage":' + _ENCODER.encode(usage_of(self._prompt_tokens, self._sent))


def chunk_head(answer_id: str, created: int, model: str, api: Api) -> bytes:
    """Returns the beginning shared by all chunks of a stream."""
    kind = _CHUNKS.get(api, "text_completion")
    head = _ENCODER.encode({"id": answer_id, "object": kind, "created": created, "model": model})
    return b"data: " + head[:-1] + b","


def usage_chunk(start: bytes, prompt_tokens: int, output_tokens: int) -> bytes:
    usage = _ENCODER.encode(usage_of(prompt_tokens, output_tokens))
    return start + b'"choices":[],"usage":' + usage + b',"system_fingerprint":"%b"}\n\n' % FINGERPRINT.encode()


def completion_body(
    answer_id: str, created: int, *, model: str, api: Api, scripts: list[SampledOutput], usage: dict[str, object] | None
) -> bytes:
    body: dict[str, object] = {
        "id": answer_id,
        "object": "chat.completion" if api is Api.CHAT else "text_completion",
        "created": created,
        "model": model,
        "choices": [_choice(index, script, api) for index, script in enumerate(scripts)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
    }
    if usage is not None:
        body["usage"] = usage | dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))
    further = ("prompt_logprobs", "prompt_token_ids", "prompt_text") if api is Api.CHAT else ()
    return _ENCODER.encode(body | dict.fromkeys((*further, "kv_transfer_params", "ec_transfer_params", "metrics")))


def _choice(index: int, script: SampledOutput, api: Api) -> dict[str, object]:
    reason = "stop" if script.ends_with_eos else "length"
    text = script.text()
    said: dict[str, object] = {"text": text, "prompt_logprobs": None, "prompt_token_ids": None}
    if api is Api.CHAT:
        unsaid = ("refusal", "annotations", "audio", "function_call", "reasoning")
        said = {"message": {"role": "assistant", "content": text} | dict.fromkeys(unsaid)}
    unset = dict.fromkeys(("logprobs", "stop_reason", "token_ids", "routed_experts"))
    return {"index": index, "finish_reason": reason} | said | unset


def embeddings_body(
    answer_id: str,
    created: int,
    *,
    model: str,
    prompts: list[Prompt],
    usage: dict[str, object] | None,
    as_base64: bool,
) -> bytes:
    data = [
        {"index": index, "object": "embedding", "embedding": _vector(prompt.digest, as_base64=as_base64)}
        for index, prompt in enumerate(prompts)
    ]
    body: dict[str, object] = {"id": answer_id, "object": "list", "created": created, "model": model, "data": data}
    return _ENCODER.encode(body if usage is None else body | {"usage": usage})


def _vector(digest: bytes, *, as_base64: bool) -> list[float] | str:
    """Returns an arbitrary vector that is always the same for a given text."""
    raw = b"".join(blake2b(digest, digest_size=64, salt=bytes([part])).digest() for part in range(EMBEDDING_SIZE // 32))
    numbers = [value / 2**15 for value in struct.unpack(f"<{EMBEDDING_SIZE}h", raw)]
    if not as_base64:
        return numbers
    return base64.b64encode(struct.pack(f"<{EMBEDDING_SIZE}f", *numbers)).decode()


def models_body(model: str, created: int, context_tokens: int) -> bytes:
    listed: dict[str, Any] = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": context_tokens,
    }
    return _ENCODER.encode({"object": "list", "data": [listed]})


def version_body() -> bytes:
    return _ENCODER.encode({"version": VERSION})
