"""What is said of the comparison: tables, bars, and the page of results?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.policy.experiment import Bar, percent, table
from bench.scaling.chart import AIM, draw_cold_starts, draw_curves, usual
from bench.scaling.compare import KINDS, OURS, PROFILE, TRACES, Comparison
from bench.scaling.fluid import DRAIN_S
from bench.scaling.hour import Both
from bench.scaling.oracle import SLO
from bench.scaling.steady import LOAD_PERCENT, Rest
from bench.scaling.wrong import RIGHT, Corrected

WRONG_OVER_ORACLE_MOST = 1.2
"""With a profile that is wrong by 30 %; with a right one `AIM` is."""
RESTING_RANGE_MOST = 4
ATTAINMENT_OFF_MOST, SERVED_OFF_MOST = 0.02, 0.05


def figures(comparison: Comparison, corrected: Sequence[Corrected]) -> dict[str, Any]:
    """The last line of the command."""
    best = comparison.best
    return {
        "wrong_profile_attainment": round(min(each.attainment for each in corrected), 5),
        "wrong_profile_over_oracle": round(max(each.over_oracle for each in corrected), 4),
        "attainment": round(comparison.ours.attainment, 5),
        "gpu_hours_over_oracle": round(comparison.over_oracle(comparison.ours.gpu_hours), 4),
        "best_baseline_over_oracle": None if best is None else round(comparison.over_oracle(best), 4),
    }


def compared_table(comparisons: Sequence[Comparison]) -> str:
    """One row for each trace and cold start."""
    others = [name for name in KINDS if name != OURS]
    header = ("trace", "cold start", "load", "attainment", OURS, *others, "oracle that trades", "oracle, GPU-hours")
    rows = [
        (
            each.trace,
            f"{each.cold_start_s} s",
            f"{each.ours.target:.0f} %",
            _precise(each.ours.attainment),
            f"**{each.over_oracle(each.ours.gpu_hours):.3f}**",
            *(_over(each, each.at_ours[name]) for name in others),
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
    return table(("who scales", "target", "attainment", "GPU-hours over the oracle's", "starts"), rows)


def corrected_table(corrected: Sequence[Corrected]) -> str:
    header = ("trace", "predicted work", "attainment", "GPU-hours over the oracle's", "factor in the end")
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


def corrected_bars(corrected: Sequence[Corrected]) -> list[Bar]:
    bars: list[Bar] = []
    for each in corrected:
        name = f"{each.trace}, predicted work {each.work_percent} % of the real one"
        most = AIM if each.work_percent == RIGHT else WRONG_OVER_ORACLE_MOST
        bars.append(Bar(f"{name}: attainment", each.attainment, least=SLO))
        bars.append(Bar(f"{name}: GPU-hours over the oracle's", each.over_oracle, most=most))
    return bars


def hours_table(hours: Sequence[Both]) -> str:
    header = ("trace", "requests", "fleet", "load", "attainment", "fluid", "served", "fluid ", "running", "fluid  ")
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


def _fleet(both: Both) -> str:
    hour = both.hour
    joins = "" if hour.joins_s is None else f", one more ordered at {hour.joins_s} s"
    return f"{hour.endpoints}{joins}; {hour.length_s} s"


def _over(comparison: Comparison, gpu_hours: float | None) -> str:
    return "not reached" if gpu_hours is None else f"{comparison.over_oracle(gpu_hours):.3f}"


def _precise(share: float) -> str:
    return f"{100 * share:.2f} %"


def must(
    comparisons: Sequence[Comparison],
    hours: Sequence[Both],
    rests: Mapping[str, Rest],
    corrected: Sequence[Corrected],
) -> list[Bar]:
    bars = [
        Bar(
            f"{each.trace}, cold start {each.cold_start_s} s: our GPU-hours over the best of the others'",
            each.ours.gpu_hours / each.best,
            most=1.0,
        )
        for each in comparisons
        if each.best is not None
    ]
    bars += [
        Bar(f"{trace}: endpoints between the least and the most at constant load", each.range, most=RESTING_RANGE_MOST)
        for trace, each in rests.items()
    ]
    for each in hours:
        name = f"{each.hour.trace}, fleet of {_fleet(each)}"
        bars.append(Bar(f"{name}: attainment off", abs(each.attainment_off), most=ATTAINMENT_OFF_MOST))
        bars.append(Bar(f"{name}: served engine time off", abs(each.served_off), most=SERVED_OFF_MOST))
    return bars + corrected_bars(corrected)


def aims(comparisons: Sequence[Comparison]) -> list[Bar]:
    bars: list[Bar] = []
    for each in usual(comparisons):
        name = f"{each.trace}, cold start {each.cold_start_s} s"
        bars.append(Bar(f"{name}: attainment", each.ours.attainment, least=SLO))
        over = each.over_oracle(each.ours.gpu_hours)
        bars.append(Bar(f"{name}: GPU-hours over the oracle's", over, most=AIM))
    return bars


def write(
    folder: Path,
    comparisons: Sequence[Comparison],
    hours: Sequence[Both],
    rests: Mapping[str, Rest],
    corrected: Sequence[Corrected],
    *,
    command: str,
) -> None:
    draw_curves(folder / "autoscaling.svg", usual(comparisons))
    draw_cold_starts(folder / "autoscaling-cold-start.svg", comparisons)
    parts = [
        "# E6: autoscaling",
        _about(),
        f"```bash\n{command}\n```",
        "![GPU-hours over the oracle's against attainment](autoscaling.svg)",
        "![GPU-hours over the oracle's by cold start](autoscaling-cold-start.svg)",
        "## At equal attainment: GPU-hours over the oracle's",
        compared_table(comparisons),
        "\n".join(f"- {bar}" for bar in must(comparisons, hours, rests, corrected)),
        "\n".join(f"- aim {bar}" for bar in aims(comparisons)),
        "## The curves at the usual cold start",
        *(f"{each.trace}\n\n{curves_table(each)}" for each in usual(comparisons)),
        "## With a wrong profile",
        _CORRECTED,
        corrected_table(corrected),
        "## At constant load",
        _at_rest(rests),
        "## The model against request level",
        _CHECKED,
        hours_table(hours),
    ]
    (folder / "autoscaling.md").write_text("\n\n".join(parts) + "\n")


_CORRECTED = (
    "The measured attainment corrects the want (`docs/concepts/scaling.md`); everything above is without it. Predicted "
    "work is that of a profile whose times are all wrong by the same factor, in percent of the real work, at 100 % "
    "load, an objective of 99 % and a cold start of 120 s."
)
_CHECKED = (
    "The same rates through the virtual host, request by request; served is in engine-seconds a second, running in "
    "requests."
)


def _about() -> str:
    kept = ", ".join(f"{trace} by {keep:g}" for trace, keep in TRACES.items())
    targets = "; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items())
    return (
        f"Fourteen real days of ServeGen's rates, with each client's own lengths, on endpoints of {PROFILE.name}; "
        f"rates are multiplied ({kept}). A fluid model at steps of ten seconds (its formula is in "
        "`bench/scaling/fluid.py`). All stand behind the same gateway, which refuses what cannot make its first token "
        f"in 2 s. GPU-hours are all endpoint-hours paid for: starting, serving and {DRAIN_S} s of draining. Everybody "
        f"is swept over its own target ({targets}); compared is what each needs at the attainment of the cheapest "
        f"point of ours that reaches {percent(SLO)}. A target of utilisation above 0.909 is out of reach of its "
        "tolerance: it never scales up. The oracle knows all rates, and misses no more than "
        f"{percent(1 - SLO)} in any step; the one that trades may choose whom to miss (`bench/scaling/oracle.py`)."
    )


def _at_rest(rests: Mapping[str, Rest]) -> str:
    told = "; ".join(
        f"{trace}: {each.least} to {each.most} endpoints, {each.rises} started" for trace, each in rests.items()
    )
    return (
        "A day of the demand of the middle window, its chance included, at "
        f"{LOAD_PERCENT} % load and a cold start of 120 s. In the second half of it: {told}."
    )
