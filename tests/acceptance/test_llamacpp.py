"""Acceptance scenarios with real llama.cpp."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.real_engines import RealEngine, llamacpp
from testing.stalls import rerun_if_stalled
from tests.acceptance import doors_scenarios, messages_scenarios, scenarios

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(900)]

DIALECT = "llamacpp"


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with llamacpp(parallel=4) as engine:
        yield engine


def running(engine: RealEngine) -> int:
    with urllib.request.urlopen(engine.url + "/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith("llamacpp:requests_processing ")]
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


@pytest.mark.timing
@rerun_if_stalled
async def test_disconnect_during_non_streaming_request_frees_slot_within_a_second(
    engine: RealEngine, tmp_path: Path
) -> None:
    leave = scenarios.a_caller_who_leaves_frees_the_slot_beside_a_stream
    prompt = "Tell a long story."
    assert await leave(engine, DIALECT, tmp_path, running, prompt=prompt, after_s=2, streamed=False) < 1


@pytest.mark.timing
@pytest.mark.parametrize("streamed", [True, False], ids=["streaming", "non-streaming"])
@rerun_if_stalled
async def test_disconnect_during_prefill_frees_slot_within_a_second(tmp_path: Path, streamed: bool) -> None:
    """Use small batches, because llama.cpp notices a disconnect only at the end of a batch."""
    leave = scenarios.a_caller_who_leaves_frees_the_slot_beside_a_stream
    prompt = "word " * 1_500
    with llamacpp(parallel=2, ctx=4096, batch=8) as engine:
        assert await leave(engine, DIALECT, tmp_path, running, prompt=prompt, after_s=0.5, streamed=streamed) < 1


async def test_sigterm_drains_all_requests(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.sigterm_severs_nothing(engine, DIALECT, tmp_path)


async def test_killing_an_engine_interrupts_only_its_started_streams(engine: RealEngine, tmp_path: Path) -> None:
    with llamacpp(parallel=4) as doomed:
        await scenarios.an_engine_killed_mid_run_costs_only_what_it_was_sending(doomed, engine, DIALECT, tmp_path)


async def test_text_model_has_no_transcriptions(engine: RealEngine, tmp_path: Path) -> None:
    await doors_scenarios.a_text_model_transcribes_nothing(engine, DIALECT, tmp_path)


async def test_unsupported_image_causes_a_client_error(engine: RealEngine, tmp_path: Path) -> None:
    await scenarios.an_image_for_a_model_without_eyes_is_refused(engine, DIALECT, tmp_path)


async def test_embeddings_pass_through(tmp_path: Path) -> None:
    with llamacpp(embeddings=True) as engine:
        await scenarios.embeddings_pass_through(engine, DIALECT, tmp_path)


async def test_documents_are_ranked(tmp_path: Path) -> None:
    with llamacpp(reranking=True) as engine:
        await doors_scenarios.documents_are_ranked(engine, DIALECT, tmp_path)
