"""What do an engine's metrics say at one instant?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineState:
    """The counters only grow."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_used_fraction: float
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    prompt_tokens: int
    """Of all prompts that were computed to their end, what came from the cache included."""
    generated_tokens: int
    steps: int
    worked_ps: int
    """How long steps have taken, at nominal speed; those that go on are not in it."""
