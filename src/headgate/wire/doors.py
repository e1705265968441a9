"""APIs that differ from each other only in their paths and in the fields with their prompts.

Their requests are JSON objects with a model, and their responses are JSON objects that are never streamed. This table
is all that the gateway knows about them. A request is measured in the same way as embeddings are, with three
exceptions:

- A request with two sides, such as a query and its documents, is a sequence for each pair. A side with one text is
  repeated for every text of the other side. A side can also be an object whose content parts are the texts.
- Fields such as an instruction are repeated for every sequence.
- The prompt of a request that only needs the engine's tokenizer is always one sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.conversation import element_bytes, elements_bytes
from headgate.wire.fields import BadRequest, Fields, is_given
from headgate.wire.media import has_media

PADDED_TOKENS: Final = 8_192
"""Number of tokens that a sequence padded to the model's maximum length counts as, besides its own.

The gateway does not know this length when it parses a request. This is the length of common embedding models.
"""

_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(Fields)
_NOT_PADDED: Final = (b"null", b'"do_not_pad"')
_TEMPLATE_FIELDS: Final = ("chat_template", "chat_template_kwargs")
_PAIR_FIELDS: Final = ("instruction", "instruct", *_TEMPLATE_FIELDS)


@dataclass(frozen=True, slots=True)
class Door:
    paths: tuple[str, ...]
    """Paths of the gateway. Engines have the first one."""
    prompts: tuple[str, ...] = ()
    """Fields that may contain the prompt or the prompts. A request has one of them."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Fields that may contain the two sides of each pair. A request has both fields of one element."""
    unmeasured: tuple[str, ...] = ()
    """Further fields that some engine takes a prompt from. Requests with them are rejected."""
    shared: tuple[str, ...] = ()
    """Further fields that may become tokens of every sequence."""
    one_query: bool = False
    """Whether the first side of a pair is always one text. If it is an array, its elements are the parts of the text.
    """

    def prompt_fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*(name for pair in self.pairs for name in pair), *self.prompts, *self.unmeasured)))


DOORS: Final[Mapping[Api, Door]] = MappingProxyType(
    {
        Api.RERANK: Door(
            ("/v1/rerank", "/rerank", "/v2/rerank"),
            pairs=(("query", "documents"),),
            unmeasured=("texts",),
            shared=_PAIR_FIELDS,
            one_query=True,
        ),
        Api.SCORE: Door(
            ("/v1/score", "/score"),
            pairs=(("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")),
            unmeasured=("query",),
            shared=_PAIR_FIELDS,
        ),
        Api.CLASSIFY: Door(
            ("/classify", "/v1/classify"),
            prompts=("input", "messages"),
            unmeasured=("text", "input_ids"),
            shared=_TEMPLATE_FIELDS,
        ),
        Api.POOLING: Door(("/pooling",), prompts=("input", "messages", "data"), shared=_TEMPLATE_FIELDS),
        Api.TOKENIZE: Door(
            ("/tokenize",), prompts=("prompt", "messages", "content"), shared=("tools", *_TEMPLATE_FIELDS)
        ),
        Api.DETOKENIZE: Door(("/detokenize",), prompts=("tokens",)),
    }
)


def find_prompt(fields: Fields, api: Api) -> tuple[str, ...]:
    """Returns the names of the fields with the prompt: both sides of the pairs, or one field."""
    door = DOORS[api]
    for pair in door.pairs:
        if is_given(fields, pair[0]) and is_given(fields, pair[1]):
            _require_only(fields, door, pair)
            return pair
    for name in door.prompts:
        if is_given(fields, name):
            _require_only(fields, door, (name,))
            return (name,)
    first = " and ".join(f'"{name}"' for name in (door.pairs[0] if door.pairs else door.prompts[:1]))
    raise BadRequest(f"{first} must be given", door.pairs[0][1] if door.pairs else door.prompts[0])


def _require_only(fields: Fields, door: Door, measured: tuple[str, ...]) -> None:
    """Rejects a request with a second prompt, because the engine might take that one instead of the measured one."""
    for name in door.prompt_fields():
        if name not in measured and is_given(fields, name):
            prompt = " and ".join(f'"{each}"' for each in measured)
            raise BadRequest(f'"{name}" cannot be combined with {prompt}; remove one of them', name)


def measure_pairs(fields: Fields, api: Api, pair: tuple[str, ...]) -> tuple[int, int, bool]:
    """Returns the length of all pairs, their number, and whether they may contain media."""
    left_name, right_name = pair
    left, right = bytes(fields[left_name]), bytes(fields[right_name])
    left_bytes, lefts = _measure_side(left, left_name, one_text=DOORS[api].one_query)
    right_bytes, rights = _measure_side(right, right_name)
    if not lefts or not rights:
        empty = right_name if not rights else left_name
        raise BadRequest(f'"{empty}" is empty; it must have at least one element', empty)
    pairs = max(lefts, rights)
    # The shorter side is repeated only if it is a single text. Otherwise the engine rejects the request.
    length = left_bytes * (pairs if lefts == 1 else 1) + right_bytes * (pairs if rights == 1 else 1)
    return length, pairs, has_media(left) or has_media(right)


def _measure_side(raw: bytes, name: str, *, one_text: bool = False) -> tuple[int, int]:
    """Returns the length of one side of the pairs, and its number of texts."""
    if one_text or raw[:1] not in (b"[", b"{"):
        return element_bytes(raw, name), 1
    if raw.startswith(b"{"):
        return element_bytes(raw, name), _count_parts(raw)
    texts = _ELEMENTS.decode(raw)
    length = elements_bytes(texts, name) if has_media(raw) else len(raw)
    return length, len(texts)


def _count_parts(raw: bytes) -> int:
    """Returns the number of texts in a side that is an object. vLLM makes a pair of each part of its content."""
    content = bytes(_OBJECT.decode(raw).get("content", b""))
    return len(_ELEMENTS.decode(content)) if content.startswith(b"[") else 1


def padding_bytes(fields: Fields) -> int:
    """Returns the length by which the engine pads each sequence."""
    padded = "padding" in fields and bytes(fields["padding"]) not in _NOT_PADDED
    return PADDED_TOKENS * BYTES_PER_TOKEN if padded else 0
