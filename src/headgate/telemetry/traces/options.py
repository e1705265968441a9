"""Tracing options: the collector and which traces to keep."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class NamingConvention(StrEnum):
    GEN_AI = "gen_ai"
    """Semantic conventions since v1.37.0, which renamed `gen_ai.system`."""
    GEN_AI_1_36 = "gen_ai_1_36"
    """Semantic conventions up to v1.36.0."""
    PLAIN = "plain"
    """Headgate's own names only."""


@dataclass(frozen=True, slots=True)
class TracingOptions:
    endpoint: str
    """Complete URL to which spans are posted."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers sent with each post. They may contain secrets."""
    sample_ppm: int = 100_000
    """Share of all requests to sample regardless of outcome, in millionths."""
    slowest_ppm: int = 10_000
    """Share of each class's requests that count as slowest and are kept, in millionths."""
    traces_per_second_max: int = 200
    semantic_conventions: str = "gen_ai"
    """Attribute names: a version of OpenTelemetry's generative AI conventions or Headgate's own.

    See `NamingConvention`.
    """
