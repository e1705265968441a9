"""Options of a load test's workload. A workload file is read into these values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.model.ticket import FORM_APIS, Api
from headgate.model.units import ClassName, Duration, TenantId
from headgate.simulation.options import CallerBehaviour, LengthDistribution, Traffic

UNNAMED: Final = "unnamed"
"""Label in reports for a class or tenant without a name."""
LOADTEST_APIS: Final = tuple(api for api in Api if api not in {Api.INFER, Api.DETOKENIZE, *FORM_APIS})
"""APIs that a load test can use. The others need tensors, token IDs or audio."""
CONVERSATION_APIS: Final = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
"""APIs whose requests can repeat a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShape:
    turns: tuple[int, int]
    """Minimum and maximum number of turns, drawn uniformly."""
    think_time_s: float
    """Mean of the exponentially distributed time between a response and the next turn, in seconds."""
    prompt: LengthDistribution
    """Length of each turn's own text."""
    output: LengthDistribution


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSource:
    """One source of requests."""

    traffic: Traffic
    api: Api = Api.CHAT
    tier: str | None = None
    prefix_tokens: int = 0
    prefix_prompts: int = 1
    """Number of different prefixes. Each request starts with one of them."""
    session: SessionShape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestWorkload:
    sources: tuple[WorkloadSource, ...]
    callers: Mapping[ClassName, CallerBehaviour] = field(default_factory=dict[ClassName, CallerBehaviour])
    """Client behaviour by class. Other classes use that of the command line."""
    keys: Mapping[TenantId, str] = field(default_factory=dict[TenantId, str], repr=False)
    duration_ns: Duration | None = None
