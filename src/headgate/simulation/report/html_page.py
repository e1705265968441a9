"""Parts of a self-contained HTML page without scripts."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.simulation.report.charts import Chart


class ChartsMissing(Exception):
    """matplotlib, which draws the charts, is not installed."""


@contextmanager
def matplotlib_required() -> Generator[None]:
    """Raises `ChartsMissing` if an import in this block fails because matplotlib is not installed."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ChartsMissing(
            "an HTML report needs matplotlib for its charts; run `pip install matplotlib`, or "
            "`pip install '.[reports]'` in a checkout"
        ) from None


def html_page(title: str, body: Iterable[str]) -> str:
    head = [
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{_CSS}</style>",
        "</head>",
    ]
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', *head, "<body>", *body, "</body>", "</html>", ""])


def chart_section(chart: "Chart") -> Iterator[str]:
    """Shows a chart as SVG with a label for screen readers."""
    name = escape(f"{chart.title}. {chart.caption}")
    svg = chart.svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
    yield f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>"
    yield f"<figure>{svg}</figure></section>"


def figure_list(figures: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Shows values in boxes, each with its meaning."""
    yield "<dl>"
    for value, what in figures:
        yield f"<div><dd>{escape(value)}</dd><dt>{escape(what)}</dt></div>"
    yield "</dl>"


def table_section(title: str, rows: Sequence[Sequence[str]], notes: Iterable[str] = ()) -> Iterator[str]:
    heading, *others = rows
    yield f"<section><h2>{escape(title)}</h2><table>"
    yield f"<thead><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in heading)}</tr></thead><tbody>"
    for row in others:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</tbody></table>"
    yield from (f"<p class=quiet>{escape(note)}</p>" for note in notes)
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
pre { background: #f6f6f6; padding: 10px 12px; overflow-x: auto; font-size: 13px }
section { overflow-x: auto } ul { margin: 28px 0 0; padding-left: 18px; color: #444 }
"""
