"""Cost of a load test, from a price per hour or prices per million tokens."""

from dataclasses import dataclass
from math import inf
from typing import Final

from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.tally import LoadTestTally

HOUR_NS: Final = 3_600 * 10**9
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """Price of the servers under test."""

    usd: float

    def usd_of(self, _: LoadTestTally, elapsed_ns: int) -> float:
        return self.usd * elapsed_ns / HOUR_NS


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Prices per million tokens."""

    prompt_usd: float
    output_usd: float

    @classmethod
    def parse(cls, text: str) -> "TokenPrice":
        """Parses `0.5:1.5`, the prices of prompts and outputs in dollars."""
        try:
            prompt, output = map(float, text.split(":"))
        except ValueError:
            prompt = output = -1.0
        if not (0 <= prompt < inf and 0 <= output < inf):
            raise WorkloadError(f'"{text}" is not two prices; use dollars for prompts and outputs, such as 0.5:1.5')
        return cls(prompt, output)

    def usd_of(self, tally: LoadTestTally, _: int) -> float:
        return (tally.prompt_tokens * self.prompt_usd + tally.output_tokens * self.output_usd) / MILLION


Price = HourlyPrice | TokenPrice


@dataclass(frozen=True, slots=True)
class LoadTestCost:
    usd: float
    usd_per_million_output_tokens: float | None
    usd_per_thousand_good: float | None
    """Cost per thousand good requests."""


def cost_of(price: Price, tally: LoadTestTally, elapsed_ns: int) -> LoadTestCost:
    usd = price.usd_of(tally, elapsed_ns)
    return LoadTestCost(
        usd,
        usd * MILLION / tally.output_tokens if tally.output_tokens else None,
        usd * 1_000 / tally.good if tally.good else None,
    )


def cost_line(cost: LoadTestCost) -> str:
    parts = [
        f"${value:.4g} {what}"
        for value, what in (
            (cost.usd_per_million_output_tokens, "per million output tokens"),
            (cost.usd_per_thousand_good, "per thousand good requests"),
        )
        if value is not None
    ]
    return ": ".join([f"cost ${cost.usd:.4g}", *([", ".join(parts)] if parts else [])])
