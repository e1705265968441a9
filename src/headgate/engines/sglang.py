"""What is particular to SGLang?

By its documentation (0.5); it needs a GPU, so no test of ours has met a running one. It shows metrics only when started
with --enable-metrics, and its series carry the rank they come from. It puts the `extra_key` that a request may have
behind its salt.
"""

from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect, Signal, VersionSource
from headgate.engines.limits import sglang_limits

SGLANG: Final = Dialect(
    name="sglang",
    takes_cache_salt=True,
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
    further_metrics=MappingProxyType(
        {"prefix_queries": "sglang:prompt_tokens_total", "prefix_hits": "sglang:cached_tokens_total"}
    ),
    version=VersionSource("/get_server_info", "version"),
    limits_paths=("/get_server_info", "/v1/models"),
    read_limits=sglang_limits,
    reports_kv=True,
)
