"""Requests are not affected when llama.cpp endpoints start, stop and crash."""

from pathlib import Path

import pytest

from testing.gateway import NO_TARGETS, Config
from testing.real_engines import LLAMACPP_START_SECONDS_MAX, MODEL, ROOT, environment_of
from tests.fleets.builders import is_alive
from tests.fleets.scaled import (
    Streams,
    a_scaled_config,
    a_scaled_gateway,
    killed_and_replaced,
    out_and_in_again,
    pids,
    streaming,
)

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(900)]

SLOTS = 2


def a_config_of_llamacpp(folder: Path, *, endpoints: int) -> Config:
    found = environment_of("llamacpp")
    command = [
        *(found / "bin/python", ROOT / "scripts/serve_llamacpp.py", "--model", found / "smollm2.gguf"),
        *("--name", "{model}", "--port", "{port}", "--parallel", SLOTS, "--ctx", 2048, "--batch", 64),
    ]
    return a_scaled_config(
        folder,
        [str(word) for word in command],
        engine="llamacpp",
        served_model=MODEL,
        in_flight_max=SLOTS,
        endpoints=endpoints,
        classes={"interactive": {**NO_TARGETS, "priority_band": 0, "queue_wait_max": "60s"}},
    )


# CI instead scales stub engines (test_processes.py) and engines in Ray (test_ray_fleet.py).
@pytest.mark.nightly
async def test_no_stream_is_truncated_while_scaling_to_three_and_back(tmp_path: Path) -> None:
    config = a_config_of_llamacpp(tmp_path, endpoints=1)
    async with a_scaled_gateway(config, tmp_path, seconds_max=LLAMACPP_START_SECONDS_MAX) as gateway:
        streams = Streams(gateway, streaming(tokens=24))
        async with streams.going(5):
            ran = await out_and_in_again(gateway, streams, seconds_max=LLAMACPP_START_SECONDS_MAX)

    assert set(streams.seen) == {"whole"}, streams.seen
    assert len(ran) == 3
    assert not any(is_alive(pid) for pid in ran), "engine processes are still running"


async def test_killed_endpoint_is_replaced_and_its_unstarted_requests_are_retried(tmp_path: Path) -> None:
    config = a_config_of_llamacpp(tmp_path, endpoints=2)
    async with a_scaled_gateway(config, tmp_path, seconds_max=LLAMACPP_START_SECONDS_MAX) as gateway:
        streams = Streams(gateway, streaming(tokens=24))
        async with streams.going(5):
            await killed_and_replaced(gateway, streams, seconds_max=LLAMACPP_START_SECONDS_MAX)
        assert len(pids(gateway)) == 2

    severed = [what for what in streams.seen if what.startswith("severed")]
    assert sum(streams.seen[what] for what in severed) <= SLOTS, "only streams of the killed engine may be truncated"
    assert set(streams.seen) == {"whole", *severed}, streams.seen
