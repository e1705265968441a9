"""One load test request and its result, as seen by the client."""

from dataclasses import dataclass
from enum import StrEnum

from headgate.loadtest.conversation import Conversation


class LoadTestOutcome(StrEnum):
    COMPLETED = "completed"
    HTTP_ERROR = "http_error"
    """The last attempt got an error status."""
    INTERRUPTED = "interrupted"
    """The response started but was truncated, had no `[DONE]` or contained an error event."""
    CONNECTION_FAILED = "connection_failed"
    """No response started: the connection failed or was closed first."""
    ABANDONED = "abandoned"
    """The client's patience ran out before the first token."""
    UNFINISHED = "unfinished"
    """The run ended before the request did."""


@dataclass(slots=True)
class LoadTestRequest:
    """One request from its scheduled time to its end, across all attempts. Times are in nanoseconds since the start of
    the run.
    """

    number: int
    sender: int
    prompt_tokens_requested: int
    output_tokens_requested: int
    scheduled_ns: int
    started_ns: int | None = None
    """Time at which the generator had a connection for the request. Any delay after `scheduled_ns` is caused by the
    generator.
    """
    sent_ns: int | None = None
    """Time at which the last attempt was written to its connection."""
    first_token_ns: int | None = None
    end_ns: int = 0
    outcome: LoadTestOutcome = LoadTestOutcome.UNFINISHED
    status: int | None = None
    code: str = ""
    """Error code from the server, or Headgate's own code if there is none. Empty if the request completed."""
    request_id: str = ""
    retries: int = 0
    retry_codes: tuple[str, ...] = ()
    """Codes of all attempts except the last."""
    refusals: int = 0
    """Number of attempts with status 429 or 503."""
    retry_afters: int = 0
    """Number of those that had a `Retry-After` header."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    usage_reported: bool = False
    """Whether the server reported usage. If not, each event with text counts as an output token, and the prompt is
    assumed to have the requested number of tokens.
    """
    blocks: tuple[int, ...] = ()
    """Names of the blocks of text that the prompt starts with, from a trace."""
    conversation: Conversation | None = None
    """Earlier turns of the session. None in the first turn."""
    body: bytes = b""
    """Body of the response, if the session may have another turn."""

    @property
    def own_prompt_tokens(self) -> int:
        """Length of the prompt without the conversation."""
        return self.prompt_tokens_requested - (self.conversation.tokens if self.conversation else 0)

    @property
    def ttft_ns(self) -> int | None:
        return None if self.first_token_ns is None else self.first_token_ns - self.scheduled_ns

    @property
    def e2e_ns(self) -> int:
        return self.end_ns - self.scheduled_ns

    @property
    def tpot_ns(self) -> int | None:
        """Time per output token after the first, in nanoseconds."""
        if self.first_token_ns is None or self.output_tokens < 2:
            return None
        return (self.end_ns - self.first_token_ns) // (self.output_tokens - 1)
