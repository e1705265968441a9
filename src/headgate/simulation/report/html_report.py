"""HTML report of a run: one self-contained page without scripts."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from headgate.simulation.report.cost import cost_per
from headgate.simulation.report.html_page import (
    chart_section,
    figure_list,
    html_page,
    matplotlib_required,
    table_section,
)
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.tally import share
from headgate.simulation.report.text_report import fleet_summary, remarks, tables, target_lines
from headgate.simulation.report.text_table import (
    format_amount,
    format_duration,
    format_percent,
    format_rate,
    format_usd,
)

if TYPE_CHECKING:
    from headgate.simulation.report.charts import Chart


def render_html(report: SimulationReport) -> str:
    drawn = _charts(report)
    return html_page(report.scenario.title, _body(report, drawn))


def _charts(report: SimulationReport) -> "list[Chart]":
    with matplotlib_required():
        # The import takes half a second and 40 MB, and only the HTML report needs it.
        from headgate.simulation.report.charts import charts  # noqa: PLC0415 (see above)
    return charts(report)


def _body(report: SimulationReport, drawn: "list[Chart]") -> Iterator[str]:
    yield from _header(report)
    for chart in drawn:
        yield from chart_section(chart)
    for titled in tables(report):
        yield from table_section(titled.title, titled.rows, titled.notes)
    yield "<section><ul>"
    yield from (f"<li>{escape(remark)}</li>" for remark in remarks(report))
    yield "</ul></section>"


def _header(report: SimulationReport) -> Iterator[str]:
    scenario = report.scenario
    yield f"<header><h1>{escape(scenario.title)}</h1>"
    facts = [
        f"scheduler <b>{escape(report.scheduler)}</b>",
        f"seed <b>{scenario.seed}</b>",
        escape(fleet_summary(report)),
        f"{scenario.span_ns / 1e9:.4g} s of arrivals, run ended after {report.run_summary.at / 1e9:.4g} s",
    ]
    yield f"<p>{' · '.join(facts)}</p>"
    yield from figure_list(_key_figures(report))
    yield f"<p class=quiet>{'<br>'.join(escape(wish) for wish in target_lines(report))}</p></header>"


def _key_figures(report: SimulationReport) -> Iterator[tuple[str, str]]:
    total = report.total.tally
    yield format_amount(total.arrivals), f"requests, {format_rate(report.per_second(total.arrivals))} per second"
    yield format_rate(report.per_second(total.good)), "good requests per second"
    for name, group in list(report.classes.items())[:3]:
        slowest = ""
        if group.ttft is not None:
            # A no-break space keeps a number and its unit on one line.
            slowest = ", p99 TTFT " + format_duration(group.ttft.percentiles[99]).replace(" ", "\u00a0")
        yield format_percent(group.tally.attainment), f"of {name} requests good{slowest}"
    yield format_percent(share(total.tokens_wasted, total.tokens.total())), "of computed tokens wasted"
    if (cost := report.cost) is not None:
        yield format_usd(cost.total), "cost of the run"
        tokens = cost_per(1_000_000 * cost.total, total.tokens_served)
        yield format_usd(tokens), "per million tokens"
    up_ps = sum(account.up_ns for account, _ in report.engines) * 1000
    yield format_percent(share(sum(account.worked_ps for account, _ in report.engines), up_ps)), "of engine time busy"
