"""What does a recorded vLLM run say: how was the engine set up, what was asked of it, when did it answer?

A run is three files with one name, of which two are read: `.meta.json` (the engine's settings) and `.requests.jsonl`
(a line per request: lengths, arrival, and when it was queued and got its first and last token).

Data-parallel ranks whose experts are spread over all of them (`enable_expert_parallel`) make every step together, each
waiting for the others in every layer. They are therefore one engine with the places, the chunk and the memory of all,
not several that go at their own pace.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import SECOND, Instant
from headgate.planning.answers import Answer, Demand

KV_BLOCKS_UNKNOWN: Final = 31_250
"""500,000 tokens of 16 to a block: more than the sequences of a run can hold, where the run does not say."""
CONTEXT_TOKENS_UNKNOWN: Final = 32_768
CLOCK_REQUESTS: Final = 100
"""How many of the first requests tell how far the two clocks of a run are apart."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    name: str
    profile: EngineProfile
    """The settings are the run's; the five times of a step are placeholders, to be calibrated."""
    demands: list[Demand]
    answers: list[Answer]


def read_run(folder: Path, name: str) -> RecordedRun:
    meta = json.loads((folder / f"{name}.meta.json").read_text())
    lines = (folder / f"{name}.requests.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = sorted((json.loads(line) for line in lines), key=lambda each: each["arrival_time"])
    profile = _profile(name, meta["engine_kwargs"], meta.get("kv_cache") or {})
    return RecordedRun(name, profile, [_demand(each, rows) for each in rows], _answers(rows))


def run_names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".meta.json") for path in folder.glob("*.meta.json"))


def _profile(name: str, settings: Mapping[str, Any], kv: Mapping[str, Any]) -> EngineProfile:
    ranks: int = settings["data_parallel_size"]
    assert ranks == 1 or settings["enable_expert_parallel"], (
        f"{name}: ranks that do not share experts are engines apart"
    )
    # vLLM keeps one block for itself, to stand for blocks that are not there.
    blocks = kv["num_gpu_blocks"] - 1 if "num_gpu_blocks" in kv else KV_BLOCKS_UNKNOWN
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
        context_tokens=settings["max_model_len"] or CONTEXT_TOKENS_UNKNOWN,
        asynchronous=True,
    )


def _demand(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Demand:
    arrived_at = _instant(row["arrival_time"], rows[0]["arrival_time"])
    return Demand(arrived_at, prompt_tokens=row["input_toks"], output_tokens=row["output_toks"])


def _answers(rows: Sequence[Mapping[str, Any]]) -> list[Answer]:
    # Arrivals and tokens were stamped by different clocks; the quickest to be queued tells how far they are apart.
    apart = min(each["queued_ts"] - each["arrival_time"] for each in rows[:CLOCK_REQUESTS])
    start = rows[0]["arrival_time"] + apart
    return [Answer(_instant(each["first_token_ts"], start), _instant(each["last_token_ts"], start)) for each in rows]


def _instant(moment_s: float, start_s: float) -> Instant:
    """With the first arrival one second after the beginning of time."""
    return Instant(SECOND + round((moment_s - start_s) * SECOND))
