"""HTML report of tuning: one self-contained page."""

from collections.abc import Iterator
from html import escape

from headgate.planning.tuning.report import answer, configuration_diff, notes, runs_sentence, tuning_tables
from headgate.planning.tuning.result import TuningResult
from headgate.simulation.report.html_page import html_page, table_section


def render_tuning_page(result: TuningResult) -> str:
    return html_page(result.title, _body(result))


def _body(result: TuningResult) -> Iterator[str]:
    yield f"<header><h1>{escape(result.title)}</h1><p><b>{escape(answer(result))}</b></p>"
    yield f"<p class=quiet>{escape(runs_sentence(result))}</p></header>"
    for title, rows in tuning_tables(result):
        yield from table_section(title, rows, ())
    if result.changes:
        diff = "\n".join(configuration_diff(result.changes))
        yield f"<section><h2>Changes</h2><pre>{escape(diff)}</pre></section>"
    for each in notes(result):
        yield f"<p class=quiet>{escape(each)}</p>"
