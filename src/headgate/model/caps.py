"""Caps: the largest values that a request may ask of an engine.

A class may allow less than an engine can do. Values above a cap are lowered, not rejected, and the answer lists the
lowered values. Only two cases are rejected: too many prompts in one array, and a prompt that is too long, unless the
class trims its oldest turns.
"""

from dataclasses import dataclass
from enum import StrEnum


class ReasoningEffort(StrEnum):
    """From least to most."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


class ImageDetail(StrEnum):
    """From least to most. Whoever names none leaves it to the engine, as with auto."""

    LOW = "low"
    AUTO = "auto"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Caps:
    """None means no limit."""

    prompt_tokens: int | None = None
    trims_prompt: bool = False
    """Whether the oldest turns of a conversation that is too long are left out, rather than the request refused."""
    output_tokens: int | None = None
    n: int | None = 8
    best_of: int | None = 8
    logprobs: int | None = 20
    prompt_logprobs: int | None = 0
    """Engines keep a whole row of the vocabulary per token for these; one request can exhaust their memory."""
    reasoning_effort: ReasoningEffort | None = None
    image_detail: ImageDetail | None = None
    prompts: int | None = 64
    """Prompts in one array of `/v1/completions`, times the answers to each. Requests with more are rejected."""
    inputs: int | None = 2_048
    """Inputs in one array of `/v1/embeddings`, as in OpenAI's own API. Requests with more are rejected."""
