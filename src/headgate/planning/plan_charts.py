"""Charts of a capacity plan. They need matplotlib, which is part of the `reports` extra."""

# Many matplotlib functions take untyped keywords.
# pyright: reportUnknownMemberType=false

from collections.abc import Iterator

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate.model.money import NANO_USD_PER_USD
from headgate.planning.cases import PlanVerdict
from headgate.planning.plan import CapacityPlan, CurveStep
from headgate.simulation.report.chart_elements import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    STYLE,
    YELLOW,
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
        "is drawn, except that the present fleet lasts until the next step.",
        to_svg(_curve(plan)),
    )
    yield Chart(
        "Good requests",
        "Lowest share of good requests over all seeds, with the planned fleet and in each event. Dashed lines are the "
        "objectives, and orange bars miss them. In a yellow event, the shares are still good, but more and more "
        "requests are waiting.",
        to_svg(_attainment(plan)),
    )
    if plan.cost.pools and any(each.cost is not None for each in plan.alternatives):
        yield Chart(
            "Cost of the alternatives",
            "Dollars per day of the plan and of each alternative that holds the objectives.",
            to_svg(_alternatives(plan)),
        )


def _curve(plan: CapacityPlan) -> Figure:
    priced = bool(plan.cost.pools)
    figure, axes = columns_of_panels(2 if priced else 1, height=2.0)
    points = _curve_points(plan)
    traffic = [at for at, _ in points]
    for number, (pool, colour, dashes) in enumerate(with_line_styles(pool for pool, _ in plan.endpoints)):
        counts = [each.endpoints[number][1] for _, each in points]
        axes[0].plot(traffic, counts, color=colour, linestyle=dashes, drawstyle="steps-pre", marker=".", label=pool)
    axes[0].set_title("endpoints")
    format_counts(axes[0])
    if priced:
        costs = [each.cost.total / NANO_USD_PER_USD for _, each in points]
        axes[1].plot(traffic, costs, color=GREEN, drawstyle="steps-pre", marker=".")
        axes[1].set_title("dollars per day")
        axes[1].set_ylim(0, max(costs) * 1.1 or 1)
    for axis in axes:
        axis.set_xlabel("traffic, relative to the workload")
        _mark_steps(axis, plan)
    axis_legend(figure, axes[0])
    return figure


def _curve_points(plan: CapacityPlan) -> list[tuple[float, CurveStep]]:
    """The points of the curve, and the next step, up to which the present fleet is enough."""
    points = [(each.traffic, each) for each in plan.curve]
    if plan.next_step is not None and plan.next_step not in dict(points):
        present = next(each for each in plan.curve if each.traffic == 1.0)
        points.append((plan.next_step, present))
    return sorted(points, key=lambda each: each[0])


def _mark_steps(axis: Axes, plan: CapacityPlan) -> None:
    axis.axvline(1.0, color=GREY, linewidth=0.9, label="now")
    if plan.next_step is not None:
        axis.axvline(plan.next_step, color=ORANGE, linestyle="--", linewidth=1, label="next step")


def _attainment(plan: CapacityPlan) -> Figure:
    rows = [("planned fleet", plan.attainment, PlanVerdict.HELD)]
    rows += [(each.name, each.attainment, each.verdict) for each in plan.what_if]
    figure, axes = columns_of_panels(len(plan.given.objectives), height=0.34 * len(rows) + 0.4)
    figure.subplots_adjust(left=0.26)
    for number, (axis, (name, objective)) in enumerate(zip(axes, plan.given.objectives.items(), strict=True)):
        shares = [attainment.get(name, 1.0) for _, attainment, _ in rows]
        good = [YELLOW if verdict is PlanVerdict.QUEUE_GROWS else GREEN for _, _, verdict in rows]
        colours = [held if share >= objective else ORANGE for share, held in zip(shares, good, strict=True)]
        axis.barh(range(len(rows)), shares, color=colours)
        axis.axvline(objective, color=BLUE, linestyle="--", linewidth=1)
        axis.set_yticks(range(len(rows)), [label for label, _, _ in rows] if number == 0 else [""] * len(rows))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_title(name)
        format_percents(axis, x=True, y=False)
        axis.grid(visible=False, axis="y")
    return figure


def _alternatives(plan: CapacityPlan) -> Figure:
    priced = [("the plan", plan.cost.total)]
    priced += [(each.name, each.cost.total) for each in plan.alternatives if each.cost is not None]
    figure, [axis] = columns_of_panels(1, height=0.3 * len(priced) + 0.2, above=0.1)
    figure.subplots_adjust(left=0.3)
    dollars = [total / NANO_USD_PER_USD for _, total in priced]
    colours = [BLUE, *(GREEN if total < plan.cost.total else GREY for _, total in priced[1:])]
    bars = axis.barh(range(len(priced)), dollars, color=colours)
    axis.bar_label(bars, [f"${each:,.2f}" for each in dollars], padding=3)
    axis.set_xlim(0, 1.12 * max(dollars) or 1)
    axis.set_yticks(range(len(priced)), [name for name, _ in priced])
    axis.set_ylim(len(priced) - 0.5, -0.5)
    axis.set_xlabel("dollars per day")
    axis.grid(visible=False, axis="y")
    return figure
