"""What may a request ask of an engine, at most?

A class may allow less than an engine would do. What is asked beyond it is lowered, never refused, and the caller is
told what it was lowered to. Only too many prompts in one array are refused, and a prompt that is too long, unless the
class would rather have its oldest turns left out.
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
    """Prompts in one array of `/v1/completions`, times the answers to each. Beyond it a request is refused."""
    inputs: int | None = 2_048
    """Inputs in one array of `/v1/embeddings`; OpenAI's own interface takes as many. Beyond it likewise."""
