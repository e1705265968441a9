"""How many tokens did an attempt use, and who says so?"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model.ticket import Ticket

TEMPLATE_TOKENS: Final = 1_024
"""Maximum tokens that a chat template may add to each prompt."""
MEDIA_TOKENS_PER_BYTE: Final = 16
"""Maximum tokens per byte of a prompt with media.

Media counts as a fixed number of bytes by type, an image as 4,096. So each image may have 65,536 tokens, and audio,
video and files in proportion.
"""
MEDIA_TOKENS: Final = 65_536
"""Maximum tokens that media may add to each prompt of an array if only the bytes of its URL are counted."""
OUTPUT_SLACK: Final = 8
"""Output tokens that an engine may report beyond the requested limit: some engines count the end-of-answer token."""
TOKENS_MAX: Final = 2**31
"""More than this no attempt uses: an engine that claims more has not counted, and is not believed."""


class UsageSource(StrEnum):
    ENGINE = "engine"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    source: UsageSource
    reasoning_tokens: int = 0
    """Of the output, what the caller does not see."""


def impossible(usage: Usage, ticket: Ticket, *, answers: int, output_most: int | None) -> str | None:
    """The reason why this usage cannot be right for the request; None if it can.

    A token of text has at least one byte; a byte of media may stand for many tokens. An engine stops each answer at the
    requested length, `output_most`.
    """
    if min(usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) < 0:
        return "the engine reported a negative number of tokens"
    prompt_most = ticket.prompt_bytes + TEMPLATE_TOKENS * ticket.prompts
    if ticket.media:
        prompt_most = MEDIA_TOKENS_PER_BYTE * ticket.prompt_bytes + MEDIA_TOKENS * ticket.prompts
    if usage.prompt_tokens > prompt_most:
        return f"the engine reported {usage.prompt_tokens} tokens for a prompt of {ticket.prompt_bytes} bytes"
    if output_most is not None and usage.output_tokens > answers * (output_most + OUTPUT_SLACK):
        return f"the engine reported {usage.output_tokens} output tokens and was asked for {answers * output_most}"
    return None
