"""HTML report of a run: one self-contained page without scripts."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Final

from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.tally import share
from headgate.simulation.report.text_report import ReportTable, fleet_summary, remarks, tables, target_lines
from headgate.simulation.report.text_table import format_amount, format_duration, format_percent, format_rate

if TYPE_CHECKING:
    from headgate.simulation.report.charts import Chart


class ChartsMissing(Exception):
    """matplotlib, which draws the charts, is not installed."""


def render_html(report: SimulationReport) -> str:
    drawn = _charts(report)
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', *_head(report), *_body(report, drawn), "</html>", ""])


def _charts(report: SimulationReport) -> "list[Chart]":
    try:
        # The import takes half a second and 40 MB, and only the HTML report needs it.
        from headgate.simulation.report.charts import charts  # noqa: PLC0415 (see above)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ChartsMissing(
            "an HTML report needs matplotlib for its charts; run `pip install matplotlib`, or "
            "`pip install '.[reports]'` in a checkout"
        ) from None
    return charts(report)


def _head(report: SimulationReport) -> Iterator[str]:
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(report.scenario.title)}</title>"
    yield f"<style>{_CSS}</style>"
    yield "</head>"


def _body(report: SimulationReport, drawn: "list[Chart]") -> Iterator[str]:
    yield "<body>"
    yield from _header(report)
    for chart in drawn:
        yield f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>"
        yield f"<figure>{_chart_svg(chart)}</figure></section>"
    for titled in tables(report):
        yield from _table(titled)
    yield "<section><ul>"
    yield from (f"<li>{escape(remark)}</li>" for remark in remarks(report))
    yield "</ul></section>"
    yield "</body>"


def _chart_svg(chart: "Chart") -> str:
    """Returns the chart as SVG with a label for screen readers."""
    name = escape(f"{chart.title}. {chart.caption}")
    return chart.svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


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
    yield "<dl>"
    for value, what in _key_figures(report):
        yield f"<div><dd>{escape(value)}</dd><dt>{escape(what)}</dt></div>"
    yield "</dl>"
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
    up_ps = sum(account.up_ns for account, _ in report.engines) * 1000
    yield format_percent(share(sum(account.worked_ps for account, _ in report.engines), up_ps)), "of engine time busy"


def _table(titled: ReportTable) -> Iterator[str]:
    heading, *rows = titled.rows
    yield f"<section><h2>{escape(titled.title)}</h2><table>"
    yield f"<thead><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in heading)}</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</tbody></table>"
    yield from (f"<p class=quiet>{escape(note)}</p>" for note in titled.notes)
    yield "</section>"


_CSS: Final = """
body { max-width: 1000px; margin: 0 auto; padding: 24px 20px 60px; box-sizing: border-box; color: #1a1a1a;
  background: #fff; font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 16px; margin: 32px 0 2px }
p { margin: 2px 0 6px; color: #444 } .quiet { color: #666; font-size: 13px }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(124px, 1fr)); gap: 8px; margin: 16px 0 }
dl div { border: 1px solid #ddd; border-radius: 6px; padding: 8px 10px }
dd { margin: 0; font-size: 21px; font-weight: 600; white-space: nowrap } dt { color: #555; font-size: 12px }
figure { margin: 4px 0 0; overflow-x: auto }
figure svg { width: 100%; min-width: 840px; height: auto; display: block }
figure svg text { font-family: inherit !important }
table { border-collapse: collapse; margin-top: 6px; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 3px 10px; border-bottom: 1px solid #eee; white-space: nowrap }
th { font-weight: 600; border-bottom: 1px solid #bbb }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
section { overflow-x: auto } ul { margin: 28px 0 0; padding-left: 18px; color: #444 }
"""
