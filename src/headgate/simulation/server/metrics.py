"""Metrics page of the simulated engine, with the vLLM metric names that a gateway reads."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from headgate.model.engine_profile import EngineProfile
from headgate.simulation.engine.state import EngineState

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_TTFT_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TTFT_LONG_BUCKETS_S: Final = (20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_INTER_TOKEN_BUCKETS_S: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_REQUEST_BUCKETS_S: Final = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
)
_REQUEST_LONG_BUCKETS_S: Final = (480.0, 960.0, 1920.0, 7680.0)


class DurationHistogram:
    """Histogram that records many equal values at once. All sequences in a step have the same inter-token latency."""

    __slots__ = ("_bounds", "_counts", "_sum_ns")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_ns = 0

    def observe(self, duration_ns: int, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, duration_ns / 1e9)] += count
        self._sum_ns += duration_ns * count

    def samples(self, name: str, labels: dict[str, str]) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield _sample(f"{name}_bucket", labels | {"le": str(bound)}, total)
        yield _sample(f"{name}_count", labels, total)
        yield _sample(f"{name}_sum", labels, self._sum_ns / 1e9)


class EngineMetrics:
    """Latency histograms and counters, and the metrics page with the engine's state."""

    def __init__(self, model: str, profile: EngineProfile) -> None:
        self.time_to_first_token = DurationHistogram(_TTFT_BUCKETS_S + _TTFT_LONG_BUCKETS_S)
        self.inter_token_latency = DurationHistogram(_INTER_TOKEN_BUCKETS_S)
        self.queue_time = DurationHistogram(_REQUEST_BUCKETS_S + _REQUEST_LONG_BUCKETS_S)
        self.e2e_latency = DurationHistogram(_REQUEST_BUCKETS_S + _REQUEST_LONG_BUCKETS_S)
        self.finish_reasons = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        """Finished requests by vLLM's finish reason."""
        self._labels = {"engine": "0", "model_name": model}
        self._profile = profile

    def render(self, state: EngineState) -> bytes:
        return "".join(self._families(state)).encode()

    def _families(self, state: EngineState) -> Iterator[str]:
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", state.running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", state.waiting)
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", state.kv_used_fraction)
        yield self._counter("prefix_cache_queries", "Prefix cache queries, in tokens.", state.prefix_queried_tokens)
        yield self._counter("prefix_cache_hits", "Prefix cache hits, in tokens.", state.prefix_hit_tokens)
        yield self._counter("num_preemptions", "Cumulative number of preemptions.", state.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", state.prompt_tokens)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", state.generated_tokens)
        yield self._request_success()
        yield self._durations("time_to_first_token_seconds", "Time to first token.", self.time_to_first_token)
        yield self._durations("inter_token_latency_seconds", "Inter-token latency.", self.inter_token_latency)
        yield self._durations("request_queue_time_seconds", "Time spent in WAITING phase.", self.queue_time)
        yield self._durations("e2e_request_latency_seconds", "End-to-end request latency.", self.e2e_latency)
        yield self._cache_config()

    def _gauge(self, name: str, help_: str, value: float) -> str:
        return _head(name, help_, "gauge") + _sample(name, self._labels, value)

    def _counter(self, name: str, help_: str, value: float) -> str:
        name = f"{name}_total"
        return _head(name, help_, "counter") + _sample(name, self._labels, value)

    def _durations(self, name: str, help_: str, durations: DurationHistogram) -> str:
        return _head(name, help_, "histogram") + "".join(durations.samples(name, self._labels))

    def _request_success(self) -> str:
        name = "request_success_total"
        labels = self._labels
        samples = (
            _sample(name, labels | {"finished_reason": why}, count) for why, count in self.finish_reasons.items()
        )
        return _head(name, "Count of processed requests.", "counter") + "".join(samples)

    def _cache_config(self) -> str:
        name, profile = "cache_config_info", self._profile
        labels = {
            "engine": "0",
            "block_size": str(profile.block_tokens),
            "num_gpu_blocks": str(profile.kv_blocks),
            "enable_prefix_caching": str(profile.prefix_cache),
        }
        return _head(name, "Information of the CacheConfig", "gauge") + _sample(name, labels, 1)


def _head(name: str, help_: str, kind: str) -> str:
    return f"# HELP vllm:{name} {help_}\n# TYPE vllm:{name} {kind}\n"


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    """Formats a sample with sorted labels, like vLLM's Prometheus client."""
    pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in sorted(labels.items()))
    return f"vllm:{name}{{{pairs}}} {float(value)!r}\n"
