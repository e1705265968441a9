"""Engine speed model used by the scheduler.

One step of the engine loop takes

    a + bp·prefill_tokens + bd·decoding_sequences + c·kv_tokens_read + q·Σ chunk·(done + chunk/2)

where `done` is the number of prompt tokens computed before the chunk. A decoding sequence reads all of its tokens. The
five parameters are integer picoseconds, so that sums of engine time are exact and equal on every machine.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """Speed parameters of an engine. The defaults fit a typical GPU with a model of eight billion parameters.

    They are the initial values for learning.
    """

    step_ps: int = 10_000_000_000
    """a: fixed time per step."""
    prefill_token_ps: int = 30_000_000
    """bp: time per computed prompt token."""
    decode_sequence_ps: int = 35_000_000
    """bd: time per decoding sequence."""
    kv_token_ps: int = 60_000
    """c: time per KV cache token that decoding sequences read."""
    attention_ps: int = 500
    """q: time per pair of prompt tokens."""
    chunk_tokens: int = 2_048
    """Maximum number of tokens computed in one step."""

    def scaled(self, *, decode_percent: int, prefill_percent: int) -> "EngineSpeed":
        """Returns the speed of an engine whose decode and prefill times are these percentages of the original. Above
        100 is slower."""
        return EngineSpeed(
            step_ps=decode_percent * self.step_ps // 100,
            prefill_token_ps=prefill_percent * self.prefill_token_ps // 100,
            decode_sequence_ps=decode_percent * self.decode_sequence_ps // 100,
            kv_token_ps=decode_percent * self.kv_token_ps // 100,
            attention_ps=prefill_percent * self.attention_ps // 100,
            chunk_tokens=self.chunk_tokens,
        )

    def prefill_ps(self, tokens: int, cached: int = 0, prompts: int = 1) -> int:
        """Returns the time to compute a prompt, excluding the fixed time per step.

        With several prompts, `tokens` is their total, and a token attends only to tokens of its own prompt.
        """
        if not cached and prompts == 1:
            return self.prefill_token_ps * tokens + self.attention_ps * tokens * tokens // 2
        pairs = tokens * tokens - cached * cached
        if prompts > 1:
            pairs //= prompts
        return self.prefill_token_ps * (tokens - cached) + self.attention_ps * pairs // 2

    def decode_ps(self, sequences: int, kv_tokens: int) -> int:
        """Returns the duration of a step in which only `sequences` sequences decode."""
        return self.step_ps + self.decode_sequence_ps * sequences + self.kv_token_ps * kv_tokens
