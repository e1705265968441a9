"""What do spans tell of a request beside what is in its record?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.telemetry.stages.budget import ClassBudget
from headgate.telemetry.traces.names import Names


@dataclass(frozen=True, slots=True)
class Known:
    names: Names = Names.GEN_AI
    budgets: Mapping[str, ClassBudget] = field(default_factory=dict[str, ClassBudget])
    """What each class allows its requests."""
    engines: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the endpoints of each pool run."""


NOTHING_KNOWN: Final = Known()
