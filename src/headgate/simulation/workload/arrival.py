"""What is known of a request before anybody decides about it?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.model.units import ClassName, Instant, TenantId

PREFIX_BLOCK_TOKENS: Final = 512
"""How many tokens of a prompt one name in `prefix` stands for."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as its caller means it. Time counts from the start of the run."""

    at: Instant
    prompt_tokens: int
    output_tokens: int
    """How long the answer will be; no scheduler is told."""
    service_class: ClassName
    tenant: TenantId
    prefix: tuple[int, ...] = ()
    """Names of the prompt's blocks from its start, chained: equal names mean equal prompts up to there."""
    tries: int = 0
    """How often its caller says that it has asked this before."""


Arrivals = Iterator[Arrival]
"""In the order of time."""
