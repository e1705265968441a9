"""How did one request go, seen from the client?"""

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    COMPLETED = "completed"
    REFUSED = "refused"
    """The last try was answered with an error status."""
    BROKEN = "broken"
    """The answer began and did not end as it should: no [DONE], an error event, a body cut short."""
    UNREACHED = "unreached"
    """No answer began: no connection, or it was closed first."""
    ABANDONED = "abandoned"
    """The client's patience was over before the first token."""
    UNFINISHED = "unfinished"
    """The run ended first."""


@dataclass(slots=True)
class Story:
    """One request from its scheduled moment to its ending, over all tries. Times are in ns since the run's start."""

    number: int
    sender: int
    prompt_tokens_asked: int
    output_tokens_asked: int
    scheduled_ns: int
    begun_ns: int | None = None
    """When the generator had a connection for it, or the right to open one. Later than scheduled is our own fault."""
    sent_ns: int | None = None
    """When the last try was written to its connection."""
    first_token_ns: int | None = None
    end_ns: int = 0
    ending: Ending = Ending.UNFINISHED
    status: int | None = None
    code: str = ""
    """The server's error code, or our word for what happened; empty where all is well."""
    request_id: str = ""
    retries: int = 0
    retried_for: tuple[str, ...] = ()
    """The codes of the tries that were not the last."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    tokens_told: bool = False
    """Whether the server told its tokens. If not, an answer's are its events with text, a prompt's those asked for."""

    @property
    def ttft_ns(self) -> int | None:
        return None if self.first_token_ns is None else self.first_token_ns - self.scheduled_ns

    @property
    def e2e_ns(self) -> int:
        return self.end_ns - self.scheduled_ns

    @property
    def tpot_ns(self) -> int | None:
        """Time per output token after the first."""
        if self.first_token_ns is None or self.output_tokens < 2:
            return None
        return (self.end_ns - self.first_token_ns) // (self.output_tokens - 1)
