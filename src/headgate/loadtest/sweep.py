"""Runs at several levels of load, and the highest level that holds the targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from headgate.loadtest.report import LoadTestResult, report_json
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.text_table import (
    EMPTY_CELL,
    Table,
    format_duration,
    format_percent,
    format_rate,
    render_table,
)


@dataclass(frozen=True, slots=True)
class SweepLevel:
    factor: float
    """Factor applied to the load."""
    result: LoadTestResult

    @property
    def good_share(self) -> float:
        total = self.result.total
        return total.good / total.offered if total.offered else 0.0

    def holds(self, share: float) -> bool:
        """Whether enough requests were good. A run in which the generator fell behind shows nothing."""
        return self.good_share >= share and not self.result.counts.is_behind


def highest_level(levels: Sequence[SweepLevel], share: float) -> SweepLevel | None:
    """Returns the last level before the first one that does not hold. Levels are in increasing order."""
    held = list(takewhile(lambda level: level.holds(share), levels))
    return held[-1] if held else None


def render_sweep(levels: Sequence[SweepLevel], share: float, *, width: int) -> str:
    return "\n".join([*render_table(sweep_table(levels, share), width), "", highest_line(levels, share)])


def sweep_table(levels: Sequence[SweepLevel], share: float) -> Table:
    table: Table = [["load", "offered/s", "goodput/s", "good", "TTFT p50", "TTFT p95", "TPOT p95", "E2E p95", "holds"]]
    for level in levels:
        total, result = level.result.total, level.result
        ttft = LatencySummary.of(total.ttft_ns)
        table.append(
            [
                f"{level.factor:g}",
                format_rate(result.per_second(total.offered)),
                format_rate(result.per_second(total.good)),
                format_percent(level.good_share),
                _cell(ttft, 50),
                _cell(ttft, 95),
                _cell(LatencySummary.of(total.tpot_ns), 95),
                _cell(LatencySummary.of(total.e2e_ns), 95),
                "generator behind" if result.counts.is_behind else "yes" if level.holds(share) else "no",
            ]
        )
    return table


def highest_line(levels: Sequence[SweepLevel], share: float) -> str:
    highest = highest_level(levels, share)
    if highest is None:
        return f"no load holds the targets for {format_percent(share)} of requests"
    rate = format_rate(highest.result.per_second(highest.result.total.offered))
    return f"highest load that holds the targets: {highest.factor:g} ({rate} requests/s)"


def sweep_json(levels: Sequence[SweepLevel], share: float) -> dict[str, object]:
    highest = highest_level(levels, share)
    return {
        "good_share_required": share,
        "highest_load": None if highest is None else highest.factor,
        "levels": [
            {"load": level.factor, "good_share": round(level.good_share, 6), "holds": level.holds(share)}
            | report_json(level.result)
            for level in levels
        ],
    }


def _cell(summary: LatencySummary | None, percent: int) -> str:
    return EMPTY_CELL if summary is None else format_duration(summary.percentiles[percent])
