"""Tests for the simulated engine against recorded vLLM runs on GPUs.

The recorded requests are replayed in the simulated engine. HEADGATE_DATA is the directory that contains the recorded
runs. If it is not set, the tests are skipped, except in CI.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.model.engine_profile import PROFILES, EngineProfile
from headgate.planning.accuracy import latency_stats, mean_error, relative_errors
from headgate.planning.calibration import calibrate
from headgate.planning.engine_replay import replay
from headgate.planning.recorded_run import RecordedRun, read_run

FITTED = 100
"""Number of initial requests used to fit the profile. The statistics for the other requests are predictions."""
DENSE = "RTXPRO6000_Llama-3.1-8B"
EXPERTS = "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507"


@pytest.fixture
def folder() -> Path:
    found = os.environ.get("HEADGATE_DATA")
    if found is None and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA is not set to the directory of recorded runs")
    assert found is not None, "CI must set HEADGATE_DATA to the directory of recorded runs"
    return Path(found) / "vllm_runs"


def errors_of(profile: EngineProfile, run: RecordedRun, *, after: int = 0) -> dict[str, float]:
    """Returns the errors in the 15 statistics over all requests except the first `after`."""
    made = replay(profile, run.requests)
    return relative_errors(
        latency_stats(run.requests[after:], run.token_times[after:]),
        latency_stats(run.requests[after:], made[after:]),
    )


def test_fitted_profile_matches_its_dense_run_within_two_percent(folder: Path) -> None:
    profile = replace(PROFILES["rtxpro6000-llama-8b"], sequences_max=128)

    found = errors_of(profile, read_run(folder, DENSE))

    assert len(found) == 15
    print(f"mean error over 15 statistics: {mean_error(found):.2%}")
    assert mean_error(found) < 0.02


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "error_max"),
    [
        pytest.param(DENSE, 0.02, id="dense"),
        pytest.param("RTXPRO6000_Qwen3-32B", 0.02, id="dense on two GPUs", marks=pytest.mark.nightly),
        pytest.param("RTX4090_Llama-3.1-8B", 0.06, id="short of KV cache"),
        pytest.param(EXPERTS, 0.06, id="experts on two ranks", marks=pytest.mark.nightly),
    ],
)
def test_profile_fitted_to_the_first_third_of_a_run_predicts_the_rest(
    folder: Path, name: str, error_max: float
) -> None:
    run = read_run(folder, name)
    fitted = calibrate(run.profile, run.requests, run.token_times[:FITTED]).profile

    found = errors_of(fitted, run, after=FITTED)

    assert len(run.token_times) == 300
    assert len(found) == 15
    print(f"{name}: mean error over 15 statistics of requests not used for fitting: {mean_error(found):.2%}")
    assert mean_error(found) < error_max


def test_asynchronous_scheduling_explains_the_recorded_time_to_first_token(folder: Path) -> None:
    # While the engine has free slots, a large part of a short time to first token is spent waiting for a step that was
    # already composed.
    run = read_run(folder, DENSE)
    early = replace(run, requests=run.requests[:FITTED], token_times=run.token_times[:FITTED])
    profile = replace(PROFILES["rtxpro6000-llama-8b"], sequences_max=128)

    at_once = errors_of(profile, early)["ttft_p50"]
    ahead = errors_of(replace(profile, async_scheduling=True), early)["ttft_p50"]

    print(f"median TTFT error of the first {FITTED}: {at_once:+.1%}, with asynchronous scheduling {ahead:+.1%}")
    assert at_once < -0.2
    assert abs(ahead) < 0.1
