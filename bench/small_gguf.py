"""Create a model for llama.cpp so small that a request's overhead exceeds its computation.

The metadata of a real GGUF file is kept, with two changes. The vocabulary is cut to the first thousand tokens, because
llama.cpp computes a logit for each of them even for embeddings. The layers are replaced by a few small ones with random
weights from a fixed seed. The output of such a model is meaningless; only its timing is used. On a real accelerator a
batch takes about as long as a single input, and on a CPU only a small model comes close to that.
"""

import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HIDDEN, LAYERS, FEED_FORWARD, HEADS = 128, 2, 256, 2
VOCABULARY = 1024
_BEFORE_MERGES = 17 + 256
"""Number of special and single-byte tokens, which come first. Each merge then adds one token, in order."""
_ALIGNMENT = 32
_BLOCK = 32
_F32, _Q8_0 = 0, 8
_STRING, _ARRAY, _U32 = 8, 9, 4
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_CUT = {
    "tokenizer.ggml.tokens": VOCABULARY,
    "tokenizer.ggml.scores": VOCABULARY,
    "tokenizer.ggml.token_type": VOCABULARY,
    "tokenizer.ggml.merges": VOCABULARY - _BEFORE_MERGES,
}
_CHANGED = {
    "llama.vocab_size": VOCABULARY,
    "llama.block_count": LAYERS,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": HEADS,
    "llama.rope.dimension_count": HIDDEN // HEADS,
}
_DROPPED = ("llama.attention.key_length", "llama.attention.value_length", "general.file_type")


@dataclass(slots=True)
class _Reader:
    data: memoryview
    at: int = 0

    def take(self, form: str) -> int:
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def string(self) -> str:
        length = self.take("Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode()

    def cut(self, count: int) -> bytes:
        """Return the first elements of an array."""
        inner, _ = self.take("I"), self.take("Q")
        start = self.at
        for _ in range(count):
            self.skip(inner)
        return struct.pack("<IQ", inner, count) + bytes(self.data[start : self.at])

    def skip(self, kind: int) -> None:
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            inner, count = self.take("I"), self.take("Q")
            if inner == _STRING:
                for _ in range(count):
                    self.string()
            else:
                self.at += count * _SIZES[inner]
        else:
            self.at += _SIZES[kind]


def shrink(real: Path, small: Path, seed: int = 1) -> None:
    """Write a small model with the real model's vocabulary."""
    reader = _Reader(memoryview(real.read_bytes()))
    magic, version = reader.take("I"), reader.take("I")
    _, count = reader.take("Q"), reader.take("Q")
    kept: list[bytes] = []
    for _ in range(count):
        start, key = reader.at, reader.string()
        kind, value = reader.take("I"), reader.at
        reader.skip(kind)
        if key in _CUT:
            kept.append(_string(key) + struct.pack("<I", kind) + _Reader(reader.data, value).cut(_CUT[key]))
        elif key in _CHANGED:
            kept.append(_string(key) + struct.pack("<II", _U32, _CHANGED[key]))
        elif key not in _DROPPED:
            kept.append(bytes(reader.data[start : reader.at]))
    chance = random.Random(f"{seed} weights")
    infos: list[bytes] = []
    blobs: list[bytes] = []
    offset = 0
    for name, shape in _tensors():
        kind, data = (_F32, struct.pack("<f", 1.0) * shape[0]) if len(shape) == 1 else (_Q8_0, _blocks(chance, shape))
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos.append(_string(name) + dimensions + struct.pack("<IQ", kind, offset))
        data += bytes(-len(data) % _ALIGNMENT)
        blobs.append(data)
        offset += len(data)
    head = struct.pack("<IIQQ", magic, version, len(infos), len(kept)) + b"".join(kept) + b"".join(infos)
    small.write_bytes(b"".join([head, bytes(-len(head) % _ALIGNMENT), *blobs]))


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (HIDDEN, VOCABULARY)
    yield "output_norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (HIDDEN,)
        for part in ("q", "k", "v", "output"):
            yield f"blk.{layer}.attn_{part}.weight", (HIDDEN, HIDDEN)
        yield f"blk.{layer}.ffn_norm.weight", (HIDDEN,)
        yield f"blk.{layer}.ffn_gate.weight", (HIDDEN, FEED_FORWARD)
        yield f"blk.{layer}.ffn_up.weight", (HIDDEN, FEED_FORWARD)
        yield f"blk.{layer}.ffn_down.weight", (FEED_FORWARD, HIDDEN)


def _blocks(chance: random.Random, shape: tuple[int, ...]) -> bytes:
    """Return random eight-bit weights, in blocks of 32 with a scale."""
    size, scale = shape[0] * shape[1], struct.pack("<e", 0.0005)
    drawn = chance.randbytes(size)
    return b"".join(scale + drawn[at : at + _BLOCK] for at in range(0, size, _BLOCK))


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


if __name__ == "__main__":
    shrink(Path(sys.argv[1]), Path(sys.argv[2]))
