"""Does the simulated engine behave as a real one did, request by request?

Records of vLLM runs on GPUs, found through HEADGATE_DATA, are played into the loop. Where the data is not at hand the
tests are skipped, but never in CI.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.model.engine_profile import PROFILES, EngineProfile
from headgate.planning.accuracy import errors, figures, mean_error
from headgate.planning.answers import simulated
from headgate.planning.calibrate import calibrate
from headgate.planning.recorded_run import RecordedRun, read_run

FITTED = 100
"""So many of the first requests tell the parameters; what is said of the others is a prediction."""
DENSE = "RTXPRO6000_Llama-3.1-8B"
EXPERTS = "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507"


@pytest.fixture
def folder() -> Path:
    found = os.environ.get("HEADGATE_DATA")
    if found is None and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA does not name a folder with recorded runs")
    assert found is not None, "CI must name the folder with recorded runs in HEADGATE_DATA"
    return Path(found) / "vllm_runs"


def errors_of(profile: EngineProfile, run: RecordedRun, *, after: int = 0) -> dict[str, float]:
    """Of the fifteen figures, over all requests but the first."""
    made = simulated(profile, run.demands)
    return errors(
        figures(run.demands[after:], run.answers[after:]),
        figures(run.demands[after:], made[after:]),
    )


def test_a_dense_run_is_met_within_two_percent_by_the_profile_that_was_fitted_to_it(folder: Path) -> None:
    profile = replace(PROFILES["rtxpro6000-llama-8b"], sequences_max=128)

    found = errors_of(profile, read_run(folder, DENSE))

    assert len(found) == 15
    print(f"mean error over 15 figures: {mean_error(found):.2%}")
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
def test_a_third_of_a_run_tells_how_the_rest_of_it_went(folder: Path, name: str, error_max: float) -> None:
    run = read_run(folder, name)
    fitted = calibrate(run.profile, run.demands, run.answers[:FITTED]).profile

    found = errors_of(fitted, run, after=FITTED)

    assert len(run.answers) == 300
    assert len(found) == 15
    print(f"{name}: mean error over 15 figures of requests that were not fitted: {mean_error(found):.2%}")
    assert mean_error(found) < error_max


def test_a_step_of_vllm_is_composed_before_the_one_before_it_has_ended(folder: Path) -> None:
    # While the engine has places to spare, waiting for a step that was composed too early is a good part of a short
    # time to first token.
    run = read_run(folder, DENSE)
    early = replace(run, demands=run.demands[:FITTED], answers=run.answers[:FITTED])
    profile = replace(PROFILES["rtxpro6000-llama-8b"], sequences_max=128)

    at_once = errors_of(profile, early)["ttft_p50"]
    ahead = errors_of(replace(profile, asynchronous=True), early)["ttft_p50"]

    print(f"median time to first token of the first {FITTED}: {at_once:+.1%}, composed ahead {ahead:+.1%}")
    assert at_once < -0.2
    assert abs(ahead) < 0.1
