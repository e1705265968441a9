"""What is particular to vLLM?

Checked against 0.32. It listens only when its weights are loaded, so it is never seen loading; /health answers 503 when
its engine process has died. Its frontend (uvicorn) closes connections that were idle for five seconds.
"""

from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import Dialect, Signal, VersionSource

VLLM: Final = Dialect(
    name="vllm",
    keeps_connection_after_stream=True,
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
    places_hint="no page of vLLM tells its --max-num-seqs",
)
