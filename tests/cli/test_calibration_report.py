"""The report of a calibration: errors of the prediction, and how much the same load differs from itself."""

from headgate.cli.output.calibration_report import FIGURES, CalibrationReport, render, report_json
from headgate.model.engine_profile import TINY
from headgate.model.units import MILLISECOND, SECOND, Instant
from headgate.planning.bursts import MeasuredBurst, SweepResult
from headgate.planning.calibration import Calibration
from headgate.planning.engine_replay import RunRequest, TokenTimes

REQUESTS = tuple(RunRequest(Instant(number * SECOND), 100, 11) for number in range(20))


def times(ms: int) -> tuple[TokenTimes, ...]:
    """TTFT and time per token of the same length."""
    step = ms * MILLISECOND
    return tuple(TokenTimes(Instant(each.arrived_at + step), Instant(each.arrived_at + 11 * step)) for each in REQUESTS)


def report(*, first_ms: int, second_ms: int, predicted_ms: int) -> CalibrationReport:
    unseen = MeasuredBurst(REQUESTS, times(first_ms)), MeasuredBurst(REQUESTS, times(second_ms))
    return CalibrationReport(
        url="http://engine",
        engine="vllm",
        model="m",
        result=SweepResult(Calibration(TINY, 0.0), unseen, (times(predicted_ms), times(predicted_ms))),
        sources={"kv_tokens": "reported"},
        requests=100,
        problems=(),
        notes=(),
    )


def test_errors_compare_the_prediction_with_both_repetitions() -> None:
    found = report(first_ms=10, second_ms=20, predicted_ms=15)

    assert found.errors["ttft_p50"] == 0.0
    assert found.errors["ttft_p95"] == -0.25
    assert found.repeat_errors == dict.fromkeys(FIGURES, -0.5)
    page = report_json(found, None)
    assert isinstance(page["unseen"], dict)
    assert page["unseen"]["requests"] == 40
    assert page["unseen"]["repeat_errors"] == dict.fromkeys(FIGURES, -0.5)
    assert "same load twice" in render(found, None, 100)


def test_accurate_prediction_gives_no_warning() -> None:
    assert report(first_ms=10, second_ms=11, predicted_ms=10).warnings() == []


def test_warning_blames_the_limits_if_the_engine_repeats_its_latencies() -> None:
    [warning] = report(first_ms=10, second_ms=10, predicted_ms=14).warnings()

    assert warning.startswith("the prediction of the unseen load is wrong by up to 40%")
    assert warning.endswith("and check its limits above")


def test_warning_blames_the_machine_if_the_same_load_differs_more_than_the_prediction() -> None:
    [warning] = report(first_ms=10, second_ms=20, predicted_ms=14).warnings()

    assert warning.startswith("the prediction of the unseen load is wrong by up to 30%")
    assert "the same load sent twice differs by up to 50%" in warning
