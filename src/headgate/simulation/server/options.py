"""What kind of engine is to be served, and what is to go wrong with it?"""

from dataclasses import dataclass, field
from pathlib import Path

from headgate.model.engine_profile import EngineProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Each rate is the share of requests that it befalls."""

    error_rate: float = 0.0
    """HTTP 500 before anything else."""
    reset_rate: float = 0.0
    """The connection is reset in the middle of the answer."""
    truncate_rate: float = 0.0
    """A stream ends in good order, but without its last chunks."""
    stall_every_s: float = 0.0
    stall_for_s: float = 0.0
    """The whole engine stands still for so long, while /health answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    profile: EngineProfile
    model: str
    """The name it serves."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes any free one."""
    number: int = 0
    """Which of several engines this is; each draws its own faults."""
    seed: int = 0
    speed_up: float = 1.0
    cold_start_s: float = 0.0
    """How long it loads. As with vLLM nothing listens before."""
    faults: Faults = field(default_factory=Faults)
    tells_usage: bool = True
    embeds: bool = True
    image_tokens: int = 0
    """What an image counts for; none makes it a model that takes no images."""
    output_tokens_median: int = 129
    output_tokens_sigma: float = 0.76
    """Answers end by themselves after a lognormal number of tokens; by default as in Azure's conversations of 2023."""
    api_key: str | None = None
    """The key that callers must send; None if no key is required."""
    record: Path | None = None
    """Where to append a line for each request."""
