"""PromQL queries for panels."""

from typing import Final

RATE_WINDOW: Final = "5m"

Query = tuple[str, str]
"""Expression and legend."""


def rate(metric: str, *labels: str, matchers: str = "") -> Query:
    """Per-second rate of a counter."""
    return f"{_sum(labels)} (rate({metric}{matchers}[{RATE_WINDOW}]))", _legend(labels)


def gauge(metric: str, *labels: str, aggregation: str = "sum") -> Query:
    return f"{aggregation}{_by(labels)} ({metric})", _legend(labels)


def histogram_quantile(metric: str, quantile: float, *labels: str) -> Query:
    """Quantile of a histogram."""
    by = ", ".join((*labels, "le"))
    name = f"p{quantile * 100:g}"
    found = f"histogram_quantile({quantile:g}, sum by ({by}) (rate({metric}_bucket[{RATE_WINDOW}])))"
    return found, f"{_legend(labels)} {name}" if labels else name


def ratio(part: str, whole: str, *labels: str, part_matchers: str = "") -> Query:
    above, below = rate(part, *labels, matchers=part_matchers)[0], rate(whole, *labels)[0]
    return f"{above} / ({below} > 0)", _legend(labels)


def _sum(labels: tuple[str, ...]) -> str:
    return f"sum{_by(labels)}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _legend(labels: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)
