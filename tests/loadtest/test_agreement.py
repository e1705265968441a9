"""Tests that load test latencies agree with the engine's record of each request."""

import json
import subprocess
from pathlib import Path
from statistics import median

import pytest

from testing.simulated_engines import HEADGATE, simulated_engines

pytestmark = [pytest.mark.endurance]

WITHIN_S = 0.005


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_first_token_and_end_times_agree_to_within_five_milliseconds_at_the_median(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "loadtest.jsonl", tmp_path / "engine.jsonl"
    with simulated_engines(1, "--profile", "h200-llama-8b", "--record", str(theirs)) as [url]:
        command = [*HEADGATE, "loadtest", "--url", url, "--model", "sim", "--rate", "20", "--duration", "15"]
        # On a busy machine the command may fail because the generator fell behind its schedule. The times compared here
        # are measured from when each request was sent, so the exit code is ignored.
        subprocess.run([*command, "--record", str(ours)], check=False, capture_output=True)

    by_number = {int(line["request_id"].split("-")[2]): line for line in read(theirs)}
    firsts, ends = [], []
    for line in read(ours):
        engine = by_number[line["number"]]
        assert line["outcome"] == "completed"
        assert line["output_tokens"] == engine["output_tokens"]
        to_first = (engine["first_token_ns"] - engine["arrived_ns"]) / 1e9
        to_end = (engine["ended_ns"] - engine["arrived_ns"]) / 1e9
        firsts.append(abs(line["first_token_s"] - line["sent_s"] - to_first))
        ends.append(abs(line["end_s"] - line["sent_s"] - to_end))

    assert len(firsts) > 200
    print(f"median difference: first token {1000 * median(firsts):.2f} ms, end {1000 * median(ends):.2f} ms")
    assert median(firsts) < WITHIN_S
    assert median(ends) < WITHIN_S
