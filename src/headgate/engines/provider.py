"""Hosted providers with an OpenAI-compatible API, and gateways in front of them, such as LiteLLM.

A provider is another organisation. It receives the fields and headers that it needs to answer, and nothing about the
caller. It has no metrics; its list of models serves as the health check, and its response headers report its rate
limits.
"""

from typing import Final

from headgate.engines.dialect import Dialect, is_request_error

PRIVATE_FIELDS: Final = frozenset(
    {
        *("cache_salt", "metadata", "priority", "prompt_cache_key", "request_id", "safety_identifier"),
        *("service_tier", "session_id", "user"),
    }
)
"""Request fields that identify a caller, or that control Headgate or an engine of one's own."""
_PAYMENT_REQUIRED: Final = 402


def is_provider_request_error(status: int, body: bytes) -> bool:
    """Like `is_request_error`. A provider also rejects requests if the operator's account has no credit."""
    return status != _PAYMENT_REQUIRED and is_request_error(status, body)


PROVIDER: Final = Dialect(
    name="provider",
    private_fields=PRIVATE_FIELDS,
    forwarded_headers=frozenset({"anthropic-beta", "anthropic-version"}),
    reports_rate_limits=True,
    scrape_s_min=30.0,
    is_request_error=is_provider_request_error,
)
