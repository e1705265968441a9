"""Tables, targets and results page for the autoscaler comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.policy.experiment import Threshold, percent, table, thresholds_table
from bench.scaling.chart import AIM, draw_cold_starts, draw_curves, usual
from bench.scaling.compare import KINDS, OURS, PROFILE, TRACES, Comparison
from bench.scaling.fluid import DRAIN_S
from bench.scaling.model_check import ModelComparison
from bench.scaling.oracle import SLO
from bench.scaling.stability import LOAD_PERCENT, FleetRange
from bench.scaling.wrong_profile import RIGHT, CorrectedRun

WRONG_OVER_ORACLE_MOST = 1.2
"""Target with a profile that is off by 30 %. The target with a correct profile is `AIM`."""
RESTING_RANGE_MOST = 4
ATTAINMENT_OFF_MOST, SERVED_OFF_MOST = 0.02, 0.05


def figures(comparison: Comparison, corrected: Sequence[CorrectedRun]) -> dict[str, Any]:
    """Figures for the JSON object that the command prints last."""
    best = comparison.best
    return {
        "wrong_profile_attainment": round(min(each.attainment for each in corrected), 5),
        "wrong_profile_over_oracle": round(max(each.over_oracle for each in corrected), 4),
        "attainment": round(comparison.ours.attainment, 5),
        "gpu_hours_over_oracle": round(comparison.over_oracle(comparison.ours.gpu_hours), 4),
        "best_baseline_over_oracle": None if best is None else round(comparison.over_oracle(best), 4),
    }


def compared_table(comparisons: Sequence[Comparison]) -> str:
    """Table with one row per trace and cold start."""
    others = [name for name in KINDS if name != OURS]
    header = ("trace", "cold start", "load", "attainment", OURS, *others, "trading oracle", "oracle, GPU-hours")
    rows = [
        (
            each.trace,
            f"{each.cold_start_s} s",
            f"{each.ours.target:.0f} %",
            _precise(each.ours.attainment),
            f"**{each.over_oracle(each.ours.gpu_hours):.3f}**",
            *(_over(each, each.hours_at_our_attainment[name]) for name in others),
            _over(each, each.trading_hours),
            f"{each.oracle.gpu_hours:.0f} ({_precise(each.oracle.attainment)})",
        )
        for each in comparisons
    ]
    return table(header, rows)


def curves_table(comparison: Comparison) -> str:
    rows = [
        (name, f"{each.target:g}", _precise(each.attainment), _over(comparison, each.gpu_hours), each.starts)
        for name, points in comparison.curves.items()
        for each in points
    ]
    return table(("autoscaler", "target", "attainment", "GPU-hours relative to oracle", "starts"), rows)


def corrected_table(corrected: Sequence[CorrectedRun]) -> str:
    header = ("trace", "predicted work", "attainment", "GPU-hours relative to oracle", "final factor")
    rows = [
        (
            each.trace,
            f"{each.work_percent} %",
            _precise(each.attainment),
            f"{each.over_oracle:.3f}",
            f"{each.factor:.2f}",
        )
        for each in corrected
    ]
    return table(header, rows)


def corrected_bars(corrected: Sequence[CorrectedRun]) -> list[Threshold]:
    bars: list[Threshold] = []
    for each in corrected:
        name = f"{each.trace} with predicted work at {each.work_percent} % of actual work"
        most = AIM if each.work_percent == RIGHT else WRONG_OVER_ORACLE_MOST
        bars.append(Threshold(f"{name}: attainment", each.attainment, least=SLO))
        bars.append(Threshold(f"{name}: ratio of GPU-hours to the oracle", each.over_oracle, most=most))
    return bars


def hours_table(hours: Sequence[ModelComparison]) -> str:
    header = (
        "trace",
        "requests",
        "fleet",
        "load",
        "attainment",
        "attainment (fluid)",
        "served",
        "served (fluid)",
        "running",
        "running (fluid)",
    )
    rows = [
        (
            each.hour.trace,
            each.requests,
            _fleet(each),
            percent(each.load),
            percent(each.by_request.attainment),
            percent(each.fluid.attainment),
            f"{each.by_request.served:.2f}",
            f"{each.fluid.served:.2f}",
            f"{each.by_request.running:.0f}",
            f"{each.fluid.running:.0f}",
        )
        for each in hours
    ]
    return table(header, rows)


def _fleet(both: ModelComparison) -> str:
    hour = both.hour
    joins = "" if hour.joins_s is None else f" plus 1 ordered at {hour.joins_s} s,"
    return f"{hour.endpoints}{joins} for {hour.length_s} s"


def _over(comparison: Comparison, gpu_hours: float | None) -> str:
    return "not reached" if gpu_hours is None else f"{comparison.over_oracle(gpu_hours):.3f}"


def _precise(share: float) -> str:
    return f"{100 * share:.2f} %"


def required_thresholds(
    comparisons: Sequence[Comparison],
    hours: Sequence[ModelComparison],
    rests: Mapping[str, FleetRange],
    corrected: Sequence[CorrectedRun],
) -> list[Threshold]:
    bars = [
        Threshold(
            f"{each.trace} with a cold start of {each.cold_start_s} s: ratio of GPU-hours to the best other autoscaler",
            each.ours.gpu_hours / each.best,
            most=1.0,
        )
        for each in comparisons
        if each.best is not None
    ]
    bars += [
        Threshold(f"{trace}: variation in fleet size at constant load", each.range, most=RESTING_RANGE_MOST)
        for trace, each in rests.items()
    ]
    for each in hours:
        name = f"{each.hour.trace} with a fleet of {_fleet(each)}"
        bars.append(Threshold(f"{name}: error in attainment", abs(each.attainment_off), most=ATTAINMENT_OFF_MOST))
        bars.append(Threshold(f"{name}: error in served engine time", abs(each.served_off), most=SERVED_OFF_MOST))
    return bars + corrected_bars(corrected)


def goal_thresholds(comparisons: Sequence[Comparison]) -> list[Threshold]:
    bars: list[Threshold] = []
    for each in usual(comparisons):
        name = f"{each.trace} with a cold start of {each.cold_start_s} s"
        bars.append(Threshold(f"{name}: attainment", each.ours.attainment, least=SLO))
        over = each.over_oracle(each.ours.gpu_hours)
        bars.append(Threshold(f"{name}: ratio of GPU-hours to the oracle", over, most=AIM))
    return bars


def write(
    folder: Path,
    comparisons: Sequence[Comparison],
    hours: Sequence[ModelComparison],
    rests: Mapping[str, FleetRange],
    corrected: Sequence[CorrectedRun],
    *,
    command: str,
) -> None:
    draw_curves(folder / "autoscaling.svg", usual(comparisons))
    draw_cold_starts(folder / "autoscaling-cold-start.svg", comparisons)
    parts = [
        "# E6: autoscaling",
        _about(),
        f"```bash\n{command}\n```",
        "![GPU-hours relative to the oracle, by attainment](autoscaling.svg)",
        "![GPU-hours relative to the oracle, by cold start](autoscaling-cold-start.svg)",
        "## GPU-hours relative to the oracle at equal attainment",
        compared_table(comparisons),
        thresholds_table(required_thresholds(comparisons, hours, rests, corrected)),
        "Optional targets:",
        thresholds_table(goal_thresholds(comparisons)),
        "## Curves at the default cold start",
        *(f"{each.trace}\n\n{curves_table(each)}" for each in usual(comparisons)),
        "## Wrong engine profile",
        _CORRECTED,
        corrected_table(corrected),
        "## Constant load",
        _at_rest(rests),
        "## Fluid model and request-level simulation",
        _CHECKED,
        hours_table(hours),
    ]
    (folder / "autoscaling.md").write_text("\n\n".join(parts) + "\n")


_CORRECTED = (
    "In these runs, the autoscaler uses the measured attainment to correct the desired replica count "
    "(`docs/concepts/scaling.md`). The results above were measured without this correction. Predicted work is a "
    "percentage of the actual work and comes from a profile whose times are all wrong by the same factor. The runs use "
    "100 % load, an objective of 99 % and a cold start of 120 s."
)
_CHECKED = (
    "The table compares the fluid model with runs of the virtual host, which simulates each request, at the same "
    "rates. Served work is in engine-seconds per second. Running is the mean number of requests on endpoints."
)


def _about() -> str:
    kept = ", ".join(f"{trace} by {keep:g}" for trace, keep in TRACES.items())
    targets = "; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items())
    return (
        "The experiment replays fourteen recorded days of ServeGen's request rates and client lengths on endpoints "
        f"with the profile {PROFILE.name}. The rates are scaled ({kept}). The results come from a fluid model with "
        "steps of ten seconds (`bench/scaling/fluid.py`). All autoscalers run behind the same gateway, which rejects "
        "requests that cannot get their first token within 2 s. GPU-hours include all endpoint-hours that are paid "
        f"for: starting, serving and {DRAIN_S} s of draining. Each autoscaler runs with several values of its own "
        f"target ({targets}). The autoscalers are compared at the attainment of the cheapest Headgate run that reaches "
        f"{percent(SLO)}. With a utilisation target above 0.909, the HPA never scales up, because of its tolerance. "
        f"The oracle knows all rates in advance and misses at most {percent(1 - SLO)} of the requests in any step. The "
        "trading oracle may choose which requests to miss (`bench/scaling/oracle.py`)."
    )


def _at_rest(rests: Mapping[str, FleetRange]) -> str:
    told = "; ".join(
        f"{trace}: {each.least} to {each.most} endpoints, {each.rises} started" for trace, each in rests.items()
    )
    return (
        "This run lasts one day with the demand and random variation of the median window, at "
        f"{LOAD_PERCENT} % load and with a cold start of 120 s. The fleet size in the second half of the day is as "
        f"follows: {told}."
    )
