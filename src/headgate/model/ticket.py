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
    """Bytes of all fields that become tokens of the prompt; images and audio count by their kind."""
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
    """The member of a cell that holds it and relays its answer; empty outside a cell."""
    prompts: int = 1
    """How many prompts it brings in one array. Each of them is a sequence of its own for an engine."""
    prompt_bytes_before: int = 0
    """Of `prompt_bytes`, those that stand before the beginning that is hashed, such as tools."""
    fingerprint: str = ""
    """Hash of the tenant, the model and the body; empty if none was made."""
    media: bool = False
    """Whether images, audio, video or files are in the prompt, whose true number of tokens only the engine knows."""

    @property
    def sequences(self) -> int:
        """How many requests it counts for where requests are counted: each prompt that is to be answered is one.

        Inputs of embeddings are computed one after the other and hold no place afterwards, so they count by their
        tokens alone.
        """
        return 1 if self.api in WITHOUT_OUTPUT else self.prompts

    def output_most(self, cap: int | None) -> int | None:
        """The longest that each answer may be, by its caller and by a cap; None where neither says."""
        asked = self.output_tokens_max
        if cap is None or asked is None:
            return cap if asked is None else asked
        return min(cap, asked)

    def answers(self, n_max: int | None) -> int:
        """How many answers it gets, of all prompts together, if each may have so many."""
        return self.sequences * (self.n if n_max is None else min(self.n, n_max))

    @property
    def identity(self) -> str:
        """The same for every request of a tenant with the same body; without a fingerprint, its own."""
        return self.fingerprint or self.request_id
