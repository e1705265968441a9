"""Measures a request's prompt, across all fields that become tokens.

A prompt is measured in bytes, and the scheduler learns the number of tokens per byte. Besides the messages, a chat
template adds other fields to the prompt: tools, functions, documents and the response schema. Images and audio count as
a fixed number of tokens (`media.py`).

`/v1/messages` has its own content blocks (`messages_length.py`).

`/v1/completions` and `/v1/embeddings` accept several prompts in one array. The prompts are counted, because an engine
processes each one as a separate sequence. The tensors in the `prompt_embeds` field of `/v1/completions` are counted
too. The length of a tensor gives its approximate number of tokens.
"""

from typing import Final, NamedTuple

import msgspec

from headgate.model.ticket import ANTHROPIC_APIS, TOKENIZER_APIS, Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.conversation import elements_bytes, text_bytes
from headgate.wire.conversation import measure as measure_messages
from headgate.wire.doors import DOORS, find_prompt, measure_pairs, padding_bytes
from headgate.wire.fields import BadRequest, Fields, wrong_type
from headgate.wire.media import has_media
from headgate.wire.messages_length import measure_blocks

PROMPT_FIELD: Final = {
    Api.CHAT: "messages",
    Api.COMPLETIONS: "prompt",
    Api.EMBEDDINGS: "input",
    Api.RESPONSES: "input",
    Api.INFER: "inputs",
    Api.MESSAGES: "messages",
    Api.COUNT_TOKENS: "messages",
}
PREAMBLE_FIELDS: Final = {
    Api.CHAT: ("tools", "functions", "documents", "chat_template", "chat_template_kwargs"),
    Api.RESPONSES: ("tools",),
    Api.MESSAGES: ("tools", "chat_template_kwargs"),
    Api.COUNT_TOKENS: ("tools", "chat_template_kwargs"),
}
"""Fields that chat templates put before the conversation. Two prompts share a prefix only if these fields are equal."""
_OTHER_FIELDS: Final = {
    Api.CHAT: ("response_format", "prediction"),
    Api.COMPLETIONS: ("suffix", "response_format"),
    Api.RESPONSES: ("text",),
    Api.MESSAGES: ("output_config",),
    Api.COUNT_TOKENS: ("output_config",),
}
"""Other fields that may become tokens."""
_CHAT: Final = Api.CHAT
_CHAT_FIELDS: Final = frozenset((*PREAMBLE_FIELDS[_CHAT], *_OTHER_FIELDS[_CHAT]))
PROMPT_EMBEDS: Final = "prompt_embeds"
EMBED_CHARS_PER_TOKEN: Final = 1_024
"""Number of `prompt_embeds` characters that count as one prompt token.

The field is a base64-encoded tensor with one row per token. In a small model, a row of 384 two-byte numbers has 1,024
characters. Rows of larger models are longer, so their tokens are overestimated until the engine reports the actual
number. For rows of 8,192 numbers, the factor is about 20. The tensor is not decoded. If its rows share memory, it has
more rows than estimated.
"""
_NOTHING: Final = (b"null", b"[]", b"{}", b'""')
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_PROMPTS: Final = b'"[{'
"""First bytes of array elements that are prompts rather than token IDs."""


class PromptLength(NamedTuple):
    """Length of a prompt in bytes. Media counts as the equivalent number of bytes for its tokens."""

    text: int
    """Bytes of the messages, prompts or input."""
    text_min: int
    """Bytes of `text` that remain after all removable turns have been removed."""
    preamble: int = 0
    """Bytes of fields that come before the text in the engine's prompt."""
    extra: int = 0
    """Bytes of all other fields that become tokens."""
    prompts: int = 1
    """Number of prompts, each of which an engine processes as a separate sequence.

    Multiple choices are not included.
    """
    media: bool = False
    """Whether the text may contain media."""

    @property
    def other(self) -> int:
        return self.preamble + self.extra


def measure_prompt(fields: Fields, api: Api) -> PromptLength:
    if api is _CHAT:
        return _measure_chat(fields)
    if api in ANTHROPIC_APIS:
        return _measure_messages(fields, api)
    if api in DOORS:
        return _measure_door(fields, api)
    name = PROMPT_FIELD[api]
    raw = bytes(fields.get(name, b"null"))
    prompts = 1
    media = False
    match raw[:1]:
        case b"n":
            raise _missing(name)
        case b"[" if raw[1:].lstrip()[:1] == b"]":
            raise _empty(name)
        case b"[" if api is Api.RESPONSES:
            media = has_media(raw)
            length = text_bytes(raw, name) if media else len(raw)
        case b"[":
            length, prompts, media = _measure_array(raw, name)
        case b'"':
            length = len(raw)
        case _:
            raise wrong_type(name, "a string or an array", raw)
    if api is Api.RESPONSES:
        length += _instructions_bytes(fields)
    before = _bytes_of(fields, PREAMBLE_FIELDS.get(api, ()))
    beside = _bytes_of(fields, _OTHER_FIELDS.get(api, ()))
    if api is Api.COMPLETIONS and PROMPT_EMBEDS in fields:
        embeds_bytes, embeds = _measure_embeds(bytes(fields[PROMPT_EMBEDS]))
        beside += embeds_bytes
        # A client that sends only tensors must still send a prompt. An empty prompt does not count as a sequence.
        prompts = max(1, prompts + embeds - (raw == b'""'))
    if api is Api.EMBEDDINGS:
        beside += prompts * padding_bytes(fields)
    return PromptLength(length, length, before, beside, prompts, media)


def _measure_chat(fields: Fields) -> PromptLength:
    raw = bytes(fields.get("messages", b"null"))
    if not raw.startswith(b"["):
        raise _missing("messages") if raw.startswith(b"n") else wrong_type("messages", "an array of messages", raw)
    if not raw.startswith(b"[{") and raw[1:].lstrip()[:1] == b"]":
        raise _empty("messages")
    length, kept, media = measure_messages(raw)
    before = beside = 0
    if not _CHAT_FIELDS.isdisjoint(fields):
        before = _bytes_of(fields, PREAMBLE_FIELDS[_CHAT])
        beside = _bytes_of(fields, _OTHER_FIELDS[_CHAT])
    return PromptLength(length, kept, before, beside, 1, media)


def _measure_door(fields: Fields, api: Api) -> PromptLength:
    names = find_prompt(fields, api)
    name = names[0]
    raw = bytes(fields[name])
    if len(names) == 2:
        length, prompts, media = measure_pairs(fields, api, names)
    elif api in TOKENIZER_APIS and name != "messages":
        length, prompts, media = _tokenizer_bytes(raw, name), 1, False
    elif name == "input":
        length, prompts, media = _measure_input(raw, name)
    else:
        media = has_media(raw)
        # The data of a plug-in has no known structure.
        length = text_bytes(raw, name) if media and name == "messages" else len(raw)
        prompts = 1
    each = _bytes_of(fields, DOORS[api].shared) + padding_bytes(fields)
    return PromptLength(length, length, 0, each * prompts, prompts, media)


def _tokenizer_bytes(raw: bytes, name: str) -> int:
    """Returns the length of a text, or of an array of token IDs that may contain texts. Either may be empty."""
    return _measure_array(raw, name)[0] if raw.startswith(b"[") else len(raw)


def _measure_input(raw: bytes, name: str) -> tuple[int, int, bool]:
    """Returns the length of one or more prompts, their number, and whether they may contain media."""
    if raw.startswith(b'"'):
        return len(raw), 1, False
    if not raw.startswith(b"["):
        raise wrong_type(name, "a string or an array", raw)
    if raw[1:].lstrip()[:1] == b"]":
        raise _empty(name)
    return _measure_array(raw, name)


def _measure_messages(fields: Fields, api: Api) -> PromptLength:
    raw = bytes(fields.get("messages", b"null"))
    if not raw.startswith(b"["):
        raise _missing("messages") if raw.startswith(b"n") else wrong_type("messages", "an array of messages", raw)
    if raw[1:].lstrip()[:1] == b"]":
        raise _empty("messages")
    length, media = measure_blocks(raw, "messages")
    if "system" in fields:
        system = bytes(fields["system"])
        if not system.startswith((b'"', b"[", b"null")):
            raise wrong_type("system", "a string or an array of text blocks", system)
        length += 0 if system == b"null" else len(system)
    before = _bytes_of(fields, PREAMBLE_FIELDS[api])
    beside = _bytes_of(fields, _OTHER_FIELDS[api])
    return PromptLength(length, length, before, beside, 1, media)


def _missing(name: str) -> BadRequest:
    return BadRequest(f'"{name}" is missing; it is required', name)


def _empty(name: str) -> BadRequest:
    return BadRequest(f'"{name}" is empty; it must have at least one element', name)


def _measure_array(raw: bytes, name: str) -> tuple[int, int, bool]:
    """Returns the length of an array of prompts or of a single prompt's token IDs, the number of prompts, and whether
    they may contain media.
    """
    if b'"' not in raw and raw[1:].lstrip()[:1] in b"0123456789[":
        # Every token ID except the last is followed by a comma.
        return BYTES_PER_TOKEN * (raw.count(b",") + 1), max(1, raw.count(b"[") - 1), False
    elements = _ELEMENTS.decode(raw)
    media = b"{" in raw and has_media(raw)
    length = elements_bytes(elements, name) if media else len(raw)
    return length, max(1, sum(memoryview(each)[0] in _PROMPTS for each in elements)), media


def _measure_embeds(raw: bytes) -> tuple[int, int]:
    """Returns the length of one or more tensors, in equivalent prompt bytes, and the number of tensors."""
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
        raise wrong_type("instructions", "a string", instructions)
    return len(instructions)


def _bytes_of(fields: Fields, names: tuple[str, ...]) -> int:
    length = 0
    for name in names:
        if name in fields:
            value = memoryview(fields[name])
            if bytes(value[:4]) not in _NOTHING:
                length += len(value)
    return length
