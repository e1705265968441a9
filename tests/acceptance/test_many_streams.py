"""One gateway process serves a thousand concurrent streams to completion without memory growth."""

import time
from pathlib import Path

import pytest

from testing.gateway import a_config, gateway_process, urls_of
from testing.simulated_engines import loadtest_result, resident_mib, simulated_engines, start_loadtest, write_trace

STREAMS, TOKENS, ENGINES = 1_000, 600, 4
RAMP_S = 5.0
# Slows the profile down to about ten tokens per second for each of 250 streams.
SPEED = "0.28"


@pytest.mark.process
def test_two_hundred_concurrent_streams_complete(tmp_path: Path) -> None:
    trace, streams, tokens = tmp_path / "trace.csv", 200, 40
    write_trace(trace, [(number / streams, 50, tokens) for number in range(streams)])
    with simulated_engines(ENGINES, "--profile", "h200-llama-8b") as urls:
        config = a_config(*urls, served_model="sim", in_flight_max=streams // ENGINES, model="sim")
        with gateway_process(config, tmp_path):
            words = ("--model", "sim", "--trace", str(trace), "--ignore-eos", "--retries", "0")
            total = loadtest_result(start_loadtest(urls_of(config)[0], *words), seconds_max=200)["total"]

    assert total["completed"] == streams, total
    assert total["output_tokens"] == streams * tokens, total


@pytest.mark.endurance
@pytest.mark.timeout(300)
def test_thousand_concurrent_streams_complete_with_stable_memory(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    write_trace(trace, [(RAMP_S * number / STREAMS, 50, TOKENS) for number in range(STREAMS)])
    arguments = ("--profile", "rtxpro6000-llama-8b", "--speed-up", SPEED)
    with simulated_engines(ENGINES, *arguments) as urls:
        config = a_config(*urls, served_model="sim", in_flight_max=STREAMS // ENGINES, model="sim")
        with gateway_process(config, tmp_path) as gateway:
            loadtest = start_loadtest(
                urls_of(config)[0], "--model", "sim", "--trace", str(trace), "--ignore-eos", "--retries", "0"
            )
            resident: list[tuple[float, float]] = []
            started = time.monotonic()
            while loadtest.poll() is None and time.monotonic() - started < 200:
                time.sleep(1)
                resident.append((time.monotonic() - started, resident_mib(gateway.pid)))
            result = loadtest_result(loadtest, seconds_max=5)

    total = result["total"]
    assert total["completed"] == STREAMS, total
    assert total["output_tokens"] == STREAMS * TOKENS, total
    pace = 1 / total["tpot_s"]["p50"]
    assert 5 < pace < 13, f"{pace:.1f} tokens/s per stream"

    settled = [mib for at_s, mib in resident if at_s > 20 and at_s < result["elapsed_s"]]
    assert len(settled) > 20
    print(
        f"resident memory: {settled[0]:.1f} MiB after 20 s, at most {max(settled):.1f} MiB;"
        f" {pace:.1f} tokens/s per stream"
    )
    assert max(settled) - settled[0] < 0.05 * settled[0], settled
