"""How do figures become lines that a person reads?

Plain text that reads without colour and fits the width it is given: names are shortened first, then the least needed
columns go, and counts that must add up are told together.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from headgate.simulation.report.spread import PERCENTILES, Spread

WIDTH_MIN: Final = 40
NOTHING: Final = "-"
"""Stands where there is nothing to tell."""
_NAME_CHARS_MIN: Final = 16
_GAP: Final = "  "
_OTHER: Final = "other"

Table = list[list[str]]
"""Rows of cells, the heading first; the first column holds names."""

Spreads = Sequence[tuple[str, Spread | None]]
"""By the name of what was measured."""


def latency_table(rows: Sequence[tuple[str, Spreads]], *, mean: bool = False) -> Table:
    """A line for each name and kind of latency; what was never measured is left out."""
    table = [["latency", "", *(f"p{percent}" for percent in PERCENTILES), *(["mean"] if mean else []), "max"]]
    for name, spreads in rows:
        measured = [(kind, spread) for kind, spread in spreads if spread is not None]
        for number, (kind, spread) in enumerate(measured):
            values = [duration(spread.at[percent]) for percent in PERCENTILES]
            means = [duration(round(spread.mean))] if mean else []
            table.append([name if number == 0 else "", kind, *values, *means, duration(spread.most)])
    return table if len(table) > 1 else []


def listed(counts: Mapping[str, int]) -> str:
    """The most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def rate(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"


def amount(count: int) -> str:
    """A count that may be large: all of its digits up to a million, three from there on."""
    value, units = float(count), ["", "M", "G", "T"]
    if count < 1_000_000:
        return str(count)
    value /= 1_000_000
    units = units[1:]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units = units[1:]
    return f"{rate(value)}{units[0]}"


def duration(value_ns: int) -> str:
    """Three digits and a unit."""
    value = value_ns / 1e6
    if value >= 999.5:
        value /= 1000
        return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"
    return f"{value:.3g} ms"


def lay_out(table: Table, width: int, *, spare: Sequence[str] = (), summed: Sequence[str] = ()) -> list[str]:
    """The table's lines, none longer than `width` if it can be helped.

    First `spare` columns go, in that order. Then those of `summed`, which are counts, become one, in that order and two
    at least; a line below says which.
    """
    if not table:
        return []
    width = max(width, WIDTH_MIN)
    for heading in spare:
        if _over(table, width) <= 0:
            break
        if heading in table[0]:
            table = _without(table, heading)
    table, others = _summed(table, width, [heading for heading in summed if heading in table[0]])
    widths = _widths(table)
    widths[0] = max(widths[0] - max(_over(table, width, whole_names=True), 0), min(widths[0], _NAME_CHARS_MIN))
    lines = [_line(row, widths) for row in table]
    return lines + (textwrap.wrap(f"{_OTHER}: {', '.join(others)}", width) if others else [])


def _without(table: Table, heading: str) -> Table:
    gone = table[0].index(heading)
    return [row[:gone] + row[gone + 1 :] for row in table]


def _summed(table: Table, width: int, headings: Sequence[str]) -> tuple[Table, Sequence[str]]:
    """With one column in place of as many as must be, and which these are."""
    fits, others = table, headings[:0]
    for count in range(2, len(headings) + 1):
        if _over(fits, width) <= 0:
            break
        others = headings[:count]
        places = [table[0].index(heading) for heading in others]
        sums = [_OTHER, *(str(sum(int(row[place]) for place in places)) for row in table[1:])]
        end = max(places) + 1
        fits = [[*row[:end], total, *row[end:]] for row, total in zip(table, sums, strict=True)]
        for heading in others:
            fits = _without(fits, heading)
    return fits, others


def _widths(table: Table) -> list[int]:
    return [max(len(row[column]) for row in table) for column in range(len(table[0]))]


def _over(table: Table, width: int, *, whole_names: bool = False) -> int:
    """How much too wide the table is, with names whole or as short as they may be."""
    widths = _widths(table)
    names = widths[0] if whole_names else min(widths[0], _NAME_CHARS_MIN)
    return names + sum(widths[1:]) + len(_GAP) * (len(widths) - 1) - width


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return _GAP.join([name.ljust(widths[0]), *cells]).rstrip()
