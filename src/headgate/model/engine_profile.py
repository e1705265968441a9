"""Engine profiles: speed and memory parameters of an engine on its hardware.

One step of the engine loop takes

    a + bp·prefill_tokens + bd·decoding_sequences + c·kv_tokens_read + q·Σ chunk·(done + chunk/2)

where `done` is the number of prompt tokens computed before the chunk. A decoding sequence reads all of its tokens. The
five parameters are integer picoseconds, so that sums of step times are exact. `docs/guides/simulated-engine.md` lists
the source of each value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    name: str
    step_ps: int
    """a: fixed time per step."""
    prefill_token_ps: int
    """bp: time per computed prompt token."""
    decode_sequence_ps: int
    """bd: time per decoding sequence."""
    kv_token_ps: int
    """c: time per KV cache token that decoding sequences read."""
    attention_ps: int
    """q: time per pair of prompt tokens."""
    chunk_tokens: int
    """Maximum number of tokens computed in one step, including decoding sequences (vLLM: max_num_batched_tokens)."""
    sequences_max: int
    kv_blocks: int
    block_tokens: int = 16
    watermark_blocks: int = 0
    """Number of blocks that stay free when a waiting sequence is admitted."""
    context_tokens: int
    """Maximum total number of prompt and output tokens."""
    priority_scheduling: bool = False
    """Whether the engine schedules by priority (lowest number first) instead of first come, first served."""
    prefix_cache: bool = True
    async_scheduling: bool = False
    """Whether a step is scheduled when the previous one starts, as in vLLM 0.19 by default."""

    def __post_init__(self) -> None:
        assert self.chunk_tokens >= self.sequences_max, "each running sequence needs one token per step"
        assert self.step_ps > 0, "step_ps must be positive"
        assert self.fits(self.context_tokens), "a sequence of context_tokens must fit into the KV cache"

    def decode_ps(self, sequences: int, *, kv_tokens: int) -> int:
        """Returns the duration of a step in which only `sequences` sequences decode."""
        return self.step_ps + self.decode_sequence_ps * sequences + self.kv_token_ps * kv_tokens

    def prefill_ps(self, chunk: int, *, computed: int) -> int:
        """Returns the time that a prompt chunk adds to its step."""
        return self.prefill_token_ps * chunk + self.attention_ps * chunk * (2 * computed + chunk) // 2

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def fits(self, tokens: int) -> bool:
        """Returns whether a sequence of this length fits into the KV cache."""
        return self.blocks_for(tokens) + self.watermark_blocks <= self.kv_blocks

    def with_kv_tokens(self, tokens: int) -> "EngineProfile":
        """Returns this profile with a KV cache of the given size. The context length is limited to what fits."""
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
