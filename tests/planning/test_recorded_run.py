"""Parsing recorded vLLM runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.model.units import MILLISECOND, SECOND
from headgate.planning.recorded_run import KV_BLOCKS_DEFAULT, read_run, run_names

SETTINGS = {
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "max_model_len": None,
}


def a_run(folder: Path, *, kv_cache: dict[str, Any] | None = None, **settings: Any) -> None:
    meta = {"engine_kwargs": SETTINGS | settings} | ({"kv_cache": kv_cache} if kv_cache else {})
    (folder / "r.meta.json").write_text(json.dumps(meta))
    # The first row is the later request. It took 2 ms longer than the other to get from arrival to the engine's queue.
    rows = [
        a_row(
            input_toks=20, output_toks=3, arrival_time=1000.5, queued_ts=7.503, first_token_ts=7.6, last_token_ts=7.8
        ),
        a_row(
            input_toks=10, output_toks=2, arrival_time=1000.0, queued_ts=7.001, first_token_ts=7.2, last_token_ts=7.3
        ),
    ]
    (folder / "r.requests.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def a_row(**fields: float) -> dict[str, float]:
    return fields


def test_requests_are_sorted_by_arrival_and_use_one_clock(tmp_path: Path) -> None:
    a_run(tmp_path)

    run = read_run(tmp_path, "r")

    assert [(each.arrived_at, each.prompt_tokens, each.output_tokens) for each in run.requests] == [
        (SECOND, 10, 2),
        (SECOND + 500 * MILLISECOND, 20, 3),
    ]
    assert [round(each.first_token_at / MILLISECOND) for each in run.token_times] == [1_199, 1_599]
    assert [round(each.last_token_at / MILLISECOND) for each in run.token_times] == [1_299, 1_799]


def test_profile_uses_the_runs_engine_settings(tmp_path: Path) -> None:
    a_run(tmp_path, kv_cache={"num_gpu_blocks": 2588, "block_size": 16}, max_model_len=4096)

    profile = read_run(tmp_path, "r").profile

    assert (profile.sequences_max, profile.chunk_tokens, profile.context_tokens) == (128, 2048, 4096)
    assert profile.kv_blocks == 2587, "vLLM reserves one block"
    assert profile.async_scheduling


def test_expert_parallel_ranks_form_one_engine(tmp_path: Path) -> None:
    a_run(tmp_path, data_parallel_size=2, enable_expert_parallel=True)

    profile = read_run(tmp_path, "r").profile

    assert (profile.sequences_max, profile.chunk_tokens, profile.kv_blocks) == (256, 4096, 2 * KV_BLOCKS_DEFAULT)


def test_data_parallel_ranks_without_shared_experts_are_rejected(tmp_path: Path) -> None:
    a_run(tmp_path, data_parallel_size=2)

    with pytest.raises(AssertionError, match="without shared experts"):
        read_run(tmp_path, "r")


def test_run_names_are_found_in_the_directory(tmp_path: Path) -> None:
    a_run(tmp_path)

    assert run_names(tmp_path) == ["r"]
