"""Acceptance scenarios with real vLLM."""

import urllib.request
from pathlib import Path

import pytest

from testing.real_engines import RealEngine, vllm
from testing.stalls import rerun_if_stalled
from tests.acceptance import doors_scenarios, messages_scenarios, scenarios

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

DIALECT = "vllm"


@pytest.fixture(scope="module")
def engine(shared_vllm: RealEngine) -> RealEngine:
    return shared_vllm


def running(engine: RealEngine) -> int:
    with urllib.request.urlopen(engine.url + "/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    [value] = [line.split()[-1] for line in lines if line.startswith("vllm:num_requests_running{")]
    return int(float(value))


async def test_sdk_streams_a_chat(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.the_sdk_streams_a_chat(engine, DIALECT, tmp_path)


async def test_sdk_streams_a_response(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.the_sdk_streams_a_response(engine, DIALECT, tmp_path)


async def test_anthropic_sdk_uses_messages(engine: RealEngine, tmp_path: Path) -> None:
    await messages_scenarios.the_sdk_uses_messages(engine, DIALECT, tmp_path)


async def test_faults_reach_the_anthropic_sdk(engine: RealEngine, tmp_path: Path) -> None:
    await messages_scenarios.faults_reach_the_sdk(engine, DIALECT, tmp_path)


async def test_tokenizer_is_reached(engine: RealEngine, tmp_path: Path) -> None:
    await doors_scenarios.the_tokenizer_is_reached(engine, DIALECT, tmp_path)


async def test_class_caps_are_applied_and_reported(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.a_class_caps_what_is_asked_and_says_so(engine, DIALECT, tmp_path)


async def test_sixteen_requests_complete_on_four_slots(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.sixteen_callers_on_four_slots_end_truthfully(engine, DIALECT, tmp_path)


@pytest.mark.timing
@rerun_if_stalled
async def test_disconnect_frees_slot_within_a_second(engine: RealEngine, tmp_path: Path) -> None:
    assert await scenarios.a_caller_who_leaves_frees_the_slot(engine, DIALECT, tmp_path, running) < 1


async def test_sigterm_drains_all_requests(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.sigterm_severs_nothing(engine, DIALECT, tmp_path)


# CI kills a llama.cpp engine instead, which starts ten times faster.
@pytest.mark.nightly
async def test_killing_an_engine_interrupts_only_its_started_streams(engine: RealEngine, tmp_path: Path) -> None:
    with vllm(max_num_seqs=4) as doomed:
        await scenarios.an_engine_killed_mid_run_costs_only_what_it_was_sending(doomed, engine, DIALECT, tmp_path)


async def test_unsupported_image_causes_a_client_error(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.an_image_for_a_model_without_eyes_is_refused(engine, DIALECT, tmp_path)


# A second and a third start of vLLM are too slow for CI, which ranks with llama.cpp.
@pytest.mark.nightly
async def test_pooling_models_rank_score_and_pool(tmp_path: Path) -> None:
    with vllm(max_num_seqs=4, convert="embed") as engine:
        await doors_scenarios.documents_are_ranked(engine, DIALECT, tmp_path)
        await doors_scenarios.texts_are_scored_and_pooled(engine, DIALECT, tmp_path)


@pytest.mark.nightly
async def test_classifier_classifies(tmp_path: Path) -> None:
    with vllm(max_num_seqs=4, convert="classify") as engine:
        await doors_scenarios.texts_are_classified(engine, DIALECT, tmp_path)
