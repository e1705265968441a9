"""How are several requests for embeddings asked as one, and how is the one answer shared out?

A request names one input or a list of them, and an engine answers with one entry per input and with usage for all. So
the inputs of several requests can stand in one list, as long as everything else that the requests say is the same byte
for byte: then each entry is what its request would have got alone. Entries go back by the `index` that the engine gives
them, numbered anew for each request.

Usage is shared so that the parts come to the whole. Where the engine counts each entry, and where inputs are token ids
whose number is known, a part is what it truly was; otherwise it is in proportion to the bytes of the text, and marked
as an estimate by whoever reports it.

What is not understood exactly is not joined: the request then goes as it came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec

from headgate.model.units import BYTES_PER_TOKEN
from headgate.model.usage import TOKENS_MAX
from headgate.wire.batches import Inputs, Joinery, Part, Unshareable
from headgate.wire.fields import Fields
from headgate.wire.request import LARGE_BYTES, RequestBody

INPUT: Final = "input"
JOINED_BYTES_MAX: Final = 1024 * 1024
"""A longer list of inputs is not taken apart: finding their ends would hold up every other stream."""
INPUTS_MAX: Final = 2_048
"""The most that OpenAI itself takes in one request. A longer list goes as it came, for its engine to judge."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Two hundred of the longest vectors there are."""
KEY_BYTES_MAX: Final = 4_096
"""What the other fields of a request may take. Longer ones say something that nobody here knows."""

_SAID_FOR_ONE: Final = ("user",)
"""What a request says of its own caller. It changes no embedding, and cannot be said of several."""
_REPLACED: Final = ("model", "cache_salt", "stream", "stream_options")
"""What never reaches an engine as it came, or not with embeddings."""
_ENCODER: Final = msgspec.json.Encoder()
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_COUNT: Final = msgspec.json.Decoder(int)
_DIGITS: Final = b"-0123456789"
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

Entry = dict[str, msgspec.Raw]
"""One embedding as the engine wrote it: its object, index and vector, and whatever else stands beside them."""


def inputs_of(body: RequestBody) -> Inputs | None:
    """The inputs one by one; None where the request is to go as it came."""
    fields = body.fields()
    raw = memoryview(fields.pop(INPUT, b""))
    items = _items(bytes(raw)) if len(raw) <= JOINED_BYTES_MAX else None
    if items is None:
        return None
    counted = bytes(items[0])[:1] == b"["
    for name in (*_REPLACED, *_SAID_FOR_ONE):
        fields.pop(name, None)
    key = b"%d" % counted + _ENCODER.encode(dict(sorted(fields.items())))
    if len(key) > KEY_BYTES_MAX:
        return None
    if counted:
        tokens = weights = tuple(bytes(item).count(b",") + 1 for item in items)
    else:
        weights = tuple(max(1, len(memoryview(item)) - 2) for item in items)
        tokens = tuple(-(-weight // BYTES_PER_TOKEN) for weight in weights)
    return Inputs(key, items, tokens, weights, counted=counted)


def _items(raw: bytes) -> tuple[msgspec.Raw, ...] | None:
    """Texts, or lists of token ids; None for anything else, and for both in one list."""
    if raw[:1] == b'"' or _is_token_ids(raw):
        return (msgspec.Raw(raw),)
    # Counted before they are looked at, since a list of a million would hold up others.
    inputs = raw.count(b"[") - 1 if b'"' not in raw else (raw.count(b'"') - raw.count(b'\\"')) // 2
    try:
        listed = tuple(_LIST.decode(raw)) if 1 <= inputs <= INPUTS_MAX else ()
    except _UNREADABLE:
        return None
    # An escaped backslash at the end of a text looked like an escaped quote.
    kinds = {bytes(memoryview(item)[:1]) for item in listed} if len(listed) <= INPUTS_MAX else set[bytes]()
    token_ids = kinds == {b"["} and all(_is_token_ids(bytes(item)) for item in listed)
    return listed if token_ids or kinds == {b'"'} else None


def _is_token_ids(raw: bytes) -> bool:
    inner = raw[1:-1].strip()
    return inner[:1] != b"" and inner[:1] in _DIGITS and not inner.translate(None, b"-0123456789, \t\r\n")


def joined(first: RequestBody, items: Sequence[msgspec.Raw], callers: int) -> RequestBody:
    """One request for all these inputs, which otherwise says what `first` says."""
    fields: Fields = first.fields()
    for name in (*_REPLACED, *(_SAID_FOR_ONE if callers > 1 else ())):
        fields.pop(name, None)
    listed = b"[" + b",".join(bytes(item) for item in items) + b"]"
    fields[INPUT] = msgspec.Raw(listed)
    return first.saying(fields, is_large=len(listed) > LARGE_BYTES)


# The answer


@dataclass(frozen=True, slots=True)
class SharedAnswer:
    """An engine's answer to a batch, taken apart."""

    rest: Fields
    """What it says beside entries and usage, such as the model."""
    entries: tuple[Entry, ...]
    """In the order of the inputs."""
    usages: tuple["Tokens", ...]
    """What each of the inputs took; empty where the engine did not say."""
    estimated: bool
    """Whether usage was shared in proportion to bytes."""


@dataclass(frozen=True, slots=True)
class Tokens:
    prompt: int
    total: int

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt + other.prompt, self.total + other.total)


def taken_apart(answer: bytes | bytearray, weights: Sequence[int], *, counted: bool) -> SharedAnswer:
    """The answer to a batch of inputs with these weights. Raises `Unshareable`."""
    try:
        fields = _OBJECT.decode(answer)
        listed = _ENTRIES.decode(fields.pop("data", b""))
    except _UNREADABLE:
        raise Unshareable("the engine's answer is not a list of embeddings") from None
    if len(listed) != len(weights):
        raise Unshareable(f"the engine answered {len(weights)} inputs with {len(listed)} embeddings")
    entries: list[Entry | None] = [None] * len(listed)
    for entry in listed:
        index = _count(entry.get("index"))
        if index is None or index >= len(entries) or entries[index] is not None:
            raise Unshareable("the engine's embeddings do not say which inputs they are of")
        entries[index] = entry
    whole = tuple(entry for entry in entries if entry is not None)
    usages, estimated = _shared_usage(fields.pop("usage", None), whole, weights, counted=counted)
    return SharedAnswer(fields, whole, usages, estimated=estimated)


def _shared_usage(
    raw: msgspec.Raw | None, entries: Sequence[Entry], weights: Sequence[int], *, counted: bool
) -> tuple[tuple[Tokens, ...], bool]:
    said = _usage(raw)
    if said is None:
        return (), False
    told = [_prompt_tokens(entry) for entry in entries]
    known = [tokens for tokens in told if tokens is not None]
    if len(known) == len(entries) and sum(known) == said.prompt:
        prompts, estimated = known, False
    else:
        prompts = share(said.prompt, weights)
        # Of token ids each part is exact unless the engine added some of its own.
        estimated = len(entries) > 1 and not (counted and prompts == list(weights))
    totals = share(said.total - said.prompt, weights)
    return tuple(Tokens(prompt, prompt + more) for prompt, more in zip(prompts, totals, strict=True)), estimated


def _usage(raw: msgspec.Raw | None) -> Tokens | None:
    try:
        fields = {} if raw is None else _OBJECT.decode(raw)
    except _UNREADABLE:
        return None
    prompt = _count(fields.get("prompt_tokens"))
    if prompt is None:
        return None
    return Tokens(prompt, max(prompt, _count(fields.get("total_tokens")) or 0))


def _prompt_tokens(entry: Mapping[str, msgspec.Raw]) -> int | None:
    """What the engine says of one entry alone."""
    said = _usage(entry.get("usage"))
    return _count(entry.get("prompt_tokens")) if said is None else said.prompt


def _count(raw: msgspec.Raw | None) -> int | None:
    try:
        count = None if raw is None else _COUNT.decode(raw)
    except _UNREADABLE:
        return None
    return count if count is not None and 0 <= count <= TOKENS_MAX else None


def share(whole: int, weights: Sequence[int]) -> list[int]:
    """The whole in proportion to the weights, in integers that come to it; the largest remainders are rounded up."""
    heft = sum(weights)
    if heft <= 0:
        return share(whole, [1] * len(weights)) if weights else []
    parts = [whole * weight // heft for weight in weights]
    remainders = [whole * weight % heft for weight in weights]
    behind = sorted(range(len(weights)), key=lambda place: (-remainders[place], place))
    for place in behind[: whole - sum(parts)]:
        parts[place] += 1
    return parts


# What a caller gets


def opening(rest: Fields) -> bytes:
    """The answer up to its first entry."""
    told = {"object": msgspec.Raw(b'"list"')} | rest
    return _ENCODER.encode(told)[:-1] + b',"data":['


def entry_bytes(entry: Entry, index: int) -> bytes:
    """The entry as one of its request's own."""
    return (b"," if index else b"") + _ENCODER.encode(entry | {"index": msgspec.Raw(b"%d" % index)})


def closing(usage: Tokens | None) -> bytes:
    if usage is None:
        return b"]}"
    return b'],"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (usage.prompt, usage.total)


@dataclass(frozen=True, slots=True)
class EmbeddingPart(Part):
    entry: Entry
    usage: Tokens | None
    rest: Fields


def parts_of(answer: bytes | bytearray, weights: Sequence[int], counted: bool) -> Sequence[Part]:  # noqa: FBT001 (of a joinery)
    shared = taken_apart(answer, weights, counted=counted)
    usages = shared.usages or (None,) * len(shared.entries)
    return [
        EmbeddingPart(shared.estimated, entry, usage, shared.rest)
        for entry, usage in zip(shared.entries, usages, strict=True)
    ]


@dataclass(slots=True)
class EmbeddingGathering:
    """Entries are passed on in their order, and usage at the end."""

    total: int
    told: int = 0
    early: dict[int, EmbeddingPart] = field(default_factory=dict[int, EmbeddingPart])
    """What came before its turn."""
    usage: Tokens | None = Tokens(0, 0)
    held: int = 0

    @property
    def over(self) -> bool:
        return self.told == self.total

    def take(self, place: int, part: Part) -> bytes:
        self.early[place] = came = cast("EmbeddingPart", part)
        self.held += _size(came)
        passed: list[bytes] = []
        while (following := self.early.pop(self.told, None)) is not None:
            self.held -= _size(following)
            if not self.told:
                passed.append(opening(following.rest))
            passed.append(entry_bytes(following.entry, self.told))
            self.told += 1
            if self.usage is not None:
                self.usage = None if following.usage is None else self.usage + following.usage
        if self.over:
            passed.append(closing(self.usage))
        return b"".join(passed)


def _size(part: EmbeddingPart) -> int:
    return sum(len(memoryview(value)) for value in part.entry.values())


EMBEDDINGS: Final = Joinery(inputs_of, joined, parts_of, EmbeddingGathering, ANSWER_BYTES_MAX)
