"""What does a run look like?

Each chart answers one question of those who look at a run: when did it hurt, whom, how much, and what were the engines
doing meanwhile? Only this file and `canvas.py` need matplotlib, which comes with the extra `reports`.
"""

# Half of matplotlib's functions take keywords without a type.
# pyright: reportUnknownMemberType=false

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate.model.units import Duration, EndpointId, Instant, after
from headgate.simulation.report.canvas import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    SKY,
    STACKED,
    STYLE,
    bars_of_shares,
    columns_of_panels,
    counted,
    curve,
    in_durations,
    in_percent,
    legend,
    legend_of,
    rows_of_panels,
    styled,
    svg,
)
from headgate.simulation.report.course import Arrived, EndpointCourse
from headgate.simulation.report.fairness import JUDGED_ARRIVALS_MIN
from headgate.simulation.report.layout import amount, rate
from headgate.simulation.report.report import Report
from headgate.simulation.report.table import engine_time
from headgate.simulation.report.tally import Tally
from headgate.simulation.virtual.scenario import Callers, Crash, Fault

_CLASS_PANELS_MAX: Final = 5
_ENGINE_LINES_MAX: Final = 8
_FAULTS_NAMED_MAX: Final = 6
_TENANT_BARS_MAX: Final = 40
_TENANT_BARS_TOLD_MAX: Final = 28
"""Up to so many bars have their figure above them."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    caption: str
    svg: str


def charts(report: Report) -> list[Chart]:
    """Those for which there is something to draw."""
    with style.context(["default", STYLE]):
        return list(_charts(report))


def _charts(report: Report) -> Iterator[Chart]:
    if report.total.tally.arrivals:
        yield Chart(
            "What became of the requests, by when they arrived",
            "Requests a second; the height of a column is how many arrived. Grey: an engine was out of order.",
            svg(_fates_over_time(report)),
        )
    if len(report.course.at):
        yield Chart("Queue length by class", "Requests that wait in the gateway.", svg(_queues_over_time(report)))
    if report.total.ttft is not None:
        yield Chart(
            "How long callers waited",
            "Dashed: what the callers of a class want. A curve of first tokens ends below 100% where the others of "
            "the class never got one.",
            svg(_latency_curves(report)),
        )
    if report.total.tally.arrivals:
        yield Chart(
            "Attainment by class",
            "Good is what was completed within every target, as a share of all arrivals.",
            svg(_fates_by_class(report)),
        )
        yield Chart("Attainment by tenant", _tenants_caption(report), svg(_tenants(report)))
    if len(report.course.at) and report.engines:
        yield Chart("Engines over time", _engines_caption(report), svg(_engines_over_time(report)))
    if any(account.up_ns for account, _ in report.engines):
        yield Chart(
            "Where the engine-seconds went",
            "Work by what became of the requests it was for; idle is the rest of the time in which engines were up.",
            svg(_work(report)),
        )


# ---------------------------------------------------------------------------------------------------- over time
def _fates_over_time(report: Report) -> Figure:
    arrived = [(str(name), each) for name, each in report.arrived.items()]
    panels = arrived if 1 < len(arrived) <= _CLASS_PANELS_MAX else [("all classes", report.arrived_in_all)]
    figure, axes = rows_of_panels(len(panels), height=1.35)
    _name_faults(axes[0], report)
    for axis, (name, each) in zip(axes, panels, strict=True):
        axis.set_title(name)
        axis.set_ylabel("requests/s")
        _stack(axis, each, report)
        _mark_faults(axis, report)
    _time_axis(axes[-1], report, end_ns=report.scenario.span_ns)
    legend(figure, [fate for fate in STACKED if report.total.tally.requests[fate]])
    return figure


def _stack(axis: Axes, arrived: Arrived, report: Report) -> None:
    bucket_s = arrived.bucket_ns / 1e9
    edges = [number * bucket_s / _unit(report)[0] for number in range(len(arrived.arrivals) + 1)]
    below = [0.0] * len(arrived.arrivals)
    for fate in STACKED:
        above = [under + count / bucket_s for under, count in zip(below, arrived.counts[fate], strict=True)]
        if above != below:
            steps = [*below, below[-1]], [*above, above[-1]]
            axis.fill_between(edges, *steps, step="post", color=COLOURS[fate], linewidth=0)
        below = above
    axis.set_ylim(0, max(*below, 1e-9) * 1.05)


def _queues_over_time(report: Report) -> Figure:
    figure, [axis] = rows_of_panels(1, height=1.9, above=0.32)
    times = _times(report)
    for name, colour, dashes in styled(name for name in report.classes if name in report.course.queued):
        axis.plot(times, report.course.queued[name], color=colour, linestyle=dashes, label=name)
    axis.set_ylabel("requests waiting")
    counted(axis)
    _mark_faults(axis, report)
    _time_axis(axis, report)
    legend_of(figure, axis)
    return figure


def _engines_over_time(report: Report) -> Figure:
    figure, [running, waiting, kv_used] = rows_of_panels(3, height=1.35)
    _draw_engines(running, report, lambda course: course.running)
    _draw_engines(waiting, report, lambda course: course.waiting)
    _draw_engines(kv_used, report, lambda course: course.kv_used)
    _name_faults(running, report)
    for axis, title in ((running, "running"), (waiting, "waiting"), (kv_used, "KV cache used")):
        axis.set_title(title)
        _mark_faults(axis, report)
    counted(running)
    counted(waiting)
    in_percent(kv_used)
    _time_axis(kv_used, report)
    legend_of(figure, running)
    return figure


def _draw_engines(axis: Axes, report: Report, values: "Callable[[EndpointCourse], array[int] | array[float]]") -> None:
    """A line for each; where there are many, their mean and what lies between the least and the greatest."""
    times, engines = _times(report), report.engines
    if len(engines) <= _ENGINE_LINES_MAX:
        courses = {str(account.id): course for account, course in engines}
        for name, colour, dashes in styled(courses):
            axis.plot(times, values(courses[name]), color=colour, linestyle=dashes, linewidth=0.9, label=name)
        return
    instants = list(_of_those_up([(values(course), course.up) for _, course in engines]))
    least, greatest = [min(each) for each in instants], [max(each) for each in instants]
    axis.fill_between(times, least, greatest, color=SKY, alpha=0.4, linewidth=0, label="least to greatest")
    axis.plot(times, [sum(each) / len(each) for each in instants], color=BLUE, label="mean")


def _of_those_up(
    engines: "Sequence[tuple[array[int] | array[float], array[int]]]",
) -> Iterator[Sequence[float]]:
    """By instant; nothing at all where none is up."""
    for instant in zip(*(zip(values, up, strict=True) for values, up in engines), strict=True):
        yield [value for value, up in instant if up] or [0]


def _engines_caption(report: Report) -> str:
    what = "Sequences in the batch, sequences that wait inside the engine, and the share of KV cache in use"
    if len(report.engines) <= _ENGINE_LINES_MAX:
        return f"{what}."
    return f"{what}: the mean over {len(report.engines)} engines and their range, without those that are down."


def _mark_faults(axis: Axes, report: Report) -> None:
    """Grey behind what is drawn, and a line along the top where that hides it."""
    unit_s, _ = _unit(report)
    for span in dict.fromkeys(map(_lasts, report.scenario.faults)):
        start, end = (instant / 1e9 / unit_s for instant in span)
        axis.axvspan(start, end, color=GREY, alpha=0.16, linewidth=0, zorder=0)
        axis.axvspan(start, end, ymin=0.97, color=GREY, linewidth=0, zorder=3)


def _lasts(fault: Fault) -> tuple[Instant, Instant]:
    return fault.at, after(fault.at, fault.back_after_ns if isinstance(fault, Crash) else fault.lasts_ns)


def _name_faults(axis: Axes, report: Report) -> None:
    """Above the axis, where each begins; where the axis has its title, where it ends."""
    unit_s, _ = _unit(report)
    early = report.scenario.span_ns // 10
    named = list(_named_faults(report))
    if len(named) <= _FAULTS_NAMED_MAX:
        for (at, end), what in named:
            start = max(end if at < early else at, early) / 1e9 / unit_s
            axis.text(start, 1.03, what, transform=axis.get_xaxis_transform(), fontsize=7.5, color="#555555")


def _named_faults(report: Report) -> Iterator[tuple[tuple[Instant, Instant], str]]:
    """Those of one kind that come and go together have one name, as `crash main (4)`."""
    alike: dict[tuple[str, tuple[Instant, Instant]], list[EndpointId]] = {}
    for fault in report.scenario.faults:
        alike.setdefault((type(fault).__name__.lower(), _lasts(fault)), []).append(fault.endpoint_id)
    pools = {engine.id: engine.pool for engine in report.scenario.engines}
    for (kind, span), struck in alike.items():
        several = f"{', '.join(dict.fromkeys(pools[each] for each in struck))} ({len(struck)})"
        yield span, f"{kind} {struck[0] if len(struck) == 1 else several}"


def _time_axis(axis: Axes, report: Report, *, end_ns: Duration | None = None) -> None:
    unit_s, unit = _unit(report)
    end_s = max(report.scenario.span_ns, report.ending.at if end_ns is None else end_ns) / 1e9
    axis.set_xlim(0, max(end_s / unit_s, 1e-9))
    axis.set_xlabel(unit)


def _times(report: Report) -> list[float]:
    unit_s, _ = _unit(report)
    return [at / 1e9 / unit_s for at in report.course.at]


def _unit(report: Report) -> tuple[int, str]:
    span_s = report.scenario.span_ns / 1e9
    if span_s <= 15 * 60:
        return 1, "seconds"
    return (60, "minutes") if span_s <= 4 * 3600 else (3600, "hours")


# ---------------------------------------------------------------------------------------------------- by class
@dataclass(frozen=True, slots=True)
class _Latency:
    title: str
    of: str
    values: "Callable[[Tally], array[int]]"
    target: Callable[[Callers], int | None]


_LATENCIES: Final = (
    _Latency("time to first token", "arrivals", lambda tally: tally.ttft_ns, lambda callers: callers.ttft_ns),
    _Latency(
        "time per token after the first",
        "completed answers",
        lambda tally: tally.tpot_ns,
        lambda callers: callers.tpot_ns,
    ),
    _Latency("time to the end", "completed answers", lambda tally: tally.e2e_ns, lambda callers: callers.e2e_ns),
)


def _latency_curves(report: Report) -> Figure:
    """The time to the end only where somebody has a wish for it."""
    wished = any(report.callers(name).e2e_ns is not None for name in report.classes)
    kinds = _LATENCIES if wished else _LATENCIES[:2]
    figure, axes = columns_of_panels(len(kinds), height=2.0)
    for axis, kind in zip(axes, kinds, strict=True):
        axis.set_title(kind.title)
        axis.set_ylabel(f"share of {kind.of}")
        for name, colour, dashes in styled(report.classes):
            tally = report.classes[name].tally
            values = kind.values(tally)
            whole = tally.arrivals if kind.of == "arrivals" else len(values)
            curve(axis, sorted(values), whole, label=name, colour=colour, dashes=dashes)
            if target := kind.target(report.callers(name)):
                axis.axvline(target / 1e9, color=colour, linestyle="--", linewidth=1)
        in_durations(axis)
        in_percent(axis)
    legend_of(figure, axes[0])
    return figure


def _fates_by_class(report: Report) -> Figure:
    classes = [(str(name), group.tally) for name, group in report.classes.items()]
    rows = [*(classes if len(classes) > 1 else []), ("all", report.total.tally)]
    return bars_of_shares(
        [
            (f"{name} ({amount(tally.arrivals)})", [(fate, tally.requests[fate] / tally.arrivals) for fate in STACKED])
            for name, tally in rows
        ],
        unit="share of arrivals",
    )


# ---------------------------------------------------------------------------------------------------- by tenant
def _tenants_caption(report: Report) -> str:
    if len(report.tenants) <= _TENANT_BARS_MAX:
        return "From the worst off to the best, with the number of requests that each made."
    return (
        f"{len(report.tenants)} tenants. Left: those with at least {JUDGED_ARRIVALS_MIN} requests, from the worst off "
        "to the best. Right: what part of the whole the lesser tenants have; on the straight line all have the same."
    )


def _tenants(report: Report) -> Figure:
    tallies = {str(name): group.tally for name, group in report.tenants.items()}
    return _tenant_bars(tallies) if len(tallies) <= _TENANT_BARS_MAX else _tenant_curves(list(tallies.values()))


def _tenant_bars(tallies: dict[str, Tally]) -> Figure:
    ordered = sorted(tallies.items(), key=lambda each: (each[1].attainment or 0.0, each[0]))
    attained = [tally.attainment or 0.0 for _, tally in ordered]
    # What stands below a bar must fit into its width, or be turned.
    letters = 150 // len(ordered)
    longest = max(len(name) for name, _ in ordered)
    labels = [f"{_clipped(name)}\n{amount(tally.arrivals)}" for name, tally in ordered]
    turned = longest > letters
    if turned:
        labels = [f"{_clipped(name)} ({amount(tally.arrivals)})" for name, tally in ordered]
    figure, [axis] = columns_of_panels(
        1, height=1.7, above=0.08, below=0.15 + 0.08 * max(map(len, labels)) if turned else 0.4
    )
    axis.bar(range(len(ordered)), attained, color=GREEN, width=0.74)
    if len(ordered) <= _TENANT_BARS_TOLD_MAX:
        for place, share in enumerate(attained):
            axis.text(place, share + 0.02, f"{share:.0%}", ha="center", fontsize=7)
    axis.set_xticks(range(len(ordered)), labels, fontsize=7, rotation=90 if turned else 0)
    axis.set_xlim(-0.6, max(len(ordered), 6) - 0.4)
    in_percent(axis)
    axis.set_ylim(0, 1.12)
    axis.set_ylabel("attainment")
    axis.grid(visible=False, axis="x")
    return figure


def _clipped(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"


def _tenant_curves(tallies: Sequence[Tally]) -> Figure:
    figure, [left, right] = columns_of_panels(2, height=2.2, above=0.25)
    judged = sorted(tally.attainment or 0.0 for tally in tallies if tally.arrivals >= JUDGED_ARRIVALS_MIN)
    if judged:
        left.stairs(judged, fill=True, color=GREEN)
    left.set_title("attainment")
    left.set_xlabel("tenants")
    left.set_xlim(0, max(len(judged), 1))
    in_percent(left)
    measures = (
        ("arrivals", BLACK, ":", [tally.arrivals for tally in tallies]),
        ("good requests", GREEN, "-", [tally.good for tally in tallies]),
        ("engine-seconds", BLUE, "-", [tally.engine_ps.total() for tally in tallies]),
    )
    for label, colour, dashes, values in measures:
        right.plot(*_lorenz(values), color=colour, linestyle=dashes, label=label)
    right.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    right.set_title("concentration")
    right.set_xlabel("share of tenants, from the least")
    right.set_ylabel("their part of the whole")
    in_percent(right, x=True)
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
def _work(report: Report) -> Figure:
    parts = dict(engine_time(report))
    up_ps, tokens = sum(parts.values()), report.total.tally.tokens
    order = [*STACKED, "unassigned", "idle"]
    rows: list[tuple[str, list[tuple[str, float]]]] = [
        (f"engine-seconds ({rate(up_ps / 1e12)})", [(name, parts[name] / up_ps) for name in order])
    ]
    if tokens.total():
        shares: list[tuple[str, float]] = [(fate, tokens[fate] / tokens.total()) for fate in STACKED]
        rows.append((f"tokens computed ({amount(tokens.total())})", shares))
    return bars_of_shares(rows, unit="share of the whole")
