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
    """Bytes of all fields that become tokens of the prompt; media counts by type."""
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
    gateway: str = ""
    """The cell member that holds the request and relays its answer; empty outside a cell."""
    prompts: int = 1
    """Number of prompts in its array. An engine computes each as a separate sequence."""
    prompt_bytes_before: int = 0
    """The part of `prompt_bytes` that comes before the hashed prefix, such as tools."""
    fingerprint: str = ""
    """Hash of the tenant, the model and the body; empty if not computed."""
    media: bool = False
    """Whether the prompt has images, audio, video or files. Only the engine knows how many tokens these have."""

    @property
    def sequences(self) -> int:
        """Number of requests that it counts as in concurrency limits: one for each prompt to be answered.

        Embedding inputs are computed one after the other and hold no place afterwards, so they count by their tokens
        only.
        """
        return 1 if self.api in WITHOUT_OUTPUT else self.prompts

    def output_most(self, cap: int | None) -> int | None:
        """The longest answer that caller and cap allow; None if neither sets a limit."""
        asked = self.output_tokens_max
        if cap is None or asked is None:
            return cap if asked is None else asked
        return min(cap, asked)

    def answers(self, n_max: int | None) -> int:
        """Number of answers to all prompts together, with at most `n_max` to each."""
        return self.sequences * (self.n if n_max is None else min(self.n, n_max))

    @property
    def identity(self) -> str:
        """Equal for all requests of a tenant with the same body; without a fingerprint, unique to the request."""
        return self.fingerprint or self.request_id
