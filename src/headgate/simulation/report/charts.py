"""Charts of a run: results over time, latencies, attainment per class and tenant, and engine load.

Only this file and `chart_elements.py` need matplotlib, which is part of the `reports` extra.
"""

# Many matplotlib functions take untyped keywords.
# pyright: reportUnknownMemberType=false

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate.model.units import Duration, EndpointId, Instant, after
from headgate.simulation.options import CallerBehaviour, Crash, Hang, RequestErrors, ScenarioFault, Slowdown
from headgate.simulation.report.chart_elements import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    SKY,
    STACK_ORDER,
    STYLE,
    axis_legend,
    columns_of_panels,
    format_counts,
    format_durations,
    format_percents,
    plot_cdf,
    result_legend,
    rows_of_panels,
    stacked_bars,
    to_svg,
    with_line_styles,
)
from headgate.simulation.report.fairness import RANKED_ARRIVALS_MIN
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.scaling import endpoints_up
from headgate.simulation.report.tally import RequestTally
from headgate.simulation.report.text_report import engine_time_by_result
from headgate.simulation.report.text_table import format_amount, format_rate
from headgate.simulation.report.time_series import ArrivalSeries, EndpointSeries

_CLASS_PANELS_MAX: Final = 5
_ENGINE_LINES_MAX: Final = 8
_FAULTS_LABELLED_MAX: Final = 6
_FAULT_NAMES: Final = {Crash: "crash", Hang: "hang", Slowdown: "slow", RequestErrors: "errors"}
_TENANT_BARS_MAX: Final = 40
_TENANT_BARS_LABELLED_MAX: Final = 28
"""Maximum number of bars to label with their values."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    caption: str
    svg: str


def charts(report: SimulationReport) -> list[Chart]:
    """Returns the charts that have data."""
    with style.context(["default", STYLE]):
        return list(_charts(report))


def _charts(report: SimulationReport) -> Iterator[Chart]:
    if report.total.tally.arrivals:
        yield Chart(
            "Requests by result and arrival time",
            "Requests per second. The column height is the arrival rate. Grey areas mark engine faults.",
            to_svg(_results_over_time(report)),
        )
    if len(report.time_series.at):
        yield Chart("Queue length by class", "Requests waiting in the gateway.", to_svg(_queues_over_time(report)))
    if report.total.ttft is not None:
        yield Chart(
            "Latency distribution",
            "Dashed lines mark the class's targets. A TTFT curve ends below 100% if some of the class's "
            "requests got no first token.",
            to_svg(_latency_curves(report)),
        )
    if report.total.tally.arrivals:
        yield Chart(
            "Attainment by class",
            "Share of arriving requests that completed within every target.",
            to_svg(_results_by_class(report)),
        )
        yield Chart("Attainment by tenant", _tenants_caption(report), to_svg(_tenants(report)))
    if len(report.time_series.at) and report.engines:
        yield Chart("Engines over time", _engines_caption(report), to_svg(_engines_over_time(report)))
    if len(report.time_series.at) and report.scaling:
        yield Chart(
            "Endpoints over time",
            "Desired number of endpoints in each autoscaled pool, and the number that could serve requests.",
            to_svg(_endpoints_over_time(report)),
        )
    if any(account.up_ns for account, _ in report.engines):
        yield Chart(
            "Engine time by request result",
            "Engine work by the result of the requests it was done for. Idle is the rest of the engines' uptime.",
            to_svg(_engine_time_chart(report)),
        )


# ---------------------------------------------------------------------------------------------------- over time
def _results_over_time(report: SimulationReport) -> Figure:
    arrived = [(str(name), each) for name, each in report.arrival_series.items()]
    panels = arrived if 1 < len(arrived) <= _CLASS_PANELS_MAX else [("all classes", report.total_arrival_series)]
    figure, axes = rows_of_panels(len(panels), height=1.35)
    _label_faults(axes[0], report)
    for axis, (name, each) in zip(axes, panels, strict=True):
        axis.set_title(name)
        axis.set_ylabel("requests/s")
        _stack(axis, each, report)
        _mark_faults(axis, report)
    _time_axis(axes[-1], report, end_ns=report.scenario.span_ns)
    result_legend(figure, [fate for fate in STACK_ORDER if report.total.tally.requests[fate]])
    return figure


def _stack(axis: Axes, arrived: ArrivalSeries, report: SimulationReport) -> None:
    bucket_s = arrived.bucket_ns / 1e9
    edges = [number * bucket_s / _time_unit(report)[0] for number in range(len(arrived.arrivals) + 1)]
    below = [0.0] * len(arrived.arrivals)
    for fate in STACK_ORDER:
        above = [under + count / bucket_s for under, count in zip(below, arrived.counts[fate], strict=True)]
        if above != below:
            steps = [*below, below[-1]], [*above, above[-1]]
            axis.fill_between(edges, *steps, step="post", color=COLOURS[fate], linewidth=0)
        below = above
    axis.set_ylim(0, max(*below, 1e-9) * 1.05)


def _queues_over_time(report: SimulationReport) -> Figure:
    figure, [axis] = rows_of_panels(1, height=1.9, above=0.32)
    times = _times(report)
    for name, colour, dashes in with_line_styles(name for name in report.classes if name in report.time_series.queued):
        axis.plot(times, report.time_series.queued[name], color=colour, linestyle=dashes, label=name)
    axis.set_ylabel("requests waiting")
    format_counts(axis)
    _mark_faults(axis, report)
    _time_axis(axis, report)
    axis_legend(figure, axis)
    return figure


def _engines_over_time(report: SimulationReport) -> Figure:
    figure, [running, waiting, kv_used] = rows_of_panels(3, height=1.35)
    _draw_engines(running, report, lambda course: course.running)
    _draw_engines(waiting, report, lambda course: course.waiting)
    _draw_engines(kv_used, report, lambda course: course.kv_used)
    _label_faults(running, report)
    for axis, title in ((running, "running"), (waiting, "waiting"), (kv_used, "KV cache used")):
        axis.set_title(title)
        _mark_faults(axis, report)
    format_counts(running)
    format_counts(waiting)
    format_percents(kv_used)
    _time_axis(kv_used, report)
    axis_legend(figure, running)
    return figure


def _endpoints_over_time(report: SimulationReport) -> Figure:
    figure, axes = rows_of_panels(len(report.scaling), height=1.6)
    unit_s, _ = _time_unit(report)
    for axis, each in zip(axes, report.scaling, strict=True):
        steps = [*each.steps(), (report.run_summary.at, each.desired[-1])]
        times, counts = [at / 1e9 / unit_s for at, _ in steps], [count for _, count in steps]
        axis.plot(times, counts, color=GREY, drawstyle="steps-post", label="desired")
        axis.plot(
            _times(report), endpoints_up(report.engines, each.pool), color=BLUE, drawstyle="steps-post", label="ready"
        )
        axis.set_title(each.pool)
        axis.set_ylabel("endpoints")
        format_counts(axis)
        _mark_faults(axis, report)
    _time_axis(axes[-1], report)
    axis_legend(figure, axes[0])
    return figure


def _draw_engines(
    axis: Axes, report: SimulationReport, values: "Callable[[EndpointSeries], array[int] | array[float]]"
) -> None:
    """Draws a line per engine. If there are many engines, draws their mean and range instead."""
    times, engines = _times(report), report.engines
    if len(engines) <= _ENGINE_LINES_MAX:
        courses = {str(account.id): course for account, course in engines}
        for name, colour, dashes in with_line_styles(courses):
            axis.plot(times, values(courses[name]), color=colour, linestyle=dashes, linewidth=0.9, label=name)
        return
    instants = list(_values_while_up([(values(course), course.up) for _, course in engines]))
    least, greatest = [min(each) for each in instants], [max(each) for each in instants]
    axis.fill_between(times, least, greatest, color=SKY, alpha=0.4, linewidth=0, label="range")
    axis.plot(times, [sum(each) / len(each) for each in instants], color=BLUE, label="mean")


def _values_while_up(
    engines: "Sequence[tuple[array[int] | array[float], array[int]]]",
) -> Iterator[Sequence[float]]:
    """Yields the values of the engines that are up at each instant, or a single zero."""
    for instant in zip(*(zip(values, up, strict=True) for values, up in engines), strict=True):
        yield [value for value, up in instant if up] or [0]


def _engines_caption(report: SimulationReport) -> str:
    what = "Running sequences, sequences waiting in the engine, and the share of KV cache in use"
    if len(report.engines) <= _ENGINE_LINES_MAX:
        return f"{what}."
    return f"{what}. Mean and range across {len(report.engines)} engines, excluding engines that are down."


def _mark_faults(axis: Axes, report: SimulationReport) -> None:
    """Shades fault periods in grey, with a line along the top in case the data covers the shading."""
    unit_s, _ = _time_unit(report)
    for span in dict.fromkeys(map(_fault_interval, report.scenario.faults)):
        start, end = (instant / 1e9 / unit_s for instant in span)
        axis.axvspan(start, end, color=GREY, alpha=0.16, linewidth=0, zorder=0)
        axis.axvspan(start, end, ymin=0.97, color=GREY, linewidth=0, zorder=3)


def _fault_interval(fault: ScenarioFault) -> tuple[Instant, Instant]:
    return fault.at, after(fault.at, fault.recover_after_ns if isinstance(fault, Crash) else fault.duration_ns)


def _label_faults(axis: Axes, report: SimulationReport) -> None:
    """Labels faults above the axis, at their start.

    Early faults are labelled at their end instead, next to the axis title.
    """
    unit_s, _ = _time_unit(report)
    early = report.scenario.span_ns // 10
    named = list(_fault_labels(report))
    if len(named) <= _FAULTS_LABELLED_MAX:
        for (at, end), what in named:
            start = max(end if at < early else at, early) / 1e9 / unit_s
            axis.text(start, 1.03, what, transform=axis.get_xaxis_transform(), fontsize=7.5, color="#555555")


def _fault_labels(report: SimulationReport) -> Iterator[tuple[tuple[Instant, Instant], str]]:
    """Yields one label per group of simultaneous faults of the same type, for example `crash main (4)`."""
    alike: dict[tuple[str, tuple[Instant, Instant]], list[EndpointId]] = {}
    for fault in report.scenario.faults:
        alike.setdefault((_FAULT_NAMES[type(fault)], _fault_interval(fault)), []).append(fault.endpoint_id)
    pools = {engine.id: engine.pool for engine in report.scenario.engines}
    for (kind, span), struck in alike.items():
        several = f"{', '.join(dict.fromkeys(pools[each] for each in struck))} ({len(struck)})"
        yield span, f"{kind} {struck[0] if len(struck) == 1 else several}"


def _time_axis(axis: Axes, report: SimulationReport, *, end_ns: Duration | None = None) -> None:
    unit_s, unit = _time_unit(report)
    end_s = max(report.scenario.span_ns, report.run_summary.at if end_ns is None else end_ns) / 1e9
    axis.set_xlim(0, max(end_s / unit_s, 1e-9))
    axis.set_xlabel(unit)


def _times(report: SimulationReport) -> list[float]:
    unit_s, _ = _time_unit(report)
    return [at / 1e9 / unit_s for at in report.time_series.at]


def _time_unit(report: SimulationReport) -> tuple[int, str]:
    span_s = report.scenario.span_ns / 1e9
    if span_s <= 15 * 60:
        return 1, "seconds"
    return (60, "minutes") if span_s <= 4 * 3600 else (3600, "hours")


# ---------------------------------------------------------------------------------------------------- by class
@dataclass(frozen=True, slots=True)
class _Latency:
    title: str
    population: str
    values: "Callable[[RequestTally], array[int]]"
    target: Callable[[CallerBehaviour], int | None]


_LATENCIES: Final = (
    _Latency("time to first token", "arrivals", lambda tally: tally.ttft_ns, lambda callers: callers.ttft_ns),
    _Latency(
        "time per output token",
        "completed responses",
        lambda tally: tally.tpot_ns,
        lambda callers: callers.tpot_ns,
    ),
    _Latency("end-to-end latency", "completed responses", lambda tally: tally.e2e_ns, lambda callers: callers.e2e_ns),
)


def _latency_curves(report: SimulationReport) -> Figure:
    """Draws latency distributions. End-to-end latency is included only if a class has a target for it."""
    wished = any(report.callers(name).e2e_ns is not None for name in report.classes)
    kinds = _LATENCIES if wished else _LATENCIES[:2]
    figure, axes = columns_of_panels(len(kinds), height=2.0)
    for axis, kind in zip(axes, kinds, strict=True):
        axis.set_title(kind.title)
        axis.set_ylabel(f"share of {kind.population}")
        for name, colour, dashes in with_line_styles(report.classes):
            tally = report.classes[name].tally
            values = kind.values(tally)
            whole = tally.arrivals if kind.population == "arrivals" else len(values)
            plot_cdf(axis, sorted(values), whole, label=name, colour=colour, dashes=dashes)
            if target := kind.target(report.callers(name)):
                axis.axvline(target / 1e9, color=colour, linestyle="--", linewidth=1)
        format_durations(axis)
        format_percents(axis)
    axis_legend(figure, axes[0])
    return figure


def _results_by_class(report: SimulationReport) -> Figure:
    classes = [(str(name), group.tally) for name, group in report.classes.items()]
    rows = [*(classes if len(classes) > 1 else []), ("all", report.total.tally)]
    return stacked_bars(
        [
            (
                f"{name} ({format_amount(tally.arrivals)})",
                [(fate, tally.requests[fate] / tally.arrivals) for fate in STACK_ORDER],
            )
            for name, tally in rows
        ],
        unit="share of arrivals",
    )


# ---------------------------------------------------------------------------------------------------- by tenant
def _tenants_caption(report: SimulationReport) -> str:
    if len(report.tenants) <= _TENANT_BARS_MAX:
        return "Lowest attainment first, with each tenant's number of requests."
    return (
        f"{len(report.tenants)} tenants. Left: tenants with at least {RANKED_ARRIVALS_MIN} requests, lowest "
        "attainment first. Right: cumulative share of the total, smallest tenant first. The straight line is an even "
        "distribution."
    )


def _tenants(report: SimulationReport) -> Figure:
    tallies = {str(name): group.tally for name, group in report.tenants.items()}
    return _tenant_bars(tallies) if len(tallies) <= _TENANT_BARS_MAX else _tenant_curves(list(tallies.values()))


def _tenant_bars(tallies: dict[str, RequestTally]) -> Figure:
    ordered = sorted(tallies.items(), key=lambda each: (each[1].attainment or 0.0, each[0]))
    attained = [tally.attainment or 0.0 for _, tally in ordered]
    # Labels must fit within the width of their bars. Otherwise they are rotated.
    letters = 150 // len(ordered)
    longest = max(len(name) for name, _ in ordered)
    labels = [f"{_clipped(name)}\n{format_amount(tally.arrivals)}" for name, tally in ordered]
    turned = longest > letters
    if turned:
        labels = [f"{_clipped(name)} ({format_amount(tally.arrivals)})" for name, tally in ordered]
    figure, [axis] = columns_of_panels(
        1, height=1.7, above=0.08, below=0.15 + 0.08 * max(map(len, labels)) if turned else 0.4
    )
    axis.bar(range(len(ordered)), attained, color=GREEN, width=0.74)
    if len(ordered) <= _TENANT_BARS_LABELLED_MAX:
        for place, share in enumerate(attained):
            axis.text(place, share + 0.02, f"{share:.0%}", ha="center", fontsize=7)
    axis.set_xticks(range(len(ordered)), labels, fontsize=7, rotation=90 if turned else 0)
    axis.set_xlim(-0.6, max(len(ordered), 6) - 0.4)
    format_percents(axis)
    axis.set_ylim(0, 1.12)
    axis.set_ylabel("attainment")
    axis.grid(visible=False, axis="x")
    return figure


def _clipped(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"


def _tenant_curves(tallies: Sequence[RequestTally]) -> Figure:
    figure, [left, right] = columns_of_panels(2, height=2.2, above=0.25)
    judged = sorted(tally.attainment or 0.0 for tally in tallies if tally.arrivals >= RANKED_ARRIVALS_MIN)
    if judged:
        left.stairs(judged, fill=True, color=GREEN)
    left.set_title("attainment")
    left.set_xlabel("tenants")
    left.set_xlim(0, max(len(judged), 1))
    format_percents(left)
    measures = (
        ("arrivals", BLACK, ":", [tally.arrivals for tally in tallies]),
        ("good requests", GREEN, "-", [tally.good for tally in tallies]),
        ("engine-seconds", BLUE, "-", [tally.engine_ps.total() for tally in tallies]),
    )
    for label, colour, dashes, values in measures:
        right.plot(*_lorenz(values), color=colour, linestyle=dashes, label=label)
    right.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    right.set_title("concentration")
    right.set_xlabel("share of tenants, smallest first")
    right.set_ylabel("cumulative share")
    format_percents(right, x=True)
    right.legend(loc="upper left")
    return figure


def _lorenz(values: Sequence[int]) -> tuple[list[float], list[float]]:
    ordered, total, below = sorted(values), max(sum(values), 1), 0
    shares = [0.0]
    for value in ordered:
        below += value
        shares.append(below / total)
    return [number / len(ordered) for number in range(len(ordered) + 1)], shares


# ---------------------------------------------------------------------------------------------------- engines
def _engine_time_chart(report: SimulationReport) -> Figure:
    parts = dict(engine_time_by_result(report))
    up_ps, tokens = sum(parts.values()), report.total.tally.tokens
    order = [*STACK_ORDER, "unattributed", "idle"]
    rows: list[tuple[str, list[tuple[str, float]]]] = [
        (f"engine-seconds ({format_rate(up_ps / 1e12)})", [(name, parts[name] / up_ps) for name in order])
    ]
    if tokens.total():
        shares: list[tuple[str, float]] = [(fate, tokens[fate] / tokens.total()) for fate in STACK_ORDER]
        rows.append((f"tokens computed ({format_amount(tokens.total())})", shares))
    return stacked_bars(rows, unit="share of total")
