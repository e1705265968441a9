"""What does the scheduler know of a request?

The body never leaves its gateway; the ticket carries what decisions need.
"""

from dataclasses import dataclass
from enum import StrEnum

from headgate.model.units import ModelName, RequestId, TenantId


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True)
class Ticket:
    request_id: RequestId
    api: Api
    model: ModelName
    tenant: TenantId
    stream: bool
    prompt_bytes: int
    """Bytes of prompt text; images and audio are not counted by their encoded length."""
    class_named: str | None = None
    """The class the caller named outright in `x-headgate-class`."""
    service_tier: str | None = None
    client_retries: int = 0
    """How many times the caller says it has tried this request before."""
