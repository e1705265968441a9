"""Objectives of a class, used by metrics and alerts."""

from dataclasses import dataclass

from headgate.model.money import NanoUsd
from headgate.model.units import Duration


@dataclass(frozen=True, slots=True)
class Objectives:
    """Monthly objectives in parts per million of requests. None if the class has no such objective."""

    ttft_ppm: int | None = None
    """Share of streams whose first token arrives within the class's `ttft`."""
    duration_ns: Duration | None = None
    duration_ppm: int | None = None
    """Share of completed requests that took no longer than `duration_ns`."""
    availability_ppm: int | None = None
    """Share of requests that were served. Client errors are excluded."""
    cost_per_1k_tokens: NanoUsd | None = None
    """Mean cost over an hour per 1,000 prompt and output tokens."""
