"""Dialect for trtllm-serve, TensorRT-LLM's own server.

Based on the documentation for version 1.2. TensorRT-LLM requires a GPU, so this dialect has not been tested against a
real server. /metrics returns a JSON list of iterations. Metrics in Prometheus format are at another path, and only if
performance metrics are enabled. trtllm-serve accepts a cache salt only for chats and rejects unknown fields, so it
receives no salt.
"""

from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect, Signal, VersionSource
from headgate.engines.reported_limits import trtllm_limits

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
