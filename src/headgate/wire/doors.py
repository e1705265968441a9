"""APIs that differ from each other only in their paths and in the fields with their prompts.

Their requests are JSON objects with a model, and their responses are JSON objects that are never streamed. This table
is all that the gateway knows about them. A request is measured in the same way as embeddings are, with two exceptions:

- A request with two sides, such as a query and its documents, is a sequence for each pair. A side with one text is
  repeated for every text of the other side.
- A request that only needs the engine's tokenizer counts as one token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from headgate.model.ticket import TOKENIZER_APIS, Api
from headgate.wire.fields import BadRequest, Fields, is_given
from headgate.wire.media import has_media

_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])


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

    def prompt_fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*(name for pair in self.pairs for name in pair), *self.prompts, *self.unmeasured)))


DOORS: Final[Mapping[Api, Door]] = MappingProxyType(
    {
        Api.RERANK: Door(
            ("/v1/rerank", "/rerank", "/v2/rerank"), pairs=(("query", "documents"),), unmeasured=("texts",)
        ),
        Api.SCORE: Door(
            ("/v1/score", "/score"),
            pairs=(("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")),
            unmeasured=("query",),
        ),
        Api.CLASSIFY: Door(
            ("/classify", "/v1/classify"), prompts=("input", "messages"), unmeasured=("text", "input_ids")
        ),
        Api.POOLING: Door(("/pooling",), prompts=("input", "messages", "data")),
        Api.TOKENIZE: Door(("/tokenize",), prompts=("prompt", "messages", "content")),
        Api.DETOKENIZE: Door(("/detokenize",), prompts=("tokens",)),
    }
)


@dataclass(frozen=True, slots=True)
class DoorPrompt:
    text_bytes: int
    """Bytes of all sequences."""
    sequences: int
    media: bool


def measure_door(fields: Fields, api: Api) -> DoorPrompt | bytes:
    """Returns the measured prompt of a request with pairs, and the value of the prompt field of any other request."""
    door = DOORS[api]
    for left, right in door.pairs:
        if is_given(fields, left) and is_given(fields, right):
            _require_only(fields, door, (left, right))
            return _measure_pairs(bytes(fields[left]), bytes(fields[right]), right)
    for name in door.prompts:
        if is_given(fields, name):
            _require_only(fields, door, (name,))
            value = bytes(fields[name])
            if api in TOKENIZER_APIS or name in ("input", "prompt"):
                return value
            return DoorPrompt(len(value), 1, has_media(value))
    first = " and ".join(f'"{name}"' for name in (door.pairs[0] if door.pairs else door.prompts[:1]))
    raise BadRequest(f"{first} must be given", door.pairs[0][1] if door.pairs else door.prompts[0])


def _require_only(fields: Fields, door: Door, measured: tuple[str, ...]) -> None:
    """Rejects a request with a second prompt, because the engine might take that one instead of the measured one."""
    for name in door.prompt_fields():
        if name not in measured and is_given(fields, name):
            prompt = " and ".join(f'"{each}"' for each in measured)
            raise BadRequest(f'"{name}" cannot be combined with {prompt}; remove one of them', name)


def _measure_pairs(left: bytes, right: bytes, name: str) -> DoorPrompt:
    lefts, rights = _texts(left), _texts(right)
    if not lefts or not rights:
        raise BadRequest(f'"{name}" is empty; it must have at least one element', name)
    pairs = max(lefts, rights)
    # The shorter side is repeated only if it is a single text. Otherwise the engine rejects the request.
    length = len(left) * (pairs if lefts == 1 else 1) + len(right) * (pairs if rights == 1 else 1)
    return DoorPrompt(length, pairs, has_media(left) or has_media(right))


def _texts(raw: bytes) -> int:
    return len(_ELEMENTS.decode(raw)) if raw.startswith(b"[") else 1
