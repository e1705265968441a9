"""Finds the metrics and labels in PromQL expressions."""

import re
from collections.abc import Iterable

from headgate.telemetry.catalogue import BY_NAME
from headgate.telemetry.metric_definition import MetricType

OF_PROMETHEUS = frozenset({"instance", "le"})
"""Labels that the catalogue does not list because Prometheus or a histogram adds them."""

_SERIES = re.compile(r"(?<![\w:])(headgate_\w+)(\{[^}]*\})?")
_RECORDED = re.compile(r"(?<![\w:])(\w+:headgate_\w+:\w+)")
_GROUPED = re.compile(r"\b(?:by|on|ignoring|group_left)\s*\(([^)]*)\)")


def metrics_in(expr: str) -> set[str]:
    """Metric names, excluding the histogram suffixes if the catalogue lists the histogram."""
    return {_metric(name) for name, _ in _SERIES.findall(expr)}


def recorded_in(expr: str) -> set[str]:
    return set(_RECORDED.findall(expr))


def _metric(series: str) -> str:
    for ending in ("_bucket", "_sum", "_count"):
        name = series.removesuffix(ending)
        if name != series and name in BY_NAME and BY_NAME[name].type is MetricType.HISTOGRAM:
            return name
    return series


def problems_in(expr: str) -> list[str]:
    """Unknown metrics, and labels that none of the expression's metrics have."""
    found: list[str] = []
    for series, selector in _SERIES.findall(expr):
        name = _metric(series)
        if name not in BY_NAME:
            found.append(f"unknown metric {name}")
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
