"""Dialect for vLLM.

Verified with version 0.32. vLLM listens only after loading its weights, so a probe never sees it loading. /health
returns 503 if the engine process has died. The HTTP server (uvicorn) closes connections after they have been idle for
five seconds. LoRA adapters are in the list of models, with the base model as `parent`.

The gateway requests non-streaming responses as streams (`joined_response.py`), so that it sees each token. A stream
lacks fields that are null in a non-streaming response, so the gateway adds them (`_CHAT`, `_COMPLETIONS`). vLLM parses
streamed and non-streamed output separately, so the results differ if a parser is active. Tool calls have another
`finish_reason` or different whitespace, and reasoning truncated by `max_tokens` is returned as reasoning in one case
and as content in the other. Requests with tools are therefore sent unchanged. Reasoning is a server option, which the
gateway detects from the first response.
"""

from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect, Signal, VersionSource
from headgate.engines.reported_limits import vllm_limits
from headgate.model.ticket import Api
from headgate.wire.response_shape import ResponseShape
from headgate.wire.transcription import USAGE_FIELD

_TOP: Final = ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
_USAGE: Final = ("prompt_tokens_details", "completion_tokens_details")
_PROMPT_DETAILS: Final = ("cached_tokens", "created_cache_tokens", "multimodal_tokens")
_CHAT: Final = ResponseShape(
    top=(*_TOP, "prompt_logprobs", "prompt_token_ids", "prompt_text"),
    choice=("logprobs", "stop_reason", "token_ids", "routed_experts"),
    message=("refusal", "annotations", "audio", "function_call", "reasoning"),
    usage=_USAGE,
    prompt_details=_PROMPT_DETAILS,
    # Versions up to 0.11 use the name `reasoning_content`.
    differing_fields=frozenset({"reasoning", "reasoning_content", "tool_calls"}),
)
_COMPLETIONS: Final = ResponseShape(
    top=_TOP,
    choice=("logprobs", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"),
    usage=_USAGE,
    prompt_details=_PROMPT_DETAILS,
)

VLLM: Final = Dialect(
    name="vllm",
    transcript_usage_field=USAGE_FIELD,
    keeps_connection_after_stream=True,
    joins_streams=True,
    unjoined_fields=frozenset(
        {
            "tools",
            "echo",
            "prompt_logprobs",
            "return_token_ids",
            "return_prompt_text",
            "use_beam_search",
            "kv_transfer_params",
            "ec_transfer_params",
            "stream_options",  # Rejected in a non-streaming request.
        }
    ),
    response_shapes=MappingProxyType({Api.CHAT: _CHAT, Api.COMPLETIONS: _COMPLETIONS}),
    supports_cache_salt=True,
    health_path="/health",
    metrics_path="/metrics",
    metrics_hint="start vLLM without --disable-log-stats",
    metrics=MappingProxyType(
        {
            Signal.RUNNING: ("vllm:num_requests_running",),
            Signal.WAITING: ("vllm:num_requests_waiting",),
            # The second name is from versions before 0.9, which had caches besides the GPU's.
            Signal.KV_USED_FRACTION: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            Signal.PREEMPTIONS: ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        }
    ),
    extra_metrics=MappingProxyType(
        {"prefix_queries": "vllm:prefix_cache_queries_total", "prefix_hits": "vllm:prefix_cache_hits_total"}
    ),
    adapters_metric="vllm:lora_requests_info",
    version=VersionSource("/version", "version"),
    limits_paths=("/metrics", "/v1/models"),
    read_limits=vllm_limits,
    reports_kv=True,
    concurrency_hint="the vLLM API does not report --max-num-seqs",
)
