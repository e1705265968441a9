"""How is an answer written down? The bytes of vLLM 0.32, chunk by chunk or whole.

A chunk of a stream differs from the one before by its word alone. What stands before and after it is made once per
choice, so that a token costs one joining of bytes.
"""

import base64
import struct
from hashlib import blake2b
from typing import Any, Final

import msgspec

from headgate.model.ticket import Api
from headgate.simulation.server.chance import WORDS, Script
from headgate.simulation.server.question import Prompt

DONE: Final = b"data: [DONE]\n\n"
EMBEDDING_SIZE: Final = 64
VERSION: Final = "0.32.0+headgate.simulated"
FINGERPRINT: Final = "headgate-simulated"

_ENCODER: Final = msgspec.json.Encoder()
_WORDS: Final = tuple(word.encode() for word in WORDS)
_END: Final = b"}\n\n"


def usage_of(prompt_tokens: int, output_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


class ChunkWriter:
    """Writes the chunks of one choice of a stream."""

    __slots__ = ("_finish", "_head", "_last", "_place", "_stride", "_tail", "_usage", "opening", "sent", "total")

    def __init__(self, start: bytes, index: int, script: Script, api: Api, *, usage: "RunningUsage | None") -> None:
        """`start` is what all chunks of the answer begin with."""
        place = b'"choices":[{"index":%d,' % index
        reason = b"stop" if script.ends_by_itself else b"length"
        if api is Api.CHAT:
            self.opening = (
                start + place + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            )
            self._head = start + place + b'"delta":{"content":"'
            self._tail = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
            self._finish = b'"},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]' % reason
        else:
            self.opening = b""
            self._head = start + place + b'"text":"'
            self._tail = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}]'
            self._finish = b'","logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]' % reason
        if usage is None:
            # With its end known beforehand, a chunk is three pieces.
            self._tail += _END
            self._finish += _END
        if self.opening:
            self.opening += _END if usage is None else usage.field(0) + _END
        self._usage = usage
        self._last = b"" if script.ends_by_itself else None
        """The text of the last token, where it is no word."""
        self._place = script.first_word
        self._stride = script.stride
        self.sent = 0
        self.total = script.output_tokens

    def next(self) -> bytes:
        """The chunk of the next token, with the opening before the first and the reason in the last."""
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
    """Usage as each chunk of a stream tells it, where the caller asked for that."""

    __slots__ = ("_prompt_tokens", "_sent")

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._sent = 0

    def field(self, more: int) -> bytes:
        self._sent += more
        return b',"usage":' + _ENCODER.encode(usage_of(self._prompt_tokens, self._sent))


def stream_start(answer_id: str, created: int, model: str, api: Api) -> bytes:
    """What every chunk of a stream begins with."""
    kind = "chat.completion.chunk" if api is Api.CHAT else "text_completion"
    head = _ENCODER.encode({"id": answer_id, "object": kind, "created": created, "model": model})
    return b"data: " + head[:-1] + b","


def usage_chunk(start: bytes, prompt_tokens: int, output_tokens: int) -> bytes:
    usage = _ENCODER.encode(usage_of(prompt_tokens, output_tokens))
    return start + b'"choices":[],"usage":' + usage + b',"system_fingerprint":"%b"}\n\n' % FINGERPRINT.encode()


def whole(
    answer_id: str, created: int, *, model: str, api: Api, scripts: list[Script], usage: dict[str, object] | None
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


def _choice(index: int, script: Script, api: Api) -> dict[str, object]:
    reason = "stop" if script.ends_by_itself else "length"
    text = script.text()
    said: dict[str, object] = {"text": text, "prompt_logprobs": None, "prompt_token_ids": None}
    if api is Api.CHAT:
        unsaid = ("refusal", "annotations", "audio", "function_call", "reasoning")
        said = {"message": {"role": "assistant", "content": text} | dict.fromkeys(unsaid)}
    unset = dict.fromkeys(("logprobs", "stop_reason", "token_ids", "routed_experts"))
    return {"index": index, "finish_reason": reason} | said | unset


def embeddings(
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
    """As good as any, and the same for the same text."""
    raw = b"".join(blake2b(digest, digest_size=64, salt=bytes([part])).digest() for part in range(EMBEDDING_SIZE // 32))
    numbers = [value / 2**15 for value in struct.unpack(f"<{EMBEDDING_SIZE}h", raw)]
    if not as_base64:
        return numbers
    return base64.b64encode(struct.pack(f"<{EMBEDDING_SIZE}f", *numbers)).decode()


def models(model: str, created: int, context_tokens: int) -> bytes:
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


def version() -> bytes:
    return _ENCODER.encode({"version": VERSION})
