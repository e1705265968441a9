"""Limits reported by engines are read, and malformed values are ignored."""

import json
from pathlib import Path

import pytest

from headgate.engines.dialects import DIALECTS
from headgate.engines.page import PAGE_BYTES_MAX, open_session
from headgate.engines.probe import Probe
from headgate.engines.reported_limits import (
    LIMIT_MAX,
    llamacpp_limits,
    sglang_limits,
    triton_limits,
    trtllm_limits,
    vllm_limits,
)
from headgate.ports.engine import EngineLimits
from testing.fake_engine import FakeEngine

RECORDED = Path(__file__).parent / "recorded"


def as_page(value: object) -> bytes:
    return json.dumps(value).encode()


MODELS = as_page({"data": [{"id": "m", "max_model_len": 8_192}, {"id": "adapter"}]})


def test_vllm_reports_blocks_as_metric_labels() -> None:
    pages = {"/metrics": (RECORDED / "vllm-0.32.0.txt").read_bytes(), "/v1/models": MODELS}

    assert vllm_limits(pages) == EngineLimits(kv_tokens=364 * 128, context_tokens=8_192)


def test_vllm_limits_are_summed_over_data_parallel_engines() -> None:
    rows = "".join(
        f'vllm:cache_config_info{{engine="{number}",block_size="16",num_gpu_blocks="100"}} 1.0\n' for number in (0, 1)
    )

    assert vllm_limits({"/metrics": rows.encode()}).kv_tokens == 3_200


@pytest.mark.parametrize("blocks", ["None", "-1", "1.5", "x", str(LIMIT_MAX)])
def test_malformed_block_count_is_ignored(blocks: str) -> None:
    row = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0\n'

    assert vllm_limits({"/metrics": row.encode()}) == EngineLimits()


def test_sglang_reports_all_three_limits() -> None:
    said = {"max_total_num_tokens": 325_000, "max_running_requests": 128, "context_length": 4_096}
    assert sglang_limits({"/get_server_info": as_page(said)}) == EngineLimits(325_000, 128, 4_096)

    said |= {"max_running_requests": None, "context_length": None}
    pages = {"/get_server_info": as_page(said), "/v1/models": MODELS}
    assert sglang_limits(pages) == EngineLimits(325_000, None, 8_192)


def test_trtllm_reports_its_last_iteration() -> None:
    iteration = {"kvCacheStats": {"maxNumBlocks": 100, "tokensPerBlock": 32}, "maxNumActiveRequests": 64}

    assert trtllm_limits({"/metrics": as_page([{}, iteration])}) == EngineLimits(3_200, 64)
    assert trtllm_limits({"/metrics": as_page([])}) == EngineLimits()


def test_llamacpp_reports_slots_and_the_context_of_each() -> None:
    props = {"total_slots": 4, "default_generation_settings": {"n_ctx": 2_048}}

    assert llamacpp_limits({"/props": as_page(props)}) == EngineLimits(8_192, 4, 2_048)
    assert llamacpp_limits({"/props": as_page({"total_slots": True})}) == EngineLimits()


def test_triton_sequence_limit_is_batch_size_times_instances() -> None:
    config = {"max_batch_size": 8, "instance_group": [{"count": 2}, {}]}

    assert triton_limits({"/v2/models/{model}/config": as_page(config)}) == EngineLimits(sequences_max=24)
    assert triton_limits({"/v2/models/{model}/config": as_page({"max_batch_size": 8})}).sequences_max == 8
    assert triton_limits({"/v2/models/{model}/config": as_page({"max_batch_size": 0})}) == EngineLimits()


def test_tensorrt_llm_behind_triton_reports_blocks_and_requests() -> None:
    pages = {"/metrics": (RECORDED / "triton-trtllm-0.20.txt").read_bytes()}

    assert triton_limits(pages) == EngineLimits(6_239 * 64, 512)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("page", [b"", b"{", b"[]", b"[1]", b'"x"', b'{"data": 3}', b'{"data": [3]}'])
def test_malformed_page_yields_no_limits(name: str, page: bytes) -> None:
    dialect = DIALECTS[name]
    if dialect.read_limits is not None:
        pages = dict.fromkeys((*dialect.limits_paths, "/metrics"), page)
        assert dialect.read_limits(pages) == EngineLimits()


@pytest.mark.parametrize(
    ("engine_name", "limits"),
    [
        ("llamacpp", EngineLimits(4_096, 4, 1_024)),
        ("vllm", EngineLimits(46_592)),
        ("openai_compatible", EngineLimits()),
    ],
)
async def test_probe_reads_limits_from_available_pages(engine_name: str, limits: EngineLimits) -> None:
    async with FakeEngine() as engine, open_session() as session:
        engine.metrics = (RECORDED / "vllm-0.32.0.txt").read_bytes()
        engine.props = {"total_slots": 4, "default_generation_settings": {"n_ctx": 1_024}}
        probe = Probe(
            session,
            engine.url,
            dialect=DIALECTS[engine_name],
            served_model="fake",
            api_key=None,
            timeout_s=30.0,
            page_bytes_max=PAGE_BYTES_MAX,
        )

        assert await probe.limits() == limits


async def test_probing_an_unreachable_engine_yields_no_limits() -> None:
    async with FakeEngine() as engine:
        url = engine.url
    async with open_session() as session:
        probe = Probe(
            session,
            url,
            dialect=DIALECTS["vllm"],
            served_model="fake",
            api_key=None,
            timeout_s=30.0,
            page_bytes_max=PAGE_BYTES_MAX,
        )

        assert await probe.limits() == EngineLimits()
