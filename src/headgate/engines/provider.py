"""Hosted providers with an OpenAI-compatible API, and gateways in front of them, such as LiteLLM.

A provider is another organisation. It receives the fields and headers that it needs to answer, and nothing about the
caller. It has no metrics; its list of models serves as the health check, and its response headers report its rate
limits.
"""

import re
from typing import Final

from headgate.engines.dialect import Dialect, error_fields, is_request_error

_CALLER_FIELDS: Final = (
    *("cache_salt", "metadata", "priority", "prompt_cache_key", "request_id", "safety_identifier"),
    *("service_tier", "session_id", "user"),
)
"""Request fields that identify a caller, or that control Headgate or the operator's own engines."""
_ROUTING_FIELDS: Final = (
    *("api_base", "api_key", "api_version", "base_url", "custom_llm_provider", "deployment_id", "organization"),
    *("anthropic_beta", "extra_body", "extra_headers", "extra_query", "headers", "region_name", "ssl_verify"),
    *("content_policy_fallbacks", "context_window_fallbacks", "disable_fallbacks", "fallbacks"),
    *("max_retries", "num_retries", "request_timeout", "stream_timeout", "timeout"),
    *("model_info", "model_list", "models", "plugins", "preset", "provider", "route", "transforms"),
    *("additional_drop_params", "allowed_openai_params", "drop_params"),
    *("cache", "caching", "callbacks", "failure_callback", "no-log", "success_callback"),
    *("disable_global_guardrails", "guardrails", "policies"),
    *("prompt_id", "prompt_variables", "tags", "trace", "web_search_options"),
)
"""Request fields that a translating gateway, such as LiteLLM or OpenRouter, takes as instructions.

They could replace the model, its limits or its price, or send the prompt to another address.
"""
PRIVATE_FIELDS: Final = frozenset({*_CALLER_FIELDS, *_ROUTING_FIELDS})
PRIVATE_PREFIXES: Final = (
    *("aws_", "azure_", "input_cost_per_", "langfuse_", "langsmith_", "litellm_", "mock_", "output_cost_per_"),
    *("user_api_key", "vertex_"),
)
"""Prefixes of further fields of this kind."""
DISABLED_FIELDS: Final = frozenset({"store"})
"""Request fields that make the provider keep the request. Some providers do so by default, so false must be sent."""
_PAYMENT_REQUIRED: Final = 402
_ACCOUNT_KINDS: Final = ("insufficient_quota", "billing_", "no_db_connection")
"""Starts of the codes and types of errors about the operator's account.

LiteLLM without a database returns status 400 with the last one for a wrong key.
"""
# Patterns for the start of a message, because the rest may repeat values of the request. LiteLLM puts the names of its
# exceptions first, and for some vendors the start of their error bodies.
_LITELLM: Final = r"(?:litellm\.\w+: )?(?:\w+Error: )?(?:\w+Exception ?- ?)?"
_ANTHROPIC: Final = r'(?:b?\W?\{"type":"error","error":\{"type":"invalid_request_error","message":")?'
_NO_CREDIT: Final = re.compile(_LITELLM + _ANTHROPIC + "(?:Your )?credit balance is too low", re.IGNORECASE)
_TOO_LARGE: Final = re.compile(_LITELLM + "Request too large", re.IGNORECASE)


def is_provider_request_error(status: int, body: bytes) -> bool:
    """Like `is_request_error`. A provider also rejects requests if the operator's account has no credit.

    A 429 for a single request that exceeds the rate limit is an error of this request: waiting would not help.
    """
    if status == _PAYMENT_REQUIRED or not 400 <= status < 500:
        return False
    message, kinds = error_fields(body)
    if any(kind.startswith(_ACCOUNT_KINDS) for kind in kinds) or _NO_CREDIT.match(message) is not None:
        return False
    return is_request_error(status, body) or (status == 429 and _TOO_LARGE.match(message) is not None)


PROVIDER: Final = Dialect(
    name="provider",
    private_fields=PRIVATE_FIELDS,
    private_prefixes=PRIVATE_PREFIXES,
    disabled_fields=DISABLED_FIELDS,
    forwarded_headers=frozenset({"anthropic-beta", "anthropic-version"}),
    reports_rate_limits=True,
    scrape_s_min=30.0,
    is_request_error=is_provider_request_error,
)
