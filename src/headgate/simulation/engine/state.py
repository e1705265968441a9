"""Snapshot of a simulated engine's metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineState:
    """Gauges and monotonic counters of an engine at one instant."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_used_fraction: float
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    prompt_tokens: int
    """Tokens in completed prompts, including tokens from the prefix cache."""
    generated_tokens: int
    steps: int
    worked_ps: int
    """Work done in finished steps, in picoseconds at nominal speed."""
