"""A fleet starts, replaces and stops vLLM, which has child processes."""

import os
import signal
from pathlib import Path

import pytest

from testing.real_engines import MODEL, VLLM_START_SECONDS_MAX, environment_of, model_folder, vllm_variables
from tests.fleets.builders import is_alive, until_dead
from tests.fleets.scaled import Streams, a_scaled_config, a_scaled_gateway, pids, streaming

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]


def group_of(leader: int) -> list[int]:
    """Return the running processes in a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


# CI replaces a killed llama.cpp instead (test_llamacpp.py).
@pytest.mark.nightly
async def test_killed_vllm_endpoint_is_replaced_and_all_its_processes_exit(tmp_path: Path) -> None:
    found = environment_of("vllm")
    with model_folder(found / MODEL, tiny=True) as model:
        command = [
            *(found / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"),
            *("--port", "{port}", "--model", model, "--served-model-name", "{model}", "--load-format", "dummy"),
            *("--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "4", "--enforce-eager"),
        ]
        config = a_scaled_config(
            tmp_path,
            [str(word) for word in command],
            served_model=MODEL,
            in_flight_max=4,
            fleet={"environment": vllm_variables(found)},
            classes={"interactive": {"priority_band": 0, "queue_wait_max": "5m"}},
        )
        async with a_scaled_gateway(config, tmp_path, seconds_max=VLLM_START_SECONDS_MAX) as gateway:
            streams = Streams(gateway, streaming(tokens=16))
            async with streams.going(2):
                await streams.until_whole(4)
                [leader] = pids(gateway).values()
                family = group_of(leader)
                os.kill(leader, signal.SIGKILL)
                for pid in family:
                    await until_dead(pid)
                await gateway.wait_until_ready(1, seconds_max=VLLM_START_SECONDS_MAX)
                await streams.until_whole(4, seconds_max=60)
            [replaced] = pids(gateway).values()
            last = group_of(replaced)

    assert len(family) > 1, "vLLM must have a child process"
    assert replaced != leader
    assert sum(count for what, count in streams.seen.items() if what.startswith("severed")) <= 2, streams.seen
    # The replacement is not listed until the last old process has exited; requests are rejected until then.
    others = [what for what in streams.seen if what != "whole" and not what.startswith("severed")]
    assert all(what.startswith(("refused: 502", "refused: 503")) for what in others), streams.seen
    assert not any(is_alive(pid) for pid in last)
