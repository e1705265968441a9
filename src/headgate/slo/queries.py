"""PromQL queries for panels."""

from typing import Final

OVER: Final = "5m"

Query = tuple[str, str]
"""Expression and legend."""


def rate(metric: str, *labels: str, only: str = "") -> Query:
    """Per-second rate of a counter."""
    return f"{_sum(labels)} (rate({metric}{only}[{OVER}]))", _legend(labels)


def gauge(metric: str, *labels: str, of: str = "sum") -> Query:
    return f"{of}{_by(labels)} ({metric})", _legend(labels)


def tail(metric: str, quantile: float, *labels: str) -> Query:
    """Quantile of a histogram."""
    by = ", ".join((*labels, "le"))
    name = f"p{quantile * 100:g}"
    found = f"histogram_quantile({quantile:g}, sum by ({by}) (rate({metric}_bucket[{OVER}])))"
    return found, f"{_legend(labels)} {name}" if labels else name


def share(part: str, whole: str, *labels: str, part_only: str = "") -> Query:
    above, below = rate(part, *labels, only=part_only)[0], rate(whole, *labels)[0]
    return f"{above} / ({below} > 0)", _legend(labels)


def _sum(labels: tuple[str, ...]) -> str:
    return f"sum{_by(labels)}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _legend(labels: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)
