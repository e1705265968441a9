"""A class's objectives."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_MILLION: Final = 1_000_000

TTFT: Final = "ttft"
DURATION: Final = "duration"
AVAILABILITY: Final = "availability"


@dataclass(frozen=True, slots=True)
class Objective:
    """Share of a class's requests that must be good."""

    name: str
    ppm: int
    description: str

    @property
    def target_ratio(self) -> float:
        return self.ppm / _MILLION

    @property
    def error_budget(self) -> float:
        return (_MILLION - self.ppm) / _MILLION


@dataclass(frozen=True, slots=True)
class ClassObjectives:
    """A class's objectives. None if not set."""

    name: str
    optimize_for: str
    """What the class protects under overload: latency, quality or cost."""
    ttft_s: float | None = None
    ttft_ppm: int | None = None
    duration_s: float | None = None
    duration_ppm: int | None = None
    availability_ppm: int | None = None
    cost_usd_per_1k_tokens: float | None = None

    def ratio_objectives(self) -> Iterator[Objective]:
        if self.ttft_ppm is not None and self.ttft_s is not None:
            yield Objective(TTFT, self.ttft_ppm, f"first token within {self.ttft_s:g} s")
        if self.duration_ppm is not None and self.duration_s is not None:
            yield Objective(DURATION, self.duration_ppm, f"complete response within {self.duration_s:g} s")
        if self.availability_ppm is not None:
            yield Objective(AVAILABILITY, self.availability_ppm, "successful response")


def percent(ppm: int) -> str:
    return f"{ppm / 10_000:g} %"
