"""The arrival of a simulated request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.model.ticket import Api
from headgate.model.units import ClassName, Instant, ModelName, TenantId

PREFIX_BLOCK_TOKENS: Final = 512
"""Number of prompt tokens per name in `prefix`."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as its client sends it. Times are relative to the start of the run."""

    at: Instant
    prompt_tokens: int
    output_tokens: int
    """Length of the output, which is not known to schedulers."""
    service_class: ClassName
    tenant: TenantId
    prefix: tuple[int, ...] = ()
    """Chained names of the prompt's blocks. Equal names mean equal prompts up to that block."""
    previous_tries: int = 0
    """Number of earlier tries, as reported by the client."""
    api: Api | None = None
    """API of the request. None if the behaviour of the class's callers applies, as for the next two."""
    model: ModelName | None = None
    stream: bool | None = None
    session: str = ""
    """Session that the client names. Empty if it names none."""


Arrivals = Iterator[Arrival]
"""Arrivals in chronological order."""
