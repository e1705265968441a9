"""How much of an engine's time does a request take?

A prompt of 200 tokens and one of 20,000 are not the same unit of work. What tenants share, and what is promised to
endpoints, is counted in the time that an engine would need: for the prompt, for each token of the answer, for reading
what both have left in the KV cache, and for an even share of what a step costs whatever is in it.
"""

from typing import Final

from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration

MEAN_BATCH: Final = 96
"""Among so many sequences the fixed cost of a step is shared, as long as nothing better is known."""
_PS_PER_NS: Final = 1_000


def cost_ns(
    speed: EngineSpeed,
    prompt_tokens: int,
    output_tokens: int,
    *,
    cached: int = 0,
    batch: int = MEAN_BATCH,
    prompts: int = 1,
) -> Duration:
    """Nanoseconds of one engine, exclusive or shared. Token counts are totals over all prompts."""
    kv_tokens = (prompt_tokens + output_tokens // 2) // prompts
    per_token = speed.decode_sequence_ps + speed.step_ps // batch + speed.kv_token_ps * kv_tokens
    prefill_ps = speed.prefill_ps(prompt_tokens, cached=cached, prompts=prompts)
    return Duration((prefill_ps + output_tokens * per_token) // _PS_PER_NS)


def first_token_ns(
    speed: EngineSpeed, pending_tokens: int, prompt_tokens: int, *, decode_ps: int, cached: int = 0
) -> Duration:
    """How long until a prompt is computed behind others, in steps in which others decode as well."""
    steps = -(-(pending_tokens + prompt_tokens - cached) // speed.chunk_tokens)
    work = speed.prefill_token_ps * pending_tokens + speed.prefill_ps(prompt_tokens, cached=cached) + steps * decode_ps
    return Duration(work // _PS_PER_NS)
