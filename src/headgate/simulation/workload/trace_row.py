"""One request of a recorded trace."""

from dataclasses import dataclass
from typing import Final

from headgate.simulation.workload.error import WorkloadError

_AT_NS_MAX: Final = 2**63
"""Maximum time in a trace: about three centuries."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    service_class: str | None = None
    tenant: str | None = None
    prefix: tuple[int, ...] = ()
    """Chained names of the prompt's blocks."""
    model: str | None = None
    api: str | None = None
    stream: bool | None = None
    """Whether the client requested a streaming response. None if unknown."""
    previous_tries: int = 0
    """Number of earlier tries, as reported by the client."""


def validated(row: TraceRow, place: str) -> TraceRow:
    if row.prompt_tokens < 0 or row.output_tokens < 0:
        least = min(row.prompt_tokens, row.output_tokens)
        raise WorkloadError(f"{place}: {least} is not a valid number of tokens; use 0 or more")
    if abs(row.at_ns) >= _AT_NS_MAX:
        raise WorkloadError(f"{place}: the time {row.at_ns / 1e9:g} s is out of range")
    for kind, name in (("class", row.service_class), ("tenant", row.tenant), ("model", row.model)):
        if name is not None:
            check_printable(name, kind, place)
    return row


def check_printable(name: str, kind: str, place: str) -> None:
    if not name.isprintable():
        raise WorkloadError(f"{place}: {kind} {name!a} contains unprintable characters; rename it")
