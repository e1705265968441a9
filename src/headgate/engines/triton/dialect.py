"""Dialects for Triton, with or without TensorRT-LLM.

- Triton uses KServe's protocol: tensors at `infer` and text at `generate_stream`, which serves chats and completions
  (`adapter.py`). For Triton's own OpenAI frontend, use the `openai_compatible` dialect.
- The metrics page is on a separate port, by default two above the HTTP port (8002 for 8000). The gateway assumes this
  offset.
- A server or model that is not ready returns 400. A server is ready when all its models are. The gateway only checks
  the model that it needs.
- Triton reports the number of waiting requests across all its models, but not the number of running ones. The gateway
  therefore sees only the waiting part of the load from other clients. TensorRT-LLM models report both on the same page,
  along with their KV cache usage.
- Closing a stream cancels it if the model checks for cancellation, as those of TensorRT-LLM and vLLM do. An `infer`
  over HTTP always runs to completion.
- Any model error during a stream has status 400. Unparsable JSON has status 500.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import GPU_UTILISATION, Dialect, Signal, VersionSource, is_request_error
from headgate.engines.reported_limits import triton_limits
from headgate.engines.triton.adapter import TritonAdapter

SERVER_PATH: Final = "/v2"
"""Path of a KServe server's name and version."""
_METRICS_PORT_OFFSET: Final = 2

_REQUEST_ERROR_TEXTS: Final = (
    b"failed to parse the request JSON buffer",
    b"Unable to parse",
    b"doesn't support models with decoupled transaction policy",
)
"""Texts of request errors that Triton reports as server errors."""
_NO_PATH: Final = b'{"error":"Not Found"}'
_ENGINE_ERROR_TEXTS: Final = (
    *(b"Stub process", b"not healthy", b"Traceback", b"Failed to process the request", b"Exceeds maximum queue size"),
    *(b"imeout expired", b"out of memory", b"OutOfMemory", b"CUDA", b"bad_alloc", b"ot ready", b"shutting down"),
    *(b"nternal error", b"ancelled"),
)
"""Texts of engine errors that Triton reports as request errors."""


def _is_request_error(status: int, body: bytes) -> bool:
    if status in (500, 501):
        return any(mistake in body for mistake in _REQUEST_ERROR_TEXTS)
    if status == 404 and body.strip() == _NO_PATH:
        return True
    return is_request_error(status, body) and not any(failure in body for failure in _ENGINE_ERROR_TEXTS)


TRITON: Final = Dialect(
    name="triton",
    paths=MappingProxyType({}),
    adapter=TritonAdapter,
    keeps_connection_after_stream=True,
    models_path=SERVER_PATH,
    health_path="/v2/health/ready",
    model_ready_path="/v2/models/{model}/ready",
    models_metric="nv_inference_pending_request_count",
    metrics_path="/metrics",
    metrics_port_offset=_METRICS_PORT_OFFSET,
    metrics_hint="start Triton with --metrics-port set to --http-port + 2",
    metrics=MappingProxyType({Signal.WAITING: ("nv_inference_pending_request_count",)}),
    extra_metrics=MappingProxyType(
        {
            "queue_us": "nv_inference_queue_duration_us",
            "requests_succeeded": "nv_inference_request_success",
            "requests_failed": "nv_inference_request_failure",
            "inferences": "nv_inference_count",
            "executions": "nv_inference_exec_count",
            GPU_UTILISATION: "nv_gpu_utilization",
            "gpu_memory_used_bytes": "nv_gpu_memory_used_bytes",
            "gpu_memory_total_bytes": "nv_gpu_memory_total_bytes",
        }
    ),
    version=VersionSource(SERVER_PATH, "version"),
    limits_paths=("/metrics", "/v2/models/{model}/config"),
    read_limits=triton_limits,
    concurrency_hint="see max_batch_size and the instance groups in the model's config.pbtxt",
    is_request_error=_is_request_error,
)

TRITON_TRTLLM: Final = replace(
    TRITON,
    name="triton_trtllm",
    reports_kv=True,
    metrics=MappingProxyType(
        {
            # The request type "active" would be the sum of waiting and running requests.
            Signal.RUNNING: ('nv_trt_llm_request_metrics{request_type="scheduled"}',),
            Signal.WAITING: ('nv_trt_llm_request_metrics{request_type="waiting"}',),
            Signal.KV_USED_FRACTION: ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',),
        }
    ),
    concurrency_hint="see max_batch_size of the TensorRT-LLM engine",
)
