"""What is particular to Triton, and to TensorRT-LLM behind it?

- It speaks KServe's protocol: tensors at `infer`, and text at `generate_stream`, into which chats and completions are
  put (`triton_speaker.py`). Its own OpenAI frontend, where it is used, is an engine of dialect `openai_compatible`.
- Its metrics page has a port of its own, by default two above that of HTTP: 8002 beside 8000. The same distance is
  expected here.
- That a server or a model is not ready it says with 400. A server is ready when all its models are; what counts here is
  the one that is asked for.
- It tells how many requests wait, over all its models, and not how many run: so of what others send there only what
  waits is seen. TensorRT-LLM's models export both, and the use of their KV cache, through the same page.
- A stream that is cut is cancelled, for models that look (TensorRT-LLM's and vLLM's do). An `infer` over HTTP is not:
  it runs to its end, whoever waits for it.
- Errors of a model while it answers a stream are told with 400, whatever they are; JSON that cannot be read is a 500.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headgate.engines.dialect import GPU_UTILISATION, Dialect, Signal, VersionSource, blames_request
from headgate.engines.limits import triton_limits
from headgate.engines.triton.speaker import TritonSpeaker

SERVER_PATH: Final = "/v2"
"""Where a server of KServe's protocol says its name and version."""
_METRICS_PORT_OFFSET: Final = 2

_CALLERS_MISTAKES: Final = (
    b"failed to parse the request JSON buffer",
    b"Unable to parse",
    b"doesn't support models with decoupled transaction policy",
)
"""What is told as the server's own failure, though it is in the request, or in what path it chose."""
_NO_PATH: Final = b'{"error":"Not Found"}'
_ENGINES_FAILURES: Final = (
    *(b"Stub process", b"not healthy", b"Traceback", b"Failed to process the request", b"Exceeds maximum queue size"),
    *(b"imeout expired", b"out of memory", b"OutOfMemory", b"CUDA", b"bad_alloc", b"ot ready", b"shutting down"),
    *(b"nternal error", b"ancelled"),
)
"""What is told as the request's fault, though the request may be well."""


def _blames_request(status: int, body: bytes) -> bool:
    if status in (500, 501):
        return any(mistake in body for mistake in _CALLERS_MISTAKES)
    if status == 404 and body.strip() == _NO_PATH:
        return True
    return blames_request(status, body) and not any(failure in body for failure in _ENGINES_FAILURES)


TRITON: Final = Dialect(
    name="triton",
    paths=MappingProxyType({}),
    speaker=TritonSpeaker,
    keeps_connection_after_stream=True,
    models_path=SERVER_PATH,
    health_path="/v2/health/ready",
    model_ready_path="/v2/models/{model}/ready",
    models_metric="nv_inference_pending_request_count",
    metrics_path="/metrics",
    metrics_port_offset=_METRICS_PORT_OFFSET,
    metrics_hint="start Triton with --metrics-port two above --http-port",
    metrics=MappingProxyType({Signal.WAITING: ("nv_inference_pending_request_count",)}),
    further_metrics=MappingProxyType(
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
    places_hint="see max_batch_size and the instances in the model's config.pbtxt",
    blames_request=_blames_request,
)

TRITON_TRTLLM: Final = replace(
    TRITON,
    name="triton_trtllm",
    reports_kv=True,
    metrics=MappingProxyType(
        {
            # "active" are those that wait and those that run, together.
            Signal.RUNNING: ('nv_trt_llm_request_metrics{request_type="scheduled"}',),
            Signal.WAITING: ('nv_trt_llm_request_metrics{request_type="waiting"}',),
            Signal.KV_USED_FRACTION: ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',),
        }
    ),
    places_hint="see max_batch_size of the TensorRT-LLM engine",
)
