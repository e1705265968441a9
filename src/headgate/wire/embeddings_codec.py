"""Batch codec for embeddings.

A request contains one input or a list of inputs, and the engine returns one entry per input and the total usage. The
inputs of several requests can therefore be sent in one list if all other fields of the requests are identical byte for
byte. Each entry is then the same as it would be for a separate request. Entries are matched to inputs by the engine's
`index` and renumbered for each request.

Usage is split so that the parts add up to the total. A part is exact if the engine counts each entry or if the inputs
are token IDs. Otherwise the usage is split in proportion to text bytes and reported as an estimate.

A request that cannot be parsed exactly is not batched and is sent unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec

from headgate.model.units import BYTES_PER_TOKEN
from headgate.model.usage import TOKENS_MAX
from headgate.wire.batch_codec import BatchCodec, BatchInputs, BatchSplitError, ResponsePart
from headgate.wire.fields import Fields
from headgate.wire.request_body import LARGE_BYTES, RequestBody

INPUT: Final = "input"
JOINED_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of an input list that can be split, in bytes. Splitting a larger one would delay all streams."""
INPUTS_MAX: Final = 2_048
"""Maximum number of inputs per request in OpenAI's API. A longer list is sent unchanged, for the engine to check."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of a response that can be split, in bytes: about two hundred of the longest vectors."""
KEY_BYTES_MAX: Final = 4_096
"""Maximum size of a batched request's other fields, in bytes."""

_CALLER_FIELDS: Final = ("user",)
"""Fields about the client. They do not change the embedding and cannot apply to a batch from several clients."""
_REPLACED: Final = ("model", "cache_salt", "stream", "stream_options")
"""Fields that the gateway replaces, or removes for embeddings."""
_ENCODER: Final = msgspec.json.Encoder()
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_COUNT: Final = msgspec.json.Decoder(int)
_DIGITS: Final = b"-0123456789"
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

Entry = dict[str, msgspec.Raw]
"""One embedding from the engine: its object, index, vector and any other fields."""


def split_request(body: RequestBody) -> BatchInputs | None:
    """Splits a request into inputs. Returns None if the request must be sent unchanged."""
    fields = body.fields()
    raw = memoryview(fields.pop(INPUT, b""))
    items = _items(bytes(raw)) if len(raw) <= JOINED_BYTES_MAX else None
    if items is None:
        return None
    counted = bytes(items[0])[:1] == b"["
    for name in (*_REPLACED, *_CALLER_FIELDS):
        fields.pop(name, None)
    key = b"%d" % counted + _ENCODER.encode(dict(sorted(fields.items())))
    if len(key) > KEY_BYTES_MAX:
        return None
    if counted:
        tokens = weights = tuple(bytes(item).count(b",") + 1 for item in items)
    else:
        weights = tuple(max(1, len(memoryview(item)) - 2) for item in items)
        tokens = tuple(-(-weight // BYTES_PER_TOKEN) for weight in weights)
    return BatchInputs(key, items, tokens, weights, are_token_ids=counted)


def _items(raw: bytes) -> tuple[msgspec.Raw, ...] | None:
    """Returns the texts or lists of token IDs. None for anything else, or for a mix of the two."""
    if raw[:1] == b'"' or _is_token_ids(raw):
        return (msgspec.Raw(raw),)
    # Inputs are counted before decoding, because decoding a million of them would delay other requests.
    inputs = raw.count(b"[") - 1 if b'"' not in raw else (raw.count(b'"') - raw.count(b'\\"')) // 2
    try:
        listed = tuple(_LIST.decode(raw)) if 1 <= inputs <= INPUTS_MAX else ()
    except _UNREADABLE:
        return None
    # The estimate can be too low: an escaped backslash at the end of a text looks like an escaped quote.
    kinds = {bytes(memoryview(item)[:1]) for item in listed} if len(listed) <= INPUTS_MAX else set[bytes]()
    token_ids = kinds == {b"["} and all(_is_token_ids(bytes(item)) for item in listed)
    return listed if token_ids or kinds == {b'"'} else None


def _is_token_ids(raw: bytes) -> bool:
    inner = raw[1:-1].strip()
    return inner[:1] != b"" and inner[:1] in _DIGITS and not inner.translate(None, b"-0123456789, \t\r\n")


def join_inputs(first: RequestBody, items: Sequence[msgspec.Raw], callers: int) -> RequestBody:
    """Builds one request from these inputs. All other fields come from `first`."""
    fields: Fields = first.fields()
    for name in (*_REPLACED, *(_CALLER_FIELDS if callers > 1 else ())):
        fields.pop(name, None)
    listed = b"[" + b",".join(bytes(item) for item in items) + b"]"
    fields[INPUT] = msgspec.Raw(listed)
    return first.with_fields(fields, is_large=len(listed) > LARGE_BYTES)


# Response from the engine


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """Engine response to a batch, split by input."""

    rest: Fields
    """Fields other than entries and usage, such as the model."""
    entries: tuple[Entry, ...]
    """Entries in the order of the inputs."""
    usages: tuple["EntryUsage", ...]
    """Usage of each input. Empty if the engine reported none."""
    estimated: bool
    """Whether usage was split in proportion to bytes."""


@dataclass(frozen=True, slots=True)
class EntryUsage:
    prompt: int
    total: int

    def __add__(self, other: "EntryUsage") -> "EntryUsage":
        return EntryUsage(self.prompt + other.prompt, self.total + other.total)


def parse_batch(answer: bytes | bytearray, weights: Sequence[int], *, counted: bool) -> BatchResponse:
    """Splits the response to a batch of inputs with these weights. Raises `BatchSplitError`."""
    try:
        fields = _OBJECT.decode(answer)
        listed = _ENTRIES.decode(fields.pop("data", b""))
    except _UNREADABLE:
        raise BatchSplitError("the engine's response is not a list of embeddings") from None
    if len(listed) != len(weights):
        raise BatchSplitError(f"the engine returned {len(listed)} embeddings for {len(weights)} inputs")
    entries: list[Entry | None] = [None] * len(listed)
    for entry in listed:
        index = _count(entry.get("index"))
        if index is None or index >= len(entries) or entries[index] is not None:
            raise BatchSplitError("the engine's embeddings have missing or invalid indexes")
        entries[index] = entry
    whole = tuple(entry for entry in entries if entry is not None)
    usages, estimated = _shared_usage(fields.pop("usage", None), whole, weights, counted=counted)
    return BatchResponse(fields, whole, usages, estimated=estimated)


def _shared_usage(
    raw: msgspec.Raw | None, entries: Sequence[Entry], weights: Sequence[int], *, counted: bool
) -> tuple[tuple[EntryUsage, ...], bool]:
    said = _usage(raw)
    if said is None:
        return (), False
    told = [_prompt_tokens(entry) for entry in entries]
    known = [tokens for tokens in told if tokens is not None]
    if len(known) == len(entries) and sum(known) == said.prompt:
        prompts, estimated = known, False
    else:
        prompts = split_proportionally(said.prompt, weights)
        # For token IDs, each part is exact unless the engine has added tokens.
        estimated = len(entries) > 1 and not (counted and prompts == list(weights))
    totals = split_proportionally(said.total - said.prompt, weights)
    return tuple(EntryUsage(prompt, prompt + more) for prompt, more in zip(prompts, totals, strict=True)), estimated


def _usage(raw: msgspec.Raw | None) -> EntryUsage | None:
    try:
        fields = {} if raw is None else _OBJECT.decode(raw)
    except _UNREADABLE:
        return None
    prompt = _count(fields.get("prompt_tokens"))
    if prompt is None:
        return None
    return EntryUsage(prompt, max(prompt, _count(fields.get("total_tokens")) or 0))


def _prompt_tokens(entry: Mapping[str, msgspec.Raw]) -> int | None:
    """Returns the prompt tokens reported by the engine for one entry."""
    said = _usage(entry.get("usage"))
    return _count(entry.get("prompt_tokens")) if said is None else said.prompt


def _count(raw: msgspec.Raw | None) -> int | None:
    try:
        count = None if raw is None else _COUNT.decode(raw)
    except _UNREADABLE:
        return None
    return count if count is not None and 0 <= count <= TOKENS_MAX else None


def split_proportionally(whole: int, weights: Sequence[int]) -> list[int]:
    """Splits a total into integers in proportion to the weights.

    The parts with the largest remainders are rounded up.
    """
    heft = sum(weights)
    if heft <= 0:
        return split_proportionally(whole, [1] * len(weights)) if weights else []
    parts = [whole * weight // heft for weight in weights]
    remainders = [whole * weight % heft for weight in weights]
    behind = sorted(range(len(weights)), key=lambda place: (-remainders[place], place))
    for place in behind[: whole - sum(parts)]:
        parts[place] += 1
    return parts


# Response to the client


def response_start(rest: Fields) -> bytes:
    """Returns the response up to its first entry."""
    told = {"object": msgspec.Raw(b'"list"')} | rest
    return _ENCODER.encode(told)[:-1] + b',"data":['


def entry_bytes(entry: Entry, index: int) -> bytes:
    """Returns an entry renumbered for its request."""
    return (b"," if index else b"") + _ENCODER.encode(entry | {"index": msgspec.Raw(b"%d" % index)})


def response_end(usage: EntryUsage | None) -> bytes:
    if usage is None:
        return b"]}"
    return b'],"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (usage.prompt, usage.total)


@dataclass(frozen=True, slots=True)
class EmbeddingPart(ResponsePart):
    entry: Entry
    usage: EntryUsage | None
    rest: Fields


def split_response(answer: bytes | bytearray, weights: Sequence[int], counted: bool) -> Sequence[ResponsePart]:  # noqa: FBT001 (signature of a batch codec)
    shared = parse_batch(answer, weights, counted=counted)
    usages = shared.usages or (None,) * len(shared.entries)
    return [
        EmbeddingPart(shared.estimated, entry, usage, shared.rest)
        for entry, usage in zip(shared.entries, usages, strict=True)
    ]


@dataclass(slots=True)
class EmbeddingAssembly:
    """Assembles a response by forwarding the entries in order, followed by the usage."""

    total: int
    entries_sent: int = 0
    out_of_order: dict[int, EmbeddingPart] = field(default_factory=dict[int, EmbeddingPart])
    """Parts that arrived out of order, by position."""
    usage: EntryUsage | None = EntryUsage(0, 0)
    buffered_bytes: int = 0

    @property
    def complete(self) -> bool:
        return self.entries_sent == self.total

    def add(self, place: int, part: ResponsePart) -> bytes:
        self.out_of_order[place] = came = cast("EmbeddingPart", part)
        self.buffered_bytes += _size(came)
        passed: list[bytes] = []
        while (following := self.out_of_order.pop(self.entries_sent, None)) is not None:
            self.buffered_bytes -= _size(following)
            if not self.entries_sent:
                passed.append(response_start(following.rest))
            passed.append(entry_bytes(following.entry, self.entries_sent))
            self.entries_sent += 1
            if self.usage is not None:
                self.usage = None if following.usage is None else self.usage + following.usage
        if self.complete:
            passed.append(response_end(self.usage))
        return b"".join(passed)


def _size(part: EmbeddingPart) -> int:
    return sum(len(memoryview(value)) for value in part.entry.values())


EMBEDDINGS_CODEC: Final = BatchCodec(split_request, join_inputs, split_response, EmbeddingAssembly, ANSWER_BYTES_MAX)
