"""Engine time that a request needs.

A prompt of 200 tokens and one of 20,000 tokens require very different amounts of work. Fairness charges and endpoint
reservations are therefore measured in engine time: prefill, decoding of each output token, reading the KV cache, and an
equal share of the fixed cost of each step.
"""

from typing import Final

from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration

MEAN_BATCH: Final = 96
"""Assumed number of sequences that share the fixed cost of a step."""
_PS_PER_NS: Final = 1_000


def cost_ns(  # noqa: PLR0917 - Keywords would make each call slower.
    speed: EngineSpeed,
    prompt_tokens: int,
    output_tokens: int,
    cached: int = 0,
    prompts: int = 1,
    batch: int = MEAN_BATCH,
) -> Duration:
    """Returns the engine time of a request. Token counts are totals over all prompts."""
    kv_tokens = (prompt_tokens + output_tokens // 2) // prompts
    per_token = speed.decode_sequence_ps + speed.step_ps // batch + speed.kv_token_ps * kv_tokens
    prefill_ps = speed.prefill_ps(prompt_tokens, cached, prompts)
    return Duration((prefill_ps + output_tokens * per_token) // _PS_PER_NS)


def first_token_ns(
    speed: EngineSpeed, pending_tokens: int, prompt_tokens: int, *, decode_ps: int, cached: int = 0
) -> Duration:
    """Returns the time until the prefill ends, given the pending prompts and the sequences in decode."""
    steps = -(-(pending_tokens + prompt_tokens - cached) // speed.chunk_tokens)
    work = speed.prefill_token_ps * pending_tokens + speed.prefill_ps(prompt_tokens, cached=cached) + steps * decode_ps
    return Duration(work // _PS_PER_NS)


def first_token_on_busy_endpoint_ns(speed: EngineSpeed, prompt_tokens: int, cached: int) -> Duration:
    """Returns the time to first token on a busy endpoint that has headroom."""
    return first_token_ns(speed, speed.chunk_tokens // 2, prompt_tokens, cached=cached, decode_ps=5 * speed.step_ps)
