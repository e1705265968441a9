"""Engines that are only probed and scraped, as a process with one port on every loopback address.

    python -m bench.cell_streams.engine_pages

The process prints its port. It answers every request for vLLM's health, model, version and metrics pages. The metrics
page has as many rows and bytes as that of a vLLM server with one model: histograms with all their buckets, counters of
each finish reason, and the metrics of Python and of the HTTP server. Like vLLM's server, it closes connections that
have been idle for five seconds.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Final, cast

import uvloop

MODEL: Final = "m"
IDLE_S: Final = 5.0
KV_BLOCKS: Final = 32_000
_LABELS: Final = f'engine="0",model_name="{MODEL}"'
_HISTOGRAMS: Final = (
    "e2e_request_latency_seconds",
    "inter_token_latency_seconds",
    "iteration_tokens_total",
    "request_decode_time_seconds",
    "request_generation_tokens",
    "request_inference_time_seconds",
    "request_max_num_generation_tokens",
    "request_num_preemptions",
    "request_params_max_tokens",
    "request_params_n",
    "request_prefill_kv_computed_tokens",
    "request_prefill_time_seconds",
    "request_prompt_tokens",
    "request_queue_time_seconds",
    "request_time_per_output_token_seconds",
    "time_to_first_token_seconds",
)
_COUNTERS: Final = (
    "generation_tokens",
    "mm_cache_hits",
    "mm_cache_queries",
    "num_preemptions",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens",
    "prompt_tokens_recomputed",
)
_GAUGES: Final = (("engine_sleep_state", 0.0), ("kv_cache_usage_perc", 0.61), ("num_requests_running", 58.0))
_FINISH_REASONS: Final = ("abort", "error", "length", "repetition", "stop")
_HTTP_HANDLERS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics", "/health", "none")


def metrics_page() -> bytes:
    return "".join(_rows()).encode()


def _rows() -> Iterator[str]:
    yield from _python_rows()
    for name, value in (*_GAUGES, ("num_requests_waiting", 3.0)):
        yield from _family(f"vllm:{name}", "gauge", [(_LABELS, value)])
    for name in _COUNTERS:
        yield from _family(f"vllm:{name}", "counter", [(_LABELS, 1_234_567.0)])
    reasons = [(f'{_LABELS},finished_reason="{reason}"', 4_321.0) for reason in _FINISH_REASONS]
    yield from _family("vllm:request_success", "counter", reasons)
    yield "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    yield f'vllm:cache_config_info{{block_size="16",{_LABELS},num_gpu_blocks="{KV_BLOCKS}"}} 1.0\n'
    for name in _HISTOGRAMS:
        yield from _histogram(f"vllm:{name}", _LABELS)
    for handler in _HTTP_HANDLERS:
        yield from _histogram("http_request_duration_seconds", f'handler="{handler}",method="POST"')


def _family(name: str, kind: str, samples: list[tuple[str, float]]) -> Iterator[str]:
    suffix = "_total" if kind == "counter" else ""
    yield f"# HELP {name}{suffix} Value of the engine as exported by its server.\n# TYPE {name}{suffix} {kind}\n"
    for labels, value in samples:
        yield f"{name}{suffix}{{{labels}}} {value!r}\n"
    if kind == "counter":
        yield f"# HELP {name}_created Value of the engine as exported by its server.\n# TYPE {name}_created gauge\n"
        for labels, _ in samples:
            yield f"{name}_created{{{labels}}} 1.767225600123456e+09\n"


def _histogram(name: str, labels: str) -> Iterator[str]:
    yield f"# HELP {name} Histogram of the engine as exported by its server.\n# TYPE {name} histogram\n"
    for exponent in range(-9, 14):
        yield f'{name}_bucket{{{labels},le="{2.0**exponent!r}"}} 98765.0\n'
    yield f'{name}_bucket{{{labels},le="+Inf"}} 98765.0\n{name}_count{{{labels}}} 98765.0\n'
    yield f"{name}_sum{{{labels}}} 1234567.891\n"
    yield f"# TYPE {name}_created gauge\n{name}_created{{{labels}}} 1.767225600123456e+09\n"


def _python_rows() -> Iterator[str]:
    for generation in range(3):
        for name in ("collected", "uncollectable"):
            yield f'python_gc_objects_{name}_total{{generation="{generation}"}} 12345.0\n'
    for name in ("virtual_memory_bytes", "resident_memory_bytes", "cpu_seconds_total", "open_fds", "max_fds"):
        yield f"# HELP process_{name} Value of the process.\n# TYPE process_{name} gauge\nprocess_{name} 1.234567e+09\n"


def _answer(body: bytes, kind: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: {len(body)}\r\ncontent-type: {kind}\r\n\r\n"
    return head.encode() + body


_MODELS: Final = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32_768}]}
ANSWERS: Final = {
    b"GET /health ": _answer(b"", "text/plain"),
    b"GET /v1/models ": _answer(json.dumps(_MODELS).encode(), "application/json"),
    b"GET /version ": _answer(b'{"version":"0.32.0"}', "application/json"),
    b"GET /metrics ": _answer(metrics_page(), "text/plain; version=0.0.4; charset=utf-8"),
}


class EngineConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._close_if_idle()

    def data_received(self, data: bytes) -> None:
        # A request for a page fits into one packet.
        self._heard_s = self._loop.time()
        self._transport.write(ANSWERS[data[: data.index(b" ", 4) + 1]])

    def _close_if_idle(self) -> None:
        left_s = self._heard_s + IDLE_S - self._loop.time()
        if left_s > 0:
            self._loop.call_later(left_s, self._close_if_idle)
        else:
            self._transport.close()


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(EngineConnection, "0.0.0.0", 0, backlog=4_096)  # noqa: S104
    print(server.sockets[0].getsockname()[1], flush=True)
    # The parent closes stdin when it exits.
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
