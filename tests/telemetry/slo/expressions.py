"""Which metrics and labels does an expression of PromQL name?"""

import re
from collections.abc import Iterable

from headgate.telemetry.catalogue import BY_NAME
from headgate.telemetry.described import Kind

OF_PROMETHEUS = frozenset({"instance", "le"})
"""Labels that no metric has by itself."""

_SERIES = re.compile(r"(?<![\w:])(headgate_\w+)(\{[^}]*\})?")
_RECORDED = re.compile(r"(?<![\w:])(\w+:headgate_\w+:\w+)")
_GROUPED = re.compile(r"\b(?:by|on|ignoring|group_left)\s*\(([^)]*)\)")


def metrics_in(expr: str) -> set[str]:
    """By the names of the catalogue where it has them, else as they stand."""
    return {_metric(name) for name, _ in _SERIES.findall(expr)}


def recorded_in(expr: str) -> set[str]:
    return set(_RECORDED.findall(expr))


def _metric(series: str) -> str:
    for ending in ("_bucket", "_sum", "_count"):
        name = series.removesuffix(ending)
        if name != series and name in BY_NAME and BY_NAME[name].kind is Kind.HISTOGRAM:
            return name
    return series


def problems_in(expr: str) -> list[str]:
    """Metrics that do not exist, and labels that no metric of the expression has."""
    found: list[str] = []
    for series, selector in _SERIES.findall(expr):
        name = _metric(series)
        if name not in BY_NAME:
            found.append(f"there is no metric {name}")
        else:
            asked = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selector))
            found += _strange(asked, {*BY_NAME[name].labels}, name)
    if not recorded_in(expr):
        known = {label for name in metrics_in(expr) if name in BY_NAME for label in BY_NAME[name].labels}
        found += _strange(grouped_in(expr), known, expr)
    return found


def grouped_in(expr: str) -> set[str]:
    return {label.strip() for inside in _GROUPED.findall(expr) for label in inside.split(",") if label.strip()}


def _strange(asked: Iterable[str], known: set[str], where: str) -> list[str]:
    return [f"{where} has no label {label}" for label in sorted(asked) if label not in known | OF_PROMETHEUS]
