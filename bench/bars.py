"""What must the relay's figures be?

A machine that others use makes every absolute figure worse and leaves ratios nearly as they are; CI therefore holds
ratios to the bar itself and absolute figures to twice the bar.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    figure: str
    most: float
    absolute: bool

    @property
    def most_in_ci(self) -> float:
        return 2 * self.most if self.absolute else self.most


BARS = (
    Bar("chunk_ratio_to_nginx", 3.0, absolute=False),
    Bar("cpu_us_per_request", 400.0, absolute=True),
    Bar("added_ttft_ms_p50", 1.5, absolute=True),
    Bar("added_ttft_ms_p99", 6.0, absolute=True),
)


def missed_in_ci(figures: Mapping[str, float]) -> list[str]:
    """One sentence for each bar that CI's measure says is missed."""
    return [_sentence(bar, figures[bar.figure]) for bar in BARS if not figures[bar.figure] <= bar.most_in_ci]


def _sentence(bar: Bar, figure: float) -> str:
    twice = f", twice the bar of {bar.most:g}" if bar.absolute else ""
    return f"{bar.figure} is {figure:g}, and at most {bar.most_in_ci:g} is allowed{twice}"
