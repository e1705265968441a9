"""What does the scheduler know of a request?

The body never leaves its gateway; the ticket carries what decisions need.
"""

from enum import StrEnum
from typing import Final

from headgate.model.message import message
from headgate.model.units import Duration, ModelName, RequestId, TenantId


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    INFER = "infer"
    """Tensors in, tensors out, in KServe's protocol."""


WITHOUT_OUTPUT: Final = (Api.EMBEDDINGS, Api.INFER)
"""What is answered without producing any token: its size is that of what is asked."""


@message
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
    prompt_bytes_kept: int = 0
    """What trimming cannot take out of the prompt: its instructions and its last turn."""
    first_token_ns_left: Duration | None = None
    """What was left at arrival of the time that the caller allows up to the first token; None where it sets none."""
    completion_ns_left: Duration | None = None
    """As above, up to the end of the answer."""
    idempotency_key: str | None = None
    """What the caller sent as `Idempotency-Key`."""
    n: int = 1
    """How many answers it asks for."""
    output_tokens_max: int | None = None
    """What it asks for at most, of each answer."""
    prefix: bytes = b""
    """Hashes of the prompt's beginning up to growing distances, each of eight bytes, at most 64 of them.

    Equal hashes mean equal beginnings; the tenant's salt is in them, where caches of tenants are kept apart.
    """
    rung: str | None = None
    """What the caller named in `x-headgate-rung`."""
    zone: str = ""
    """Where the gateway stands that holds it."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Of what the caller sent as metadata, the keys that the configuration keeps, in their order."""
