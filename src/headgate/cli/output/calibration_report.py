"""Text, JSON and profile file of a calibration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headgate.config.engine_profiles import profile_text, speed_figures
from headgate.model.engine_profile import EngineProfile
from headgate.planning.accuracy import relative_errors
from headgate.planning.bursts import SweepResult
from headgate.simulation.report.text_table import render_table

FIGURES: Final = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p50", "e2e_p95")
ERROR_MAX: Final = 0.15
"""Largest error of a prediction that is not reported as a problem."""
_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    url: str
    engine: str
    model: str
    result: SweepResult
    sources: Mapping[str, str]
    """Source of each limit."""
    requests: int
    problems: tuple[str, ...]
    """What makes the measurements unreliable."""
    notes: tuple[str, ...]

    @property
    def profile(self) -> EngineProfile:
        return self.result.calibration.profile

    @property
    def measured(self) -> dict[str, float]:
        return self.result.measured_stats

    @property
    def predicted(self) -> dict[str, float]:
        return self.result.predicted_stats

    @property
    def errors(self) -> dict[str, float]:
        found = relative_errors(self.measured, self.predicted)
        return {name: found[name] for name in FIGURES}

    @property
    def repeat_errors(self) -> dict[str, float]:
        """Difference between the two repetitions of the unseen load."""
        return {name: self.result.repeat_errors[name] for name in FIGURES}

    @property
    def worst_error(self) -> float:
        return max(abs(each) for each in self.errors.values())

    def warnings(self) -> list[str]:
        """Everything that makes the profile doubtful."""
        return [*self.problems, *([self._error_warning()] if self.worst_error > ERROR_MAX else [])]

    def _error_warning(self) -> str:
        errors, repeats = self.errors, self.repeat_errors
        worst, varied = (max(each, key=lambda name: abs(each[name])) for each in (errors, repeats))
        wrong = f"the prediction of the unseen load is wrong by up to {self.worst_error:.0%} ({_label(worst)})"
        if abs(repeats[varied]) >= self.worst_error:
            return (
                f"{wrong}, but the same load sent twice differs by up to {abs(repeats[varied]):.0%} "
                f"({_label(varied)}), so the engine's speed varies; stop other work on its machine and repeat the "
                "calibration with a higher --seconds"
            )
        return f"{wrong}; repeat the calibration with a higher --seconds on an idle engine, and check its limits above"


def render(report: CalibrationReport, file: str | None, width: int) -> str:
    profile, calibration = report.profile, report.result.calibration
    limits = "  ".join(f"{name} {_limit(profile, name)} ({source})" for name, source in report.sources.items())
    blocks = [
        f"{report.engine} at {report.url}, model {report.model}: {report.requests} requests",
        "\n".join(f"  {name:15} {value}" for name, value in speed_figures(profile).items())
        + f"\n  {'overhead':15} {calibration.overhead_ns / 1e6:.2f}ms per request outside the engine's steps",
        limits,
        "\n".join(
            [
                f"prediction of an unseen mixed load of {len(report.result.unseen_requests)} requests:",
                *render_table(_table(report), width),
            ]
        ),
        *([f"note: {note}" for note in report.notes]),
        "for headgate.yaml:\n\n" + speed_snippet(profile, file),
    ]
    return "\n\n".join(blocks)


def _table(report: CalibrationReport) -> list[list[str]]:
    measured, predicted, errors, repeats = report.measured, report.predicted, report.errors, report.repeat_errors
    figures = [
        [_label(each), _ms(measured[each]), _ms(predicted[each]), f"{errors[each]:+.1%}", f"{repeats[each]:+.1%}"]
        for each in FIGURES
    ]
    return [["latency", "measured", "predicted", "error", "same load twice"], *figures]


def speed_snippet(profile: EngineProfile, file: str | None) -> str:
    """The settings of a pool of such engines."""
    speed = (
        {"profile": file} if file is not None else {**speed_figures(profile), "chunk_tokens": str(profile.chunk_tokens)}
    )
    lines = ["pools:", "  NAME:", "    speed:", *(f"      {name}: {value}" for name, value in speed.items())]
    return "\n".join([*lines, f"    kv_tokens: {profile.kv_blocks * profile.block_tokens}"])


def file_text(report: CalibrationReport, day: str) -> str:
    """The profile file, with the evidence in its comments."""
    return profile_text(report.profile, list(_file_notes(report, day)))


def _file_notes(report: CalibrationReport, day: str) -> Iterator[str]:
    measured, predicted = report.measured, report.predicted
    yield f"Measured with `headgate calibrate` on {day}, with {report.requests} requests."
    yield f"Engine: {report.engine}, model {report.model}."
    overhead_ms = report.result.calibration.overhead_ns / 1e6
    yield f"Latencies include {overhead_ms:.2f} ms per request outside the engine's steps."
    yield f"Prediction of an unseen mixed load of {len(report.result.unseen_requests)} requests:"
    for name, error in report.errors.items():
        yield f"  {_label(name)}: measured {_ms(measured[name])}, predicted {_ms(predicted[name])}, error {error:+.1%}"
    assumed = [name for name, source in report.sources.items() if source == "assumed"]
    if assumed:
        yield f"Assumed, because the engine does not report them: {', '.join(assumed)}."
    for warning in report.warnings():
        yield f"Warning: {warning}."


def report_json(report: CalibrationReport, file: str | None) -> dict[str, object]:
    profile = report.profile
    return {
        "url": report.url,
        "engine": report.engine,
        "model": report.model,
        "file": file,
        "requests": report.requests,
        "profile": {
            "name": profile.name,
            "step_ps": profile.step_ps,
            "prefill_token_ps": profile.prefill_token_ps,
            "decode_sequence_ps": profile.decode_sequence_ps,
            "kv_token_ps": profile.kv_token_ps,
            "attention_ps": profile.attention_ps,
            **{name: _limit(profile, name) for name in report.sources},
            "async_scheduling": profile.async_scheduling,
        },
        "sources": dict(report.sources),
        "overhead_ms": round(report.result.calibration.overhead_ns / 1e6, 3),
        "unseen": {
            "requests": len(report.result.unseen_requests),
            "measured_s": {name: round(report.measured[name], 6) for name in FIGURES},
            "predicted_s": {name: round(report.predicted[name], 6) for name in FIGURES},
            "errors": {name: round(each, 4) for name, each in report.errors.items()},
            "repeat_errors": {name: round(each, 4) for name, each in report.repeat_errors.items()},
            "worst_error": round(report.worst_error, 4),
        },
        "notes": list(report.notes),
        "warnings": report.warnings(),
    }


def _limit(profile: EngineProfile, name: str) -> int:
    return profile.kv_blocks * profile.block_tokens if name == "kv_tokens" else getattr(profile, name)


def _label(name: str) -> str:
    latency, _, percentile = name.partition("_")
    return f"{latency.upper()} {percentile}"


def _ms(seconds: float) -> str:
    return f"{seconds * _MS_PER_S:.1f} ms"
