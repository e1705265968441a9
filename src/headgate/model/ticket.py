"""Ticket: the scheduler's view of a request.

The request body never leaves its gateway. The ticket carries the information needed for decisions.
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
    """Tensor inference using the KServe protocol."""
    MESSAGES = "messages"
    """Anthropic's Messages API."""
    COUNT_TOKENS = "count_tokens"
    """Token counts of Anthropic's Messages API."""
    RERANK = "rerank"
    SCORE = "score"
    CLASSIFY = "classify"
    POOLING = "pooling"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    TRANSCRIPTIONS = "transcriptions"
    TRANSLATIONS = "translations"
    """Transcripts in English, of audio in any language."""


APIS_WITHOUT_OUTPUT: Final = (
    Api.EMBEDDINGS,
    Api.INFER,
    Api.COUNT_TOKENS,
    Api.RERANK,
    Api.SCORE,
    Api.CLASSIFY,
    Api.POOLING,
    Api.TOKENIZE,
    Api.DETOKENIZE,
    Api.TRANSCRIPTIONS,
    Api.TRANSLATIONS,
)
"""APIs whose responses contain no generated tokens, or only as many as follow from the input, as in a transcript.

Only the size of the input counts.
"""
TOKENIZER_APIS: Final = (Api.COUNT_TOKENS, Api.TOKENIZE, Api.DETOKENIZE)
"""APIs that only need the engine's tokenizer. The prompt of a request is always one sequence."""
FORM_APIS: Final = (Api.TRANSCRIPTIONS, Api.TRANSLATIONS)
"""APIs whose requests are forms with an audio file instead of JSON objects."""
ANTHROPIC_APIS: Final = (Api.MESSAGES, Api.COUNT_TOKENS)
"""APIs with Anthropic's error format and headers."""
PROMPT_BYTES_MAX: Final = 1 << 31
"""Maximum length of all prompts of a request, in bytes. Texts that an engine repeats and media count as often as they
are computed, so the length may far exceed that of the body.
"""
PROMPTS_MAX: Final = 1 << 24
"""Maximum number of prompts in one request."""


@message
class Ticket:
    request_id: RequestId
    api: Api
    model: ModelName
    tenant: TenantId
    stream: bool
    prompt_bytes: int
    """Total size in bytes of all fields that become prompt tokens. Media counts as a fixed size per type."""
    requested_class: str | None = None
    """Class named in the header `x-headgate-class`."""
    service_tier: str | None = None
    client_retries: int = 0
    """Number of earlier attempts at this request, as reported by the caller."""
    untrimmable_bytes: int = 0
    """Size in bytes of the prompt parts that trimming keeps: the instructions and the last turn."""
    first_token_ns_left: Duration | None = None
    """Time left at arrival until the caller's deadline for the first token. None if there is no deadline."""
    completion_ns_left: Duration | None = None
    """Time left at arrival until the caller's deadline for the complete response. None if there is no deadline."""
    idempotency_key: str | None = None
    """Value of the header `Idempotency-Key`."""
    n: int = 1
    """Number of responses requested for each prompt."""
    output_tokens_max: int | None = None
    """Requested maximum number of output tokens per response."""
    prefix_hashes: bytes = b""
    """Rolling hashes of the prompt prefix at increasing lengths: at most 64, of eight bytes each.

    Equal hashes mean equal prefixes. If tenants do not share prefix caches, the hashes include the tenant's salt.
    """
    model_tier: str | None = None
    """Model tier named in the header `x-headgate-model-tier`."""
    zone: str = ""
    """Zone of the gateway that holds the request."""
    metadata: tuple[tuple[str, str], ...] = ()
    """The request's metadata, restricted to the configured keys and in their order."""
    gateway: str = ""
    """Cell member that holds the request and relays its response. Empty outside a cell."""
    prompts: int = 1
    """Number of prompts in the request. An engine computes each one as a separate sequence."""
    prompt_bytes_before_prefix: int = 0
    """Size in bytes of the prompt parts before the hashed prefix, such as tools. Part of `prompt_bytes`."""
    fingerprint: str = ""
    """Hash of the tenant, the model and the body. Empty if not computed."""
    has_media: bool = False
    """Whether the prompt contains images, audio, video or files. Only the engine knows how many tokens they take."""
    session: str = ""
    """Hash of the tenant and the session that the caller named. Empty if there is none or sessions are not used."""
    route_headers: tuple[tuple[str, str], ...] = ()
    """Request headers that the routes of a model match: names in lower case, and values."""
    sticky_keys: tuple[tuple[str, str], ...] = ()
    """Hashed sticky keys, by the name of their kind. Only for kinds that a model uses."""
    mirror_route: str = ""
    """Route whose mirror serves the request, if the request is a copy of another one. Empty for all other requests.

    The tenant of a copy is `MIRROR_TENANT`, which earlier versions reject as unknown.
    """

    @property
    def sequences(self) -> int:
        """Number of requests that this one counts as in concurrency limits: one per prompt that gets a response.

        Embedding inputs are computed one after another and do not keep a slot, so only their tokens count.
        """
        return 1 if self.api in APIS_WITHOUT_OUTPUT else self.prompts

    def output_limit(self, cap: int | None) -> int | None:
        """Returns the maximum length of a response, based on the caller's limit and the cap.

        None if neither sets a limit. Caps do not apply to APIs without output.
        """
        asked = self.output_tokens_max
        if cap is None:
            return asked
        if asked is None:
            return None if self.api in APIS_WITHOUT_OUTPUT else cap
        return min(cap, asked)

    def answers(self, n_max: int | None) -> int:
        """Returns the total number of responses to all prompts, with at most `n_max` for each prompt."""
        n = self.n if n_max is None or self.n < n_max else n_max
        return n if self.prompts == 1 else n * self.sequences

    @property
    def identity(self) -> str:
        """Id shared by all requests of a tenant with the same body. Unique to the request if it has no fingerprint."""
        return self.fingerprint or self.request_id
