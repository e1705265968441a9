"""The dialects understand the metrics pages and error responses of real engines.

The vLLM and llama.cpp pages are recordings with most histogram buckets removed. SGLang and TensorRT-LLM require a GPU,
so their pages are based on the vendors' documentation for that version.
"""

from pathlib import Path

import pytest

from headgate.engines.dialect import Signal, is_unknown_path
from headgate.engines.dialects import DIALECTS
from headgate.engines.metrics_page import Metric, read_metrics
from headgate.model.ticket import Api

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize(
    ("dialect", "page", "found"),
    [
        (
            "vllm",
            "vllm-0.32.0.txt",
            {
                "vllm:num_requests_running": Metric(0.0, 1),
                "vllm:num_requests_waiting": Metric(0.0, 1),
                "vllm:kv_cache_usage_perc": Metric(0.0, 1),
                "vllm:num_preemptions_total": Metric(0.0, 1),
            },
        ),
        (
            "llamacpp",
            "llamacpp-2026.10.txt",
            {"llamacpp:requests_processing": Metric(0.0, 1), "llamacpp:requests_deferred": Metric(0.0, 1)},
        ),
        (
            "sglang",
            "sglang-0.5.txt",
            {
                "sglang:num_running_reqs": Metric(42.0, 1),
                "sglang:num_queue_reqs": Metric(7.0, 1),
                "sglang:token_usage": Metric(0.28, 1),
            },
        ),
        (
            "trtllm",
            "trtllm-1.2.txt",
            {
                "trtllm_num_requests_running": Metric(3.0, 1),
                "trtllm_num_requests_waiting": Metric(1.0, 1),
                "trtllm_kv_cache_utilization": Metric(0.5, 1),
            },
        ),
    ],
)
def test_dialect_finds_every_signal_in_a_scrape(dialect: str, page: str, found: dict[str, Metric]) -> None:
    metrics = DIALECTS[dialect].metrics
    names = [name for aliases in metrics.values() for name in aliases]

    assert read_metrics((RECORDED / page).read_bytes(), names) == found
    assert all(any(name in found for name in aliases) for aliases in metrics.values())


def test_dialect_lists_newest_metric_name_first() -> None:
    kv = DIALECTS["vllm"].metrics[Signal.KV_USED_FRACTION]

    assert kv == ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


def test_every_dialect_has_its_own_name_and_handles_every_api() -> None:
    for name, dialect in DIALECTS.items():
        assert dialect.name == name
        assert set(dialect.paths) == (set(Api) - {Api.INFER} if dialect.adapter is None else set())


def test_llamacpp_metrics_are_scraped_at_a_long_interval() -> None:
    assert DIALECTS["llamacpp"].scrape_s_min >= 5


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("status", "body", "blamed"),
    [
        (400, b'{"error":{"message":"Expected \'messages\' to be an array"}}', True),
        (405, b"", True),
        (409, b"", True),
        (413, b"", True),
        (422, b'{"detail":[{"msg":"field required"}]}', True),
        (401, b"", False),
        (403, b"", False),
        (407, b"", False),
        (408, b"", False),
        (429, b"", False),
        (404, b'{"error":{"message":"The model `nope` does not exist. Valid aliases: smollm2."}}', False),
        (404, b"<html>404</html>", False),
        (404, b'{"detail":"Not Found"}', True),
        (307, b"", False),
        (500, b'{"error":{"message":"EngineCore encountered an issue","type":"server_error"}}', False),
        (500, b"not json", False),
        (502, b"", False),
        (503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', False),
    ],
)
def test_dialect_blames_the_request_only_for_request_errors(
    dialect: str, status: int, body: bytes, blamed: bool
) -> None:
    assert DIALECTS[dialect].is_request_error(status, body) is blamed


@pytest.mark.parametrize(
    ("body", "unknown"),
    [
        (b'{"detail":"Not Found"}', True),
        (b' {"detail": "Not Found"}\n', True),
        (b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}', True),
        (b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","code":404}}', False),
        (b'{"object":"error","message":"Not Found","type":"404","param":null,"code":404}', True),
        (b'{"object":"error","message":"The model `m` does not exist.","type":"NotFoundError","code":404}', False),
        (b'{"error":"model \'m\' not found"}', False),
        (b'{"detail":"Model Not Found"}', False),
        (b'{"detail":["Not Found"]}', False),
        (b"<html>404 Not Found</html>", False),
        (b'{"detail":"Not F', False),
        (b"[" * 10_000, False),
        (b"", False),
    ],
)
def test_only_the_text_of_the_web_framework_means_an_unknown_path(body: bytes, unknown: bool) -> None:
    assert is_unknown_path(body) is unknown


IMAGE_REFUSED = (
    b'{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to '
    b'provide the mmproj","type":"server_error"}}'
)
TEMPLATE_REFUSED = (
    b'{"error":{"code":500,"message":"\\n------------\\nWhile executing CallExpression at line 189, column 32 in:'
    b"\\n^\\nError: Jinja Exception: After the optional system message, conversation roles must alternate user and "
    b'assistant roles","type":"server_error"}}'
)
EMBEDDINGS_REFUSED = (
    b'{"error":{"code":501,"message":"This server does not support embeddings. Start it with `--embeddings`",'
    b'"type":"not_supported_error"}}'
)
TEXT_REFUSED = (
    b'{"error":{"code":500,"message":"input (301 tokens) is too large to process. increase the physical batch size '
    b'(current batch size: 256)","type":"server_error"}}'
)


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, IMAGE_REFUSED), (500, TEMPLATE_REFUSED), (501, EMBEDDINGS_REFUSED), (500, TEXT_REFUSED)],
)
def test_llamacpp_dialect_recognises_request_errors_with_server_status(status: int, body: bytes) -> None:
    assert DIALECTS["llamacpp"].is_request_error(status, body)
    assert not DIALECTS["vllm"].is_request_error(status, body)
