"""How fast is an engine?

One step of its loop takes

    a + bp·prefill_tokens + bd·decoding_sequences + c·kv_tokens_read + q·Σ chunk·(done + chunk/2)

where `done` is what had been computed of a prompt before its chunk, and a decoding sequence reads all of its tokens.
The five parameters are whole picoseconds, so that work in engine-seconds is exact and compares the same everywhere.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """The defaults are those of a usual GPU with a model of eight billion parameters: a first guess, to be learned."""

    step_ps: int = 10_000_000_000
    """a: what a step costs whatever is in it."""
    prefill_token_ps: int = 30_000_000
    """bp: each prompt token that is computed."""
    decode_sequence_ps: int = 35_000_000
    """bd: each sequence that gets one more token."""
    kv_token_ps: int = 60_000
    """c: each token of KV cache that decoding sequences read."""
    attention_ps: int = 500
    """q: each pair of tokens of a prompt."""
    chunk_tokens: int = 2_048
    """How many tokens one step may compute."""

    def scaled(self, *, decode_percent: int, prefill_percent: int) -> "EngineSpeed":
        """The speed of an engine that takes so many percent of the time; above a hundred it is slower."""
        return EngineSpeed(
            step_ps=decode_percent * self.step_ps // 100,
            prefill_token_ps=prefill_percent * self.prefill_token_ps // 100,
            decode_sequence_ps=decode_percent * self.decode_sequence_ps // 100,
            kv_token_ps=decode_percent * self.kv_token_ps // 100,
            attention_ps=prefill_percent * self.attention_ps // 100,
            chunk_tokens=self.chunk_tokens,
        )

    def prefill_ps(self, tokens: int, *, cached: int = 0, prompts: int = 1) -> int:
        """Time to compute a prompt, without the fixed cost of the steps.

        With several prompts, `tokens` is their total, and tokens attend only to those of their own prompt.
        """
        pairs = (tokens * tokens - cached * cached) // prompts
        return self.prefill_token_ps * (tokens - cached) + self.attention_ps * pairs // 2

    def decode_ps(self, sequences: int, *, kv_tokens: int) -> int:
        """A step in which so many sequences decode, and nothing else."""
        return self.step_ps + self.decode_sequence_ps * sequences + self.kv_token_ps * kv_tokens
