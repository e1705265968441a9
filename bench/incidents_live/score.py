"""Score the verdicts of one incident, second by second."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HEALTHY = "healthy"
RIGHT_S_MAX, CLEARED_S_MAX, WRONG_SHARE_MAX = 30.0, 30.0, 0.05
"""Maximum seconds to the first correct verdict and from recovery to healthy, and maximum share of wrong seconds."""
NO_VERDICT = ("no answer", "no verdict")


@dataclass(frozen=True, slots=True)
class Sample:
    """A verdict and its time, in seconds since the start of the incident."""

    at_s: float
    incident: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    seconds: int
    """Number of samples during the incident, one per second."""
    first_right_s: float | None
    wrong_s: int
    """Seconds during which the verdict was a different incident."""
    healthy_s: int
    """Seconds during which the verdict was healthy after the first correct verdict."""
    cleared_s: float | None
    """Seconds from recovery to the last unhealthy verdict. None if the final verdict was not healthy."""
    alarms: int
    """Number of false alarms before the incident or in a healthy run."""
    told: tuple[str, ...] = field(default=())
    healthy_run_s: float | None = None
    """Length of a healthy run, in seconds. None for an incident."""


def score_run(name: str, right: Sequence[str], samples: Sequence[Sample], *, ended_s: float) -> Score:
    """Score the samples of one run. Recovery was complete at `ended_s`."""
    if not right:
        false = tuple(dict.fromkeys(each.incident for each in samples if each.incident not in (HEALTHY, *NO_VERDICT)))
        lasted_s = samples[-1].at_s - samples[0].at_s if samples else 0.0
        return Score(name, 0, None, 0, 0, None, _alarms(samples), false, lasted_s)
    before = [each for each in samples if each.at_s < 0]
    during = [each for each in samples if 0 <= each.at_s < ended_s]
    later = [each for each in samples if each.at_s >= ended_s]
    first = next((each.at_s for each in during if each.incident in right), None)
    wrong = [each for each in during if each.incident not in (*right, HEALTHY, *NO_VERDICT)]
    well = [each for each in during if each.incident == HEALTHY and first is not None and each.at_s > first]
    return Score(
        name,
        len(during),
        first,
        len(wrong),
        len(well),
        _cleared(later, ended_s),
        _alarms(before),
        tuple(dict.fromkeys(each.incident for each in during)),
    )


def _alarms(samples: Sequence[Sample]) -> int:
    """Number of transitions from healthy to another verdict. Every run starts as healthy."""
    count, before = 0, HEALTHY
    for each in samples:
        if each.incident in NO_VERDICT:
            continue
        count += each.incident != HEALTHY and before == HEALTHY
        before = each.incident
    return count


def _cleared(later: Sequence[Sample], ended_s: float) -> float | None:
    if not later or later[-1].incident != HEALTHY:
        return None
    last = max((each.at_s for each in later if each.incident != HEALTHY), default=ended_s)
    return last - ended_s


def figures_of(results: Sequence[Score], clear_s_max: float) -> dict[str, Any]:
    """Totals over all runs. A run without a correct verdict contributes its full length.

    A run that does not become healthy again contributes `clear_s_max`.
    """
    incidents = [each for each in results if each.seconds]
    first = sorted(float(each.seconds) if each.first_right_s is None else each.first_right_s for each in incidents)
    cleared = [clear_s_max if each.cleared_s is None else each.cleared_s for each in incidents]
    seconds = sum(each.seconds for each in incidents)
    wrong_s, healthy_s = sum(each.wrong_s for each in incidents), sum(each.healthy_s for each in incidents)
    return {
        "incidents": len(incidents),
        "first_right_s_p95": round(first[min(len(first) - 1, len(first) * 95 // 100)], 1) if first else 0.0,
        "first_right_s_worst": round(first[-1], 1) if first else 0.0,
        "incident_s": seconds,
        "wrong_cause_s": wrong_s,
        "false_healthy_s": healthy_s,
        "wrong_share": round((wrong_s + healthy_s) / max(1, seconds), 3),
        "cleared_s_worst": round(max(cleared, default=0.0), 1),
        "false_alarms": sum(each.alarms for each in results),
        "false_alarms_by_shape": {each.name: each.alarms for each in results if each.healthy_run_s is not None},
        "healthy_minutes": round(sum(each.healthy_run_s or 0.0 for each in results) / 60, 1),
    }


def misses_thresholds(figures: dict[str, Any]) -> bool:
    return (
        figures["first_right_s_worst"] > RIGHT_S_MAX
        or figures["wrong_share"] > WRONG_SHARE_MAX
        or figures["cleared_s_worst"] > CLEARED_S_MAX
        or figures["false_alarms"] > 0
    )
