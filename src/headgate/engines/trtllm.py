"""What is particular to TensorRT-LLM's own server, trtllm-serve?

By its documentation (1.2); it needs a GPU, so no test of ours has met a running one. Its /metrics page is a list of
iterations in JSON; Prometheus' format stands at another path, and only where performance metrics are switched on.
It takes a salt for chats alone and refuses fields that it does not know, so it is given none.
"""

from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect, Signal, VersionSource
from headgate.engines.limits import trtllm_limits

TRTLLM: Final = Dialect(
    name="trtllm",
    health_path="/health",
    metrics_path="/prometheus/metrics",
    metrics_hint="start trtllm-serve with return_perf_metrics: true in its configuration",
    metrics=MappingProxyType(
        {
            Signal.RUNNING: ("trtllm_num_requests_running",),
            Signal.WAITING: ("trtllm_num_requests_waiting",),
            Signal.KV_USED_FRACTION: ("trtllm_kv_cache_utilization",),
        }
    ),
    version=VersionSource("/version", "version"),
    limits_paths=("/metrics", "/v1/models"),
    read_limits=trtllm_limits,
    reports_kv=True,
)
