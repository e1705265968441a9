"""Hosted providers with an OpenAI-compatible API, and gateways in front of them, such as LiteLLM.

A provider is another organisation. It receives the fields and headers that it needs to answer, and nothing about the
caller. It has no metrics; its list of models serves as the health check, and its response headers report its rate
limits.
"""

from typing import Final

from headgate.engines.dialect import Dialect, is_request_error

_CALLER_FIELDS: Final = (
    *("cache_salt", "metadata", "priority", "prompt_cache_key", "request_id", "safety_identifier"),
    *("service_tier", "session_id", "user"),
)
"""Request fields that identify a caller, or that control Headgate or an engine of one's own."""
_ROUTING_FIELDS: Final = (
    *("api_base", "api_key", "api_version", "base_url", "custom_llm_provider", "deployment_id", "organization"),
    *("extra_body", "extra_headers", "extra_query", "headers", "region_name", "ssl_verify"),
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


def is_provider_request_error(status: int, body: bytes) -> bool:
    """Like `is_request_error`. A provider also rejects requests if the operator's account has no credit."""
    return status != _PAYMENT_REQUIRED and is_request_error(status, body)


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
