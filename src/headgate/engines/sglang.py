"""Dialect for SGLang.

Based on the documentation for version 0.5. SGLang requires a GPU, so this dialect has not been tested against a real
server. SGLang exports metrics only if it is started with --enable-metrics, and labels them with the rank. It appends a
request's `extra_key` to the salt.
"""

from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect, Signal, VersionSource
from headgate.engines.reported_limits import sglang_limits

SGLANG: Final = Dialect(
    name="sglang",
    supports_cache_salt=True,
    health_path="/health",
    metrics_path="/metrics",
    metrics_hint="start SGLang with --enable-metrics",
    metrics=MappingProxyType(
        {
            Signal.RUNNING: ("sglang:num_running_reqs",),
            Signal.WAITING: ("sglang:num_queue_reqs",),
            Signal.KV_USED_FRACTION: ("sglang:token_usage",),
        }
    ),
    extra_metrics=MappingProxyType(
        {"prefix_queries": "sglang:prompt_tokens_total", "prefix_hits": "sglang:cached_tokens_total"}
    ),
    version=VersionSource("/get_server_info", "version"),
    limits_paths=("/get_server_info", "/v1/models"),
    read_limits=sglang_limits,
    reports_kv=True,
)
