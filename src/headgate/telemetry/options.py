"""Objectives of a class, which metrics and alerts measure."""

from dataclasses import dataclass

from headgate.model.money import NanoUsd
from headgate.model.units import Duration


@dataclass(frozen=True, slots=True)
class Objectives:
    """Monthly objectives in parts per million of requests; None if there is no such objective."""

    ttft_ppm: int | None = None
    """Streams whose first token arrives within the class's `ttft`."""
    duration_ns: Duration | None = None
    duration_ppm: int | None = None
    """Completed requests that took no longer than `duration_ns`."""
    served_ppm: int | None = None
    """Requests that were served, of those that were not rejected for a mistake of the client."""
    cost_per_1k_tokens: NanoUsd | None = None
    """Average cost of a thousand tokens, prompt and output, over an hour."""
