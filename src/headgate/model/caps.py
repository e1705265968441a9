"""Caps: upper limits on request parameters.

A class may allow less than an engine supports. Values above a cap are lowered, and the response lists the lowered
values. Only two cases are rejected: too many prompts in one array, and a prompt that is too long, unless the class
trims the oldest turns of a conversation.
"""

from dataclasses import dataclass
from enum import StrEnum


class ReasoningEffort(StrEnum):
    """Reasoning effort, in ascending order."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


class ImageDetail(StrEnum):
    """Level of image detail, in ascending order. If a request sets none, the engine chooses, as with `auto`."""

    LOW = "low"
    AUTO = "auto"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper limits on request parameters. None means no limit."""

    prompt_tokens: int | None = None
    trim_prompt: bool = False
    """Whether the gateway drops the oldest turns of an overlong conversation instead of rejecting the request."""
    output_tokens: int | None = None
    n: int | None = 8
    best_of: int | None = 8
    logprobs: int | None = 20
    prompt_logprobs: int | None = 0
    """Maximum number of candidates per prompt token whose log probabilities are returned.

    To compute them, engines keep one row over the whole vocabulary per token, so a single request can exhaust engine
    memory.
    """
    reasoning_effort: ReasoningEffort | None = None
    image_detail: ImageDetail | None = None
    prompts: int | None = 64
    """Maximum number of prompts in one `/v1/completions` request, multiplied by the number of choices per prompt.

    Requests with more are rejected.
    """
    inputs: int | None = 2_048
    """Maximum number of inputs in one `/v1/embeddings` request, as in OpenAI's API. Requests with more inputs are
    rejected."""
