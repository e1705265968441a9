"""How fast is an engine, and how much does it hold?

One step of the loop takes

    a + bp·prefill_tokens + bd·decoding_sequences + c·kv_tokens_read + q·Σ chunk·(done + chunk/2)

where `done` is what had been computed of a prompt before its chunk, and a decoding sequence reads all of its tokens.
The five parameters are whole picoseconds, so that sums of step times are exact; `docs/guides/simulated-engine.md` says
where each number comes from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    name: str
    step_ps: int
    """a: what a step costs whatever is in it."""
    prefill_token_ps: int
    """bp: each prompt token that is computed."""
    decode_sequence_ps: int
    """bd: each sequence that gets one more token."""
    kv_token_ps: int
    """c: each token of KV cache that decoding sequences read."""
    attention_ps: int
    """q: each pair of tokens of a prompt."""
    chunk_tokens: int
    """How many tokens one step may compute, decoding sequences included (vLLM: max_num_batched_tokens)."""
    sequences_max: int
    kv_blocks: int
    block_tokens: int = 16
    watermark_blocks: int = 0
    """Blocks that stay free when a waiting sequence is admitted."""
    context_tokens: int
    """The longest prompt and answer together."""
    by_priority: bool = False
    """Lower priorities first, instead of first come, first served."""
    prefix_cache: bool = True
    asynchronous: bool = False
    """A step is composed when the one before it starts, as vLLM 0.19 does unless told otherwise."""

    def __post_init__(self) -> None:
        assert self.chunk_tokens >= self.sequences_max, "every running sequence must get its token in each step"
        assert self.step_ps > 0, "a step that takes no time never ends"
        assert self.fits(self.context_tokens), "a single sequence of the longest context must fit into the KV cache"

    def decode_ps(self, sequences: int, *, kv_tokens: int) -> int:
        """A step in which so many sequences decode, and nothing else."""
        return self.step_ps + self.decode_sequence_ps * sequences + self.kv_token_ps * kv_tokens

    def prefill_ps(self, chunk: int, *, done: int) -> int:
        """What a chunk of a prompt adds to its step."""
        return self.prefill_token_ps * chunk + self.attention_ps * chunk * (2 * done + chunk) // 2

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def fits(self, tokens: int) -> bool:
        """Whether a sequence may ever grow to so many tokens."""
        return self.blocks(tokens) + self.watermark_blocks <= self.kv_blocks

    def with_kv_tokens(self, tokens: int) -> "EngineProfile":
        """The same engine with a KV cache of this size; its context is cut to what fits."""
        blocks = self.watermark_blocks + max(1, tokens // self.block_tokens)
        context = min(self.context_tokens, (blocks - self.watermark_blocks) * self.block_tokens)
        return replace(self, kv_blocks=blocks, context_tokens=context)


RTXPRO6000_LLAMA_8B: Final = EngineProfile(
    name="rtxpro6000-llama-8b",
    step_ps=13_200_000_000,
    prefill_token_ps=36_100_000,
    decode_sequence_ps=30_800_000,
    kv_token_ps=83_900,
    attention_ps=282,
    chunk_tokens=2048,
    sequences_max=256,
    kv_blocks=31_250,  # 500,000 tokens
    context_tokens=131_072,
)

H200_LLAMA_8B: Final = EngineProfile(
    name="h200-llama-8b",
    step_ps=4_380_000_000,
    prefill_token_ps=14_100_000,
    decode_sequence_ps=37_700_000,
    kv_token_ps=30_400,
    attention_ps=980,
    chunk_tokens=2048,
    sequences_max=256,
    kv_blocks=59_064,  # 945,029 tokens as measured
    context_tokens=131_072,
)

H100X8_LLAMA_70B: Final = EngineProfile(
    name="h100x8-llama-70b",
    step_ps=29_800_000_000,
    prefill_token_ps=58_800_000,
    decode_sequence_ps=200_000_000,
    kv_token_ps=180_000,
    attention_ps=6_180,
    chunk_tokens=2048,
    sequences_max=256,
    kv_blocks=80_000,  # 1,280,000 tokens: 8 x 80 GB at 0.9, less 140 GB of weights and 16 GB of working space
    context_tokens=131_072,
)

TINY: Final = EngineProfile(
    name="tiny",
    step_ps=1_000_000_000,
    prefill_token_ps=2_000_000,
    decode_sequence_ps=5_000_000,
    kv_token_ps=10_000,
    attention_ps=20,
    chunk_tokens=512,
    sequences_max=32,
    kv_blocks=1_024,  # 16,384 tokens
    context_tokens=4_096,
)

PROFILES: Final[Mapping[str, EngineProfile]] = MappingProxyType(
    {each.name: each for each in (RTXPRO6000_LLAMA_8B, H200_LLAMA_8B, H100X8_LLAMA_70B, TINY)}
)
