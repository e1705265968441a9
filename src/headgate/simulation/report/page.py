"""What came of a run, to be looked at? One page that needs nothing else: no network, no script."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Final

from headgate.simulation.report.layout import amount, duration, percent, rate
from headgate.simulation.report.report import Report
from headgate.simulation.report.table import Titled, fleet, remarks, tables, wishes
from headgate.simulation.report.tally import share

if TYPE_CHECKING:
    from headgate.simulation.report.charts import Chart


class ChartsMissing(Exception):
    """What draws the charts is not installed."""


def page(report: Report) -> str:
    drawn = _charts(report)
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', *_head(report), *_body(report, drawn), "</html>", ""])


def _charts(report: Report) -> "list[Chart]":
    try:
        # Half a second and forty megabytes, which only a page needs.
        from headgate.simulation.report.charts import charts  # noqa: PLC0415 (see above)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ChartsMissing(
            "a page has charts, and matplotlib is not installed; pip install matplotlib, or '.[reports]' in a checkout"
        ) from None
    return charts(report)


def _head(report: Report) -> Iterator[str]:
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(report.scenario.title)}</title>"
    yield f"<style>{_CSS}</style>"
    yield "</head>"


def _body(report: Report, drawn: "list[Chart]") -> Iterator[str]:
    yield "<body>"
    yield from _header(report)
    for chart in drawn:
        yield f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>"
        yield f"<figure>{_drawn(chart)}</figure></section>"
    for titled in tables(report):
        yield from _table(titled)
    yield "<section><ul>"
    yield from (f"<li>{escape(remark)}</li>" for remark in remarks(report))
    yield "</ul></section>"
    yield "</body>"


def _drawn(chart: "Chart") -> str:
    """One picture with a name, for those who hear the page."""
    name = escape(f"{chart.title}. {chart.caption}")
    return chart.svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def _header(report: Report) -> Iterator[str]:
    scenario = report.scenario
    yield f"<header><h1>{escape(scenario.title)}</h1>"
    facts = [
        f"scheduler <b>{escape(report.scheduler)}</b>",
        f"seed <b>{scenario.seed}</b>",
        escape(fleet(report)),
        f"{scenario.span_ns / 1e9:.4g} s of arrivals, over after {report.ending.at / 1e9:.4g} s",
    ]
    yield f"<p>{' · '.join(facts)}</p>"
    yield "<dl>"
    for value, what in _headlines(report):
        yield f"<div><dd>{escape(value)}</dd><dt>{escape(what)}</dt></div>"
    yield "</dl>"
    yield f"<p class=quiet>{'<br>'.join(escape(wish) for wish in wishes(report))}</p></header>"


def _headlines(report: Report) -> Iterator[tuple[str, str]]:
    total = report.total.tally
    yield amount(total.arrivals), f"requests, {rate(report.per_second(total.arrivals))} a second"
    yield rate(report.per_second(total.good)), "good requests a second"
    for name, group in list(report.classes.items())[:3]:
        slowest = "" if group.ttft is None else f", p99 TTFT {duration(group.ttft.at[99])}"
        yield percent(group.tally.attainment), f"of {name} attained{slowest}"
    yield percent(share(total.tokens_wasted, total.tokens.total())), "of computed tokens wasted"
    up_ps = sum(account.up_ns for account, _ in report.engines) * 1000
    yield percent(share(sum(account.worked_ps for account, _ in report.engines), up_ps)), "of engine time busy"


def _table(titled: Titled) -> Iterator[str]:
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
