"""Charts of a capacity plan. They need matplotlib, which is part of the `reports` extra."""

# Many matplotlib functions take untyped keywords.
# pyright: reportUnknownMemberType=false

from collections.abc import Iterator

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate.model.money import NANO_USD_PER_USD
from headgate.planning.plan import CapacityPlan
from headgate.simulation.report.chart_elements import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    STYLE,
    axis_legend,
    columns_of_panels,
    format_counts,
    format_percents,
    to_svg,
    with_line_styles,
)
from headgate.simulation.report.charts import Chart


def plan_charts(plan: CapacityPlan) -> list[Chart]:
    with style.context(["default", STYLE]):
        return list(_charts(plan))


def _charts(plan: CapacityPlan) -> Iterator[Chart]:
    yield Chart(
        "Endpoints and cost by traffic",
        "The planned fleet for each traffic, relative to the workload. Between two points, the fleet of the higher one "
        "is drawn. Vertical lines mark the present traffic and the next step.",
        to_svg(_curve(plan)),
    )
    yield Chart(
        "Objectives",
        "Lowest share of good requests over all seeds, with the planned fleet and in each event. Dashed lines are the "
        "objectives.",
        to_svg(_attainment(plan)),
    )


def _curve(plan: CapacityPlan) -> Figure:
    priced = bool(plan.cost.pools)
    figure, axes = columns_of_panels(2 if priced else 1, height=2.0)
    traffic = [each.traffic for each in plan.curve]
    for number, (pool, colour, dashes) in enumerate(with_line_styles(pool for pool, _ in plan.endpoints)):
        counts = [each.endpoints[number][1] for each in plan.curve]
        axes[0].plot(traffic, counts, color=colour, linestyle=dashes, drawstyle="steps-pre", marker=".", label=pool)
    axes[0].set_title("endpoints")
    format_counts(axes[0])
    if priced:
        costs = [each.cost.total / NANO_USD_PER_USD for each in plan.curve]
        axes[1].plot(traffic, costs, color=GREEN, drawstyle="steps-pre", marker=".")
        axes[1].set_title("dollars per day")
        axes[1].set_ylim(0, max(costs) * 1.1 or 1)
    for axis in axes:
        axis.set_xlabel("traffic, relative to the workload")
        _mark_steps(axis, plan)
    axis_legend(figure, axes[0])
    return figure


def _mark_steps(axis: Axes, plan: CapacityPlan) -> None:
    axis.axvline(1.0, color=GREY, linewidth=0.9, label="now")
    if plan.next_step is not None:
        axis.axvline(plan.next_step, color=ORANGE, linestyle="--", linewidth=1, label="next step")


def _attainment(plan: CapacityPlan) -> Figure:
    rows = [("planned fleet", plan.attainment), *((each.name, each.attainment) for each in plan.what_if)]
    figure, axes = columns_of_panels(len(plan.given.objectives), height=0.34 * len(rows) + 0.4)
    figure.subplots_adjust(left=0.26)
    for number, (axis, (name, objective)) in enumerate(zip(axes, plan.given.objectives.items(), strict=True)):
        shares = [attainment.get(name, 1.0) for _, attainment in rows]
        axis.barh(range(len(rows)), shares, color=[GREEN if share >= objective else ORANGE for share in shares])
        axis.axvline(objective, color=BLUE, linestyle="--", linewidth=1)
        axis.set_yticks(range(len(rows)), [label for label, _ in rows] if number == 0 else [""] * len(rows))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_title(name)
        format_percents(axis, x=True, y=False)
        axis.grid(visible=False, axis="y")
    return figure
