"""Readers of the limits that engines report: KV capacity, concurrent sequences, context length.

Each reader gets the pages of one engine by their paths; a page that the engine does not have is missing. A value that
is missing, malformed or not positive is unknown: engines change their pages between versions, and a wrong limit would
be worse than none.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from headgate.engines.metrics_page import read_metrics, read_series
from headgate.ports.engine import EngineLimits

Pages = Mapping[str, bytes]
"""Path -> body of the page."""

LIMIT_MAX: Final = 10**9
"""Larger values are taken for a mistake."""


def vllm_limits(pages: Pages) -> EngineLimits:
    """vLLM reports its KV blocks as labels of a metric, per data-parallel engine, and no limit of sequences."""
    series = [labels for labels, _ in read_series(pages.get("/metrics", b""), "vllm:cache_config_info")]
    each = [_product(labels.get("block_size"), labels.get("num_gpu_blocks")) for labels in series]
    kv_tokens = sum(found for found in each if found is not None) if None not in each else None
    return EngineLimits(kv_tokens=_limit(kv_tokens), context_tokens=_model_length(pages))


def sglang_limits(pages: Pages) -> EngineLimits:
    said = _object(pages.get("/get_server_info"))
    return EngineLimits(
        kv_tokens=_limit(said.get("max_total_num_tokens")),
        sequences_max=_limit(said.get("max_running_requests")),
        context_tokens=_limit(said.get("context_length")) or _model_length(pages),
    )


def trtllm_limits(pages: Pages) -> EngineLimits:
    """trtllm-serve lists its last iterations; the list is empty until it has served a request."""
    iterations = _items(_json(pages.get("/metrics")))
    said = _mapping(iterations[-1]) if iterations else {}
    cache = _mapping(said.get("kvCacheStats"))
    return EngineLimits(
        kv_tokens=_product(cache.get("maxNumBlocks"), cache.get("tokensPerBlock")),
        sequences_max=_limit(said.get("maxNumActiveRequests")),
        context_tokens=_model_length(pages),
    )


def llamacpp_limits(pages: Pages) -> EngineLimits:
    """llama.cpp reports its slots and the context of one. With `--kv-unified` the slots share what is counted here."""
    said = _object(pages.get("/props"))
    slots, context = said.get("total_slots"), _mapping(said.get("default_generation_settings")).get("n_ctx")
    return EngineLimits(_product(slots, context), _limit(slots), _limit(context))


def triton_limits(pages: Pages) -> EngineLimits:
    """The sequences of a Triton model are its batch size times its instances; TensorRT-LLM adds metrics of its own."""
    page = pages.get("/metrics", b"")
    blocks, block_tokens, sequences = (
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}',
        'nv_trt_llm_request_metrics{request_type="max"}',
    )
    found = {name: metric.total for name, metric in read_metrics(page, (blocks, block_tokens, sequences)).items()}
    return EngineLimits(
        kv_tokens=_product(found.get(blocks), found.get(block_tokens)),
        sequences_max=_limit(found.get(sequences)) or _batch(_object(pages.get("/v2/models/{model}/config"))),
    )


def _batch(config: dict[str, object]) -> int | None:
    counts = [_mapping(each).get("count", 1) for each in _items(config.get("instance_group"))]
    instances = sum(each for each in counts if isinstance(each, int)) or 1
    return _product(config.get("max_batch_size"), instances)


def _model_length(pages: Pages) -> int | None:
    """The shortest context among the models that an OpenAI-compatible engine lists."""
    models = _items(_object(pages.get("/v1/models")).get("data"))
    lengths = [_limit(_mapping(each).get("max_model_len")) for each in models]
    return min((each for each in lengths if each is not None), default=None)


def _product(one: object, other: object) -> int | None:
    first, second = _limit(one), _limit(other)
    return None if first is None or second is None else _limit(first * second)


def _limit(value: object) -> int | None:
    """A positive whole number within bounds, also as text or as a float without a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if 1 <= number <= LIMIT_MAX and number.is_integer() else None


def _object(body: bytes | None) -> dict[str, object]:
    return _mapping(_json(body))


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _json(body: bytes | None) -> object:
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
