"""Settings that spans need in addition to the request record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.telemetry.stages.stage_budget import ClassStageBudget
from headgate.telemetry.traces.attribute_names import NamingConvention


@dataclass(frozen=True, slots=True)
class SpanSettings:
    conventions: NamingConvention = NamingConvention.GEN_AI
    budgets: Mapping[str, ClassStageBudget] = field(default_factory=dict[str, ClassStageBudget])
    """Time budgets by class."""
    engines: Mapping[str, str] = field(default_factory=dict[str, str])
    """Engine name by pool."""


DEFAULT_SPAN_SETTINGS: Final = SpanSettings()
