"""What is particular to vLLM?

Checked against 0.32. It listens only when its weights are loaded, so it is never seen loading; /health answers 503 when
its engine process has died. Its frontend (uvicorn) closes connections that were idle for five seconds.

The gateway requests whole answers as streams (`joined.py`), so that it sees each token. A stream lacks fields that are
null in a whole answer; the gateway adds them (`_CHAT`, `_COMPLETIONS`). vLLM parses the output of streams and of whole
answers separately, so they differ if it has a parser: tool calls have another `finish_reason` or other white space, and
reasoning that `max_tokens` cuts off is reasoning in one and content in the other. Requests with tools are therefore
sent unchanged. Reasoning is an option of the server, which the gateway detects from the first answer.
"""

from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect, Signal, VersionSource
from headgate.engines.limits import vllm_limits
from headgate.model.ticket import Api
from headgate.wire.whole_shape import WholeShape

_TOP: Final = ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
_USAGE: Final = ("prompt_tokens_details", "completion_tokens_details")
_PROMPT_DETAILS: Final = ("cached_tokens", "created_cache_tokens", "multimodal_tokens")
_CHAT: Final = WholeShape(
    top=(*_TOP, "prompt_logprobs", "prompt_token_ids", "prompt_text"),
    choice=("logprobs", "stop_reason", "token_ids", "routed_experts"),
    message=("refusal", "annotations", "audio", "function_call", "reasoning"),
    usage=_USAGE,
    prompt_details=_PROMPT_DETAILS,
    # `reasoning_content` is the name up to version 0.11.
    unequal=frozenset({"reasoning", "reasoning_content", "tool_calls"}),
)
_COMPLETIONS: Final = WholeShape(
    top=_TOP,
    choice=("logprobs", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"),
    usage=_USAGE,
    prompt_details=_PROMPT_DETAILS,
)

VLLM: Final = Dialect(
    name="vllm",
    keeps_connection_after_stream=True,
    watches_whole_answers=True,
    asked_whole=frozenset(
        {
            "tools",
            "echo",
            "prompt_logprobs",
            "return_token_ids",
            "return_prompt_text",
            "use_beam_search",
            "kv_transfer_params",
            "ec_transfer_params",
            "stream_options",  # Rejected in a request for a whole answer.
        }
    ),
    whole_shapes=MappingProxyType({Api.CHAT: _CHAT, Api.COMPLETIONS: _COMPLETIONS}),
    takes_cache_salt=True,
    health_path="/health",
    metrics_path="/metrics",
    metrics_hint="start vLLM without --disable-log-stats",
    metrics=MappingProxyType(
        {
            Signal.RUNNING: ("vllm:num_requests_running",),
            Signal.WAITING: ("vllm:num_requests_waiting",),
            # The second until 0.9; the engine of that time knew other caches than the GPU's.
            Signal.KV_USED_FRACTION: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            Signal.PREEMPTIONS: ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        }
    ),
    further_metrics=MappingProxyType(
        {"prefix_queries": "vllm:prefix_cache_queries_total", "prefix_hits": "vllm:prefix_cache_hits_total"}
    ),
    version=VersionSource("/version", "version"),
    limits_paths=("/metrics", "/v1/models"),
    read_limits=vllm_limits,
    reports_kv=True,
    places_hint="no page of vLLM tells its --max-num-seqs",
)
