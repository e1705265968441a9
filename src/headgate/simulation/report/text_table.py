"""Formats figures as plain text for a terminal.

The text does not rely on colour, and fits a given width. Names are shortened first, then the least important columns
are dropped. Counts that must add up are merged into one column.
"""

import textwrap
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from headgate.model.money import NANO_USD_PER_USD
from headgate.simulation.report.latency_summary import PERCENTILES, LatencySummary

WIDTH_MIN: Final = 40
EMPTY_CELL: Final = "-"
"""Cell text for a missing value."""
_NAME_CHARS_MIN: Final = 16
_GAP: Final = "  "
_OTHER: Final = "other"

Table = list[list[str]]
"""Rows of cells, starting with the headings. The first column contains names."""

LatencySummaries = Sequence[tuple[str, LatencySummary | None]]
"""Statistics, by the name of the latency."""


def latency_table(rows: Sequence[tuple[str, LatencySummaries]], *, mean: bool = False) -> Table:
    """Returns one row per name and type of latency. Types without measurements are omitted."""
    table = [["latency", "", *(f"p{percent}" for percent in PERCENTILES), *(["mean"] if mean else []), "max"]]
    for name, spreads in rows:
        measured = [(kind, spread) for kind, spread in spreads if spread is not None]
        for number, (kind, spread) in enumerate(measured):
            values = [format_duration(spread.percentiles[percent]) for percent in PERCENTILES]
            means = [format_duration(round(spread.mean))] if mean else []
            table.append([name if number == 0 else "", kind, *values, *means, format_duration(spread.max_ns)])
    return table if len(table) > 1 else []


def format_counts(counts: Mapping[str, int]) -> str:
    """Lists counts in descending order."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def format_rate(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def format_percent(share: float | None) -> str:
    return EMPTY_CELL if share is None else f"{share:.1%}"


def format_amount(count: int) -> str:
    """Formats a count, with all digits up to a million and three significant digits above that."""
    value, units = float(count), ["", "M", "G", "T"]
    if count < 1_000_000:
        return str(count)
    value /= 1_000_000
    units = units[1:]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units = units[1:]
    return f"{format_rate(value)}{units[0]}"


def format_duration(value_ns: int) -> str:
    """Formats a duration with three significant digits and a unit."""
    value = value_ns / 1e6
    if value >= 999.5:
        value /= 1000
        return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"
    return f"{value:.3g} ms"


def format_usd(nano_usd: int | None) -> str:
    """Formats an amount in dollars, below one dollar with three significant digits."""
    if nano_usd is None:
        return EMPTY_CELL
    sign, dollars = "-" if nano_usd < 0 else "", Decimal(abs(nano_usd)) / NANO_USD_PER_USD
    if dollars >= 1000:
        return f"{sign}${dollars:,.0f}"
    decimals = 2 if dollars >= 1 or not dollars else 2 - dollars.adjusted()
    return f"{sign}${dollars:.{decimals}f}"


def render_table(
    table: Table, width: int, *, droppable: Sequence[str] = (), mergeable: Sequence[str] = ()
) -> list[str]:
    """Returns the lines of a table, at most `width` wide if possible.

    If the table is too wide, the columns in `droppable` are dropped in that order. Then the counts in `mergeable` are
    merged into one column, in that order and at least two of them. A line below the table lists the merged columns.
    """
    if not table:
        return []
    width = max(width, WIDTH_MIN)
    for heading in droppable:
        if _excess_width(table, width) <= 0:
            break
        if heading in table[0]:
            table = _drop_column(table, heading)
    table, others = _merge_columns(table, width, [heading for heading in mergeable if heading in table[0]])
    widths = _widths(table)
    widths[0] = max(widths[0] - max(_excess_width(table, width, whole_names=True), 0), min(widths[0], _NAME_CHARS_MIN))
    lines = [_line(row, widths) for row in table]
    return lines + (textwrap.wrap(f"{_OTHER}: {', '.join(others)}", width) if others else [])


def _drop_column(table: Table, heading: str) -> Table:
    gone = table[0].index(heading)
    return [row[:gone] + row[gone + 1 :] for row in table]


def _merge_columns(table: Table, width: int, headings: Sequence[str]) -> tuple[Table, Sequence[str]]:
    """Merges as many columns as necessary. Returns the table and the merged headings."""
    fits, others = table, headings[:0]
    for count in range(2, len(headings) + 1):
        if _excess_width(fits, width) <= 0:
            break
        others = headings[:count]
        places = [table[0].index(heading) for heading in others]
        sums = [_OTHER, *(str(sum(int(row[place]) for place in places)) for row in table[1:])]
        end = max(places) + 1
        fits = [[*row[:end], total, *row[end:]] for row, total in zip(table, sums, strict=True)]
        for heading in others:
            fits = _drop_column(fits, heading)
    return fits, others


def _widths(table: Table) -> list[int]:
    return [max(len(row[column]) for row in table) for column in range(len(table[0]))]


def _excess_width(table: Table, width: int, *, whole_names: bool = False) -> int:
    """Returns how much too wide the table is, with complete or shortened names."""
    widths = _widths(table)
    names = widths[0] if whole_names else min(widths[0], _NAME_CHARS_MIN)
    return names + sum(widths[1:]) + len(_GAP) * (len(widths) - 1) - width


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return _GAP.join([name.ljust(widths[0]), *cells]).rstrip()
