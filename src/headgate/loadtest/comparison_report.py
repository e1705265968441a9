"""Comparison of two runs as text and JSON."""

from collections.abc import Sequence

from headgate.loadtest.comparison import MeasureComparison
from headgate.simulation.report.confidence import CONFIDENCE
from headgate.simulation.report.text_table import Table, format_duration, format_percent, render_table

NO_DIFFERENCE = "no difference shown"


def render_comparison(measures: Sequence[MeasureComparison], names: tuple[str, str], *, width: int) -> str:
    lines = render_table(comparison_table(measures), width)
    return "\n".join([f"base: {names[0]}", f"other: {names[1]}", "", *lines])


def comparison_table(measures: Sequence[MeasureComparison]) -> Table:
    table: Table = [["measure", "base", "other", "change", f"{CONFIDENCE:.0%} interval", "verdict"]]
    for measure in measures:
        interval = measure.interval
        low, high = _change(measure, interval.low), _change(measure, interval.high)
        table.append(
            [
                measure.name,
                _value(measure, measure.base),
                _value(measure, measure.other),
                _change(measure, interval.estimate),
                f"{low} to {high}",
                _verdict(measure),
            ]
        )
    return table


def comparison_json(measures: Sequence[MeasureComparison], names: tuple[str, str]) -> dict[str, object]:
    return {
        "base": names[0],
        "other": names[1],
        "confidence": CONFIDENCE,
        "measures": {
            measure.name: {
                "base": round(measure.base, 6),
                "other": round(measure.other, 6),
                "difference" if measure.is_share else "ratio": round(measure.interval.estimate, 6),
                "low": round(measure.interval.low, 6),
                "high": round(measure.interval.high, 6),
                "differs": measure.differs,
            }
            for measure in measures
        },
    }


def _verdict(measure: MeasureComparison) -> str:
    if not measure.differs:
        return NO_DIFFERENCE
    return "higher" if measure.interval.low > (0 if measure.is_share else 1) else "lower"


def _value(measure: MeasureComparison, value: float) -> str:
    return format_percent(value) if measure.is_share else format_duration(round(value * 1e9))


def _change(measure: MeasureComparison, value: float) -> str:
    return f"{100 * value:+.1f} points" if measure.is_share else f"{value - 1:+.1%}"
