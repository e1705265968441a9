"""Token usage of an attempt, and plausibility checks for it."""

from enum import StrEnum
from typing import Final

from headgate.model.message import message
from headgate.model.ticket import Ticket

TEMPLATE_TOKENS_MAX: Final = 1_024
"""Maximum number of tokens that a chat template may add to each prompt."""
MEDIA_TOKENS_PER_BYTE_MAX: Final = 16
"""Maximum number of tokens per byte of a prompt with media.

Media counts as a fixed number of bytes that depends on its type; an image counts as 4,096. Each image may therefore
have 65,536 tokens, and the limits for audio, video and files are proportional to their sizes.
"""
MEDIA_TOKENS_MAX: Final = 65_536
"""Maximum number of tokens that media may add to each prompt if only the bytes of its URL are counted."""
OUTPUT_TOKENS_SLACK: Final = 8
"""Output tokens that an engine may report beyond the requested limit. Some engines count the end-of-sequence token."""
TOKENS_MAX: Final = 2**31
"""Maximum number of tokens per attempt. A larger value reported by an engine is ignored."""


class UsageSource(StrEnum):
    ENGINE = "engine"
    ESTIMATED = "estimated"


@message
class Usage:
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    source: UsageSource
    reasoning_tokens: int = 0
    """Output tokens that the caller does not see."""


def usage_problem(usage: Usage, ticket: Ticket, *, answers: int, output_limit: int | None) -> str | None:
    """Returns why this usage cannot be correct for the request, or None.

    A token of text has at least one byte, but a byte of media may represent many tokens. An engine stops each response
    at the requested length, `output_limit`.
    """
    if usage.prompt_tokens < 0 or usage.output_tokens < 0 or usage.cached_tokens < 0:
        return "the engine reported a negative number of tokens"
    prompt_most = ticket.prompt_bytes + TEMPLATE_TOKENS_MAX * ticket.prompts
    if ticket.has_media:
        prompt_most = MEDIA_TOKENS_PER_BYTE_MAX * ticket.prompt_bytes + MEDIA_TOKENS_MAX * ticket.prompts
    if usage.prompt_tokens > prompt_most:
        return f"the engine reported {usage.prompt_tokens} tokens for a prompt of {ticket.prompt_bytes} bytes"
    if output_limit is not None and usage.output_tokens > answers * (output_limit + OUTPUT_TOKENS_SLACK):
        return f"the engine reported {usage.output_tokens} output tokens; the limit was {answers * output_limit}"
    return None
