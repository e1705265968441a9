"""The dialects understand the metrics pages and error responses of real engines.

The vLLM and llama.cpp pages are recordings with most histogram buckets removed. SGLang and TensorRT-LLM require a GPU,
so their pages are based on the vendors' documentation for that version.
"""

from pathlib import Path

import pytest

from headgate.engines.dialect import Signal, is_unknown_model
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
    "body",
    [
        b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","code":404}}',
        b'{"object":"error","message":"The model `m` does not exist.","type":"NotFoundError","code":404}',
        b'{"error":{"message":"The model `other` does not exist.","type":"NotFoundError","code":404}}',
        b'{"error":{"message":"No access to it.","type":"invalid_request_error","code":"model_not_found"}}',
        b'{"message":"The model \'other\' does not exist.","type":"invalid_request_error","object":"error"}',
        b'{"type":"error","error":{"type":"not_found_error","message":"model: other"}}',
        b'{"error":"model \'m\' not found, try pulling it first"}',
        b'{"detail":"Unknown model m."}',
    ],
)
def test_404_about_the_model_is_a_failure_of_the_engine(body: bytes) -> None:
    assert is_unknown_model(body, "m")


@pytest.mark.parametrize(
    "body",
    [
        b'{"detail":"Not Found"}',
        b' {"detail": "Not Found"}\n',
        b'{"detail":"Not Found","error":null}',
        b'{"detail":["Not Found"]}',
        b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
        b'{"object":"error","message":"Not Found","type":"404","param":null,"code":404}',
        b'{"error":{"message":"Invalid URL (POST /v1/m)","type":"invalid_request_error","param":null,"code":null}}',
        b'{"type":"error","error":{"type":"not_found_error","message":"Not found"}}',
        b'{"type":"error","error":{"type":"not_found_error","message":"File model not found"}}',
        b'{"error":{"code":"404","message":"Resource not found"}}',
        b"404 page not found",
        b"404: Not Found",
        b"<html><head><title>404 Not Found</title></head></html>",
        b"<pre>Cannot POST /v1/rerank</pre>",
        b"Path '/tokenize' not found. Ping http://engine/-/routes for available routes.",
        b'{"detail":"Not F',
        b'"m"',
        b"[" * 10_000,
        b"\xff",
        b"",
    ],
)
def test_any_other_404_means_that_the_engine_lacks_the_api(body: bytes) -> None:
    assert not is_unknown_model(body, "m")


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
