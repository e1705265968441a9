"""Is a recorded run read as it is meant?"""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.model.units import MILLISECOND, SECOND
from headgate.planning.recorded_run import KV_BLOCKS_UNKNOWN, read_run, run_names

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
    # Of the second, which is first in the file, the engine heard 2 ms later than of the other.
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


def test_requests_are_in_the_order_of_arrival_and_by_one_clock(tmp_path: Path) -> None:
    a_run(tmp_path)

    run = read_run(tmp_path, "r")

    assert [(each.arrived_at, each.prompt_tokens, each.output_tokens) for each in run.demands] == [
        (SECOND, 10, 2),
        (SECOND + 500 * MILLISECOND, 20, 3),
    ]
    assert [round(each.first_token_at / MILLISECOND) for each in run.answers] == [1_199, 1_599]
    assert [round(each.last_token_at / MILLISECOND) for each in run.answers] == [1_299, 1_799]


def test_an_engine_of_its_own_has_the_settings_of_the_run(tmp_path: Path) -> None:
    a_run(tmp_path, kv_cache={"num_gpu_blocks": 2588, "block_size": 16}, max_model_len=4096)

    profile = read_run(tmp_path, "r").profile

    assert (profile.sequences_max, profile.chunk_tokens, profile.context_tokens) == (128, 2048, 4096)
    assert profile.kv_blocks == 2587, "vLLM keeps one block for itself"
    assert profile.asynchronous


def test_ranks_that_share_experts_are_one_engine(tmp_path: Path) -> None:
    a_run(tmp_path, data_parallel_size=2, enable_expert_parallel=True)

    profile = read_run(tmp_path, "r").profile

    assert (profile.sequences_max, profile.chunk_tokens, profile.kv_blocks) == (256, 4096, 2 * KV_BLOCKS_UNKNOWN)


def test_ranks_that_share_nothing_are_not_taken_for_one_engine(tmp_path: Path) -> None:
    a_run(tmp_path, data_parallel_size=2)

    with pytest.raises(AssertionError, match="engines apart"):
        read_run(tmp_path, "r")


def test_a_folder_names_its_runs(tmp_path: Path) -> None:
    a_run(tmp_path)

    assert run_names(tmp_path) == ["r"]
