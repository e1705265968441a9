"""Options for a simulated engine and its injected faults."""

from dataclasses import dataclass, field
from pathlib import Path

from headgate.model.engine_profile import EngineProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """Injected faults. Rates are shares of requests."""

    error_rate: float = 0.0
    """Share of requests that get HTTP 500."""
    reset_rate: float = 0.0
    """Share of requests whose connection is reset in the middle of the response."""
    truncate_rate: float = 0.0
    """Share of streams that end normally but lack their last chunks."""
    stall_every_s: float = 0.0
    stall_for_s: float = 0.0
    """Duration of a hang, which occurs every `stall_every_s` seconds. /health still responds during it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    profile: EngineProfile
    model: str
    """Name of the served model."""
    host: str = "127.0.0.1"
    port: int = 0
    """Port to listen on. 0 selects a free port."""
    number: int = 0
    """Index of this engine among several. Each engine draws its own faults."""
    seed: int = 0
    speed_up: float = 1.0
    cold_start_s: float = 0.0
    """Cold start duration. As with vLLM, the port does not accept connections until then."""
    faults: FaultOptions = field(default_factory=FaultOptions)
    reports_usage: bool = True
    serves_embeddings: bool = True
    image_tokens: int = 0
    """Tokens per image. If 0, the model does not support images."""
    output_tokens_median: int = 129
    output_tokens_sigma: float = 0.76
    """Sigma of the lognormal output length. The defaults fit Azure's 2023 conversation trace."""
    api_key: str | None = None
    """API key that clients must send. None if no key is required."""
    record_path: Path | None = None
    """File to which a line is appended for each request."""
