"""Readers for engine-reported limits: KV capacity, concurrent sequences and context length.

Each reader receives one engine's pages by path, omitting those that the engine does not have. A value that is missing,
malformed or not positive counts as unknown: engines change their pages between versions, and a wrong limit would be
worse than none.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from headgate.engines.metrics_page import read_metrics, read_series
from headgate.ports.engine import EngineLimits

Pages = Mapping[str, bytes]
"""Page bodies by path."""

LIMIT_MAX: Final = 10**9
"""Maximum plausible limit. Larger values are ignored."""


def vllm_limits(pages: Pages) -> EngineLimits:
    """Reads vLLM's KV blocks from metric labels, one series per data-parallel rank. vLLM does not report a sequence
    limit.
    """
    series = [labels for labels, _ in read_series(pages.get("/metrics", b""), "vllm:cache_config_info")]
    each = [_product(labels.get("block_size"), labels.get("num_gpu_blocks")) for labels in series]
    kv_tokens = sum(found for found in each if found is not None) if None not in each else None
    return EngineLimits(kv_tokens=_limit(kv_tokens), context_tokens=_context_tokens(pages))


def sglang_limits(pages: Pages) -> EngineLimits:
    said = _object(pages.get("/get_server_info"))
    return EngineLimits(
        kv_tokens=_limit(said.get("max_total_num_tokens")),
        sequences_max=_limit(said.get("max_running_requests")),
        context_tokens=_limit(said.get("context_length")) or _context_tokens(pages),
    )


def trtllm_limits(pages: Pages) -> EngineLimits:
    """Reads the last entry of trtllm-serve's iteration list, which is empty until the first request."""
    iterations = _items(_json(pages.get("/metrics")))
    said = _mapping(iterations[-1]) if iterations else {}
    cache = _mapping(said.get("kvCacheStats"))
    return EngineLimits(
        kv_tokens=_product(cache.get("maxNumBlocks"), cache.get("tokensPerBlock")),
        sequences_max=_limit(said.get("maxNumActiveRequests")),
        context_tokens=_context_tokens(pages),
    )


def llamacpp_limits(pages: Pages) -> EngineLimits:
    """Reads llama.cpp's number of slots and the context size of one slot.

    With `--kv-unified` the slots share this capacity.
    """
    said = _object(pages.get("/props"))
    slots, context = said.get("total_slots"), _mapping(said.get("default_generation_settings")).get("n_ctx")
    return EngineLimits(_product(slots, context), _limit(slots), _limit(context))


def triton_limits(pages: Pages) -> EngineLimits:
    """Reads the sequence limit: batch size times instances. TensorRT-LLM models report theirs as metrics."""
    page = pages.get("/metrics", b"")
    blocks, block_tokens, sequences = (
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}',
        'nv_trt_llm_request_metrics{request_type="max"}',
    )
    found = {name: metric.total for name, metric in read_metrics(page, (blocks, block_tokens, sequences)).items()}
    return EngineLimits(
        kv_tokens=_product(found.get(blocks), found.get(block_tokens)),
        sequences_max=_limit(found.get(sequences))
        or _triton_sequences(_object(pages.get("/v2/models/{model}/config"))),
    )


def _triton_sequences(config: dict[str, object]) -> int | None:
    counts = [_mapping(each).get("count", 1) for each in _items(config.get("instance_group"))]
    instances = sum(each for each in counts if isinstance(each, int)) or 1
    return _product(config.get("max_batch_size"), instances)


def _context_tokens(pages: Pages) -> int | None:
    """Returns the shortest context length among the models listed by an OpenAI-compatible engine."""
    models = _items(_object(pages.get("/v1/models")).get("data"))
    lengths = [_limit(_mapping(each).get("max_model_len")) for each in models]
    return min((each for each in lengths if each is not None), default=None)


def _product(one: object, other: object) -> int | None:
    first, second = _limit(one), _limit(other)
    return None if first is None or second is None else _limit(first * second)


def _limit(value: object) -> int | None:
    """Converts an int, a whole float or a numeric string. Returns None for values outside 1 to `LIMIT_MAX`."""
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
