"""Tables of a run's cost: what the pools cost, and how the scheduler's bills divide it among classes and tenants."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from headgate.model.units import MINUTE
from headgate.simulation.report.cost import RunCost, cost_per
from headgate.simulation.report.report import Group, SimulationReport
from headgate.simulation.report.tally import share
from headgate.simulation.report.text_table import EMPTY_CELL, Table, format_percent, format_rate, format_usd

BILLED_TENANTS: Final = 8


def pool_costs(report: SimulationReport) -> Table:
    cost = report.cost
    if cost is None:
        return []
    rows = [(each.pool, each) for each in cost.pools]
    table = [["pool", "engine-hours", "billed", "not billed", "cost"]]
    for name, each in (*rows, *([("all", cost)] if len(rows) > 1 else [])):
        hours = format_rate(each.paid_ns / (60 * MINUTE)) if each.paid_ns else EMPTY_CELL
        table.append([name, hours, format_usd(each.billed), format_usd(each.unbilled), format_usd(each.total)])
    return table


def cost_notes(report: SimulationReport) -> Iterator[str]:
    cost = report.cost
    if cost is not None:
        yield ", ".join(f"{format_usd(amount)} per {what}" for what, amount in unit_costs(cost, report))
        if any(each.unbilled for each in cost.pools):
            yield "not billed: engines that were idle, starting or down"


def unit_costs(cost: RunCost, report: SimulationReport) -> list[tuple[str, int | None]]:
    total = report.total.tally
    return [
        ("request", cost_per(cost.total, total.arrivals)),
        ("good request", cost_per(cost.total, total.good)),
        ("million tokens", cost_per(1_000_000 * cost.total, total.tokens_served)),
    ]


def bills(report: SimulationReport) -> Table:
    """Returns the bills of each class, and of the tenants with the highest bills."""
    total = report.total.tally.billed_nano_usd.total()
    if report.cost is None or not total:
        return []
    dearest = sorted(report.tenants.items(), key=lambda each: (-_billed(each[1]), each[0]))[:BILLED_TENANTS]
    classes = ((str(name), group) for name, group in report.classes.items())
    tenants = ((f"tenant {name}", group) for name, group in dearest if len(report.tenants) > 1)
    table = [["bills", "requests", "billed", "share", "wasted", "per good request"]]
    for name, group in chain(classes, tenants):
        tally, billed = group.tally, _billed(group)
        table.append(
            [
                name,
                str(tally.arrivals),
                format_usd(billed),
                format_percent(share(billed, total)),
                format_percent(share(tally.billed_nano_usd_wasted, billed)),
                format_usd(cost_per(billed, tally.good)),
            ]
        )
    return table


def _billed(group: Group) -> int:
    return group.tally.billed_nano_usd.total()
