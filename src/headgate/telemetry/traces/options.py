"""Options of tracing: the collector, and the traces that are kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Names(StrEnum):
    GEN_AI = "gen_ai"
    """The conventions from v1.37.0 on, which renamed `gen_ai.system`."""
    GEN_AI_1_36 = "gen_ai_1_36"
    """Those up to v1.36.0."""
    PLAIN = "plain"
    """Ours alone."""


@dataclass(frozen=True, slots=True)
class TracingOptions:
    endpoint: str
    """Complete address that spans are posted to."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers of each post; may contain secrets."""
    sample_ppm: int = 100_000
    """Share of all requests that are kept, whatever their outcome."""
    slowest_ppm: int = 10_000
    """Share of the slowest requests of each class that are kept."""
    kept_per_second_max: int = 200
    names: str = "gen_ai"
    """Version of OpenTelemetry's conventions for generative AI by which spans are named, or our own: `Names`."""
