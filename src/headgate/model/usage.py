"""How many tokens did an attempt use, and who says so?"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
