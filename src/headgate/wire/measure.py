"""Measures the prompt of a request, in all fields that become tokens.

A prompt is measured in bytes; the scheduler learns the number of tokens per byte. Besides the messages, a chat template
adds other fields to the prompt: tools, functions, documents, the schema of the answer. Images and audio count as a
fixed number of tokens (`media.py`).

`/v1/completions` and `/v1/embeddings` accept several prompts in one array. They are counted, since an engine computes
each as a separate sequence. The tensors in `prompt_embeds` of `/v1/completions` are counted too; the length of a tensor
gives its approximate number of tokens.
"""

from typing import Final, NamedTuple

import msgspec

from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.conversation import measure as measure_messages
from headgate.wire.conversation import text_bytes
from headgate.wire.fields import BadRequest, Fields, not_of_kind
from headgate.wire.media import has_media

PROMPT_FIELD: Final = {
    Api.CHAT: "messages",
    Api.COMPLETIONS: "prompt",
    Api.EMBEDDINGS: "input",
    Api.RESPONSES: "input",
    Api.INFER: "inputs",
}
BEFORE: Final = {
    Api.CHAT: ("tools", "functions", "documents", "chat_template", "chat_template_kwargs"),
    Api.RESPONSES: ("tools",),
}
"""Fields that templates put before the conversation. Two prompts share a prefix only if these are equal."""
_BESIDE: Final = {
    Api.CHAT: ("response_format", "prediction"),
    Api.COMPLETIONS: ("suffix", "response_format"),
    Api.RESPONSES: ("text",),
}
"""Further fields that may become tokens."""
EMBEDS: Final = "prompt_embeds"
EMBED_CHARS_PER_TOKEN: Final = 1_024
"""Characters of `prompt_embeds` that count as one token of a prompt.

The field is the base64 of a tensor with one row for each token. A row of a small model, 384 numbers of two bytes, has
1,024 characters; rows of larger models have more. So a tensor is counted too high rather than too low, by a factor of
about 20 for rows of 8,192 numbers, until the engine reports the true number. It is an estimate: the tensor is not
decoded, and one whose rows share memory has more rows than it counts for.
"""
_NOTHING: Final = (b"null", b"[]", b"{}", b'""')
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_PROMPTS: Final = b'"[{'
"""First byte of an array element that is a whole prompt, not a token id."""


class PromptLength(NamedTuple):
    """Length of a prompt in bytes; media counts as the bytes equivalent to its tokens."""

    text: int
    """Bytes of the messages, the prompts or the input."""
    text_kept: int
    """Bytes of `text` that remain after all removable turns are left out."""
    before: int = 0
    """Bytes of fields that come before the text in the engine's prompt."""
    beside: int = 0
    """Bytes of all other fields that become tokens."""
    prompts: int = 1
    """Number of sequences that an engine computes, not multiplied by the answers to each."""
    media: bool = False
    """Whether there may be media in the text."""

    @property
    def other(self) -> int:
        return self.before + self.beside


def measure_prompt(fields: Fields, api: Api) -> PromptLength:
    name = PROMPT_FIELD[api]
    raw = bytes(fields.get(name, b"null"))
    length = kept = None
    prompts = 1
    media = False
    match raw[:1]:
        case b"n":
            raise BadRequest(f'"{name}" is missing; this path needs it', name)
        case b"[" if raw[1:].lstrip()[:1] == b"]":
            raise BadRequest(f'"{name}" is empty; put at least one element into it', name)
        case b"[" if api is Api.CHAT:
            media = has_media(raw)
            length, kept = measure_messages(raw, media=media)
        case b"[" if api is Api.RESPONSES:
            media = has_media(raw)
            length = text_bytes(raw, name) if media else len(raw)
        case b"[":
            length, prompts = _measure_array(raw)
            media = b"{" in raw and has_media(raw)
        case b'"' if api is not Api.CHAT:
            length = len(raw)
        case _:
            kind = "an array of messages" if api is Api.CHAT else "a string or an array"
            raise not_of_kind(name, kind, raw)
    if api is Api.RESPONSES:
        length += _instructions_bytes(fields)
    before = _bytes_of(fields, BEFORE.get(api, ()))
    beside = _bytes_of(fields, _BESIDE.get(api, ()))
    if api is Api.COMPLETIONS and EMBEDS in fields:
        embeds_bytes, embeds = _measure_embeds(bytes(fields[EMBEDS]))
        beside += embeds_bytes
        # A caller that sends only tensors must still send a prompt, which is empty and does not count as a sequence.
        prompts = max(1, prompts + embeds - (raw == b'""'))
    return PromptLength(length, length if kept is None else kept, before, beside, prompts, media)


def _measure_array(raw: bytes) -> tuple[int, int]:
    """Length of an array of prompts or of the token ids of one prompt, and the number of prompts."""
    if b'"' not in raw and raw[1:].lstrip()[:1] in b"0123456789[":
        # A comma follows every token id except the last.
        return BYTES_PER_TOKEN * (raw.count(b",") + 1), max(1, raw.count(b"[") - 1)
    elements = _ELEMENTS.decode(raw)
    return len(raw), max(1, sum(memoryview(each)[0] in _PROMPTS for each in elements))


def _measure_embeds(raw: bytes) -> tuple[int, int]:
    """Length of one tensor or an array of tensors, in the bytes of an equivalent prompt, and the number of tensors."""
    if raw in _NOTHING:
        return 0, 0
    lengths = [len(memoryview(each)) for each in _ELEMENTS.decode(raw)] if raw.startswith(b"[") else [len(raw)]
    tokens = sum(-(-length // EMBED_CHARS_PER_TOKEN) for length in lengths)
    return BYTES_PER_TOKEN * tokens, len(lengths)


def _instructions_bytes(fields: Fields) -> int:
    instructions = bytes(fields.get("instructions", b"null"))
    if instructions == b"null":
        return 0
    if not instructions.startswith(b'"'):
        raise not_of_kind("instructions", "a string", instructions)
    return len(instructions)


def _bytes_of(fields: Fields, names: tuple[str, ...]) -> int:
    length = 0
    for name in names:
        if name in fields:
            value = memoryview(fields[name])
            if bytes(value[:4]) not in _NOTHING:
                length += len(value)
    return length
