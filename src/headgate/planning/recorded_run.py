"""Reads recorded vLLM runs: engine settings, requests and response times.

A run consists of three files with the same name. Two of them are read: `.meta.json` with the engine's settings, and
`.requests.jsonl` with one line per request (lengths, arrival, queueing, first and last token).

Data-parallel ranks that share experts (`enable_expert_parallel`) execute every step together, because they wait for
each other in every layer. They are therefore modelled as one engine with the slots, chunk size and memory of all ranks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import SECOND, Instant
from headgate.planning.engine_replay import RunRequest, TokenTimes

KV_BLOCKS_DEFAULT: Final = 31_250
"""KV block count to assume if the run does not specify one. It corresponds to 500,000 tokens, more than the sequences
in any run need.
"""
CONTEXT_TOKENS_DEFAULT: Final = 32_768
CLOCK_OFFSET_REQUESTS: Final = 100
"""Number of requests used to estimate the offset between a run's two clocks."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    name: str
    profile: EngineProfile
    """Engine profile with the run's settings. The five time parameters are placeholders for calibration."""
    requests: list[RunRequest]
    token_times: list[TokenTimes]


def read_run(folder: Path, name: str) -> RecordedRun:
    meta = json.loads((folder / f"{name}.meta.json").read_text())
    lines = (folder / f"{name}.requests.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = sorted((json.loads(line) for line in lines), key=lambda each: each["arrival_time"])
    profile = _profile(name, meta["engine_kwargs"], meta.get("kv_cache") or {})
    return RecordedRun(name, profile, [_request(each, rows) for each in rows], _token_times(rows))


def run_names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".meta.json") for path in folder.glob("*.meta.json"))


def _profile(name: str, settings: Mapping[str, Any], kv: Mapping[str, Any]) -> EngineProfile:
    ranks: int = settings["data_parallel_size"]
    assert ranks == 1 or settings["enable_expert_parallel"], (
        f"{name}: data-parallel ranks without shared experts are not supported"
    )
    # vLLM reserves one block as a placeholder.
    blocks = kv["num_gpu_blocks"] - 1 if "num_gpu_blocks" in kv else KV_BLOCKS_DEFAULT
    return EngineProfile(
        name=name,
        step_ps=1,
        prefill_token_ps=0,
        decode_sequence_ps=0,
        kv_token_ps=0,
        attention_ps=0,
        chunk_tokens=ranks * settings["max_num_batched_tokens"],
        sequences_max=ranks * settings["max_num_seqs"],
        kv_blocks=ranks * blocks,
        block_tokens=kv.get("block_size", 16),
        context_tokens=settings["max_model_len"] or CONTEXT_TOKENS_DEFAULT,
        async_scheduling=True,
    )


def _request(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> RunRequest:
    arrived_at = _instant(row["arrival_time"], rows[0]["arrival_time"])
    return RunRequest(arrived_at, prompt_tokens=row["input_toks"], output_tokens=row["output_toks"])


def _token_times(rows: Sequence[Mapping[str, Any]]) -> list[TokenTimes]:
    # Arrivals and tokens were measured with different clocks. The request that was queued fastest gives the offset.
    apart = min(each["queued_ts"] - each["arrival_time"] for each in rows[:CLOCK_OFFSET_REQUESTS])
    start = rows[0]["arrival_time"] + apart
    return [
        TokenTimes(_instant(each["first_token_ts"], start), _instant(each["last_token_ts"], start)) for each in rows
    ]


def _instant(moment_s: float, start_s: float) -> Instant:
    """Time relative to `start_s`, plus one second."""
    return Instant(SECOND + round((moment_s - start_s) * SECOND))
