"""What are the facts of a request called in its spans?

OpenTelemetry's conventions for generative AI are not stable: names change with their versions, and whoever reads traces
may be behind or ahead. So it is configured by which version spans are named, and one set of names is our own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headgate.telemetry.traces.options import Names


@dataclass(frozen=True, slots=True)
class Words:
    engine: str
    model: str
    model_served: str
    prompt_tokens: str
    output_tokens: str
    conventional: bool = True
    """Whether operations and errors are told, and attempts named, as the conventions have it."""


_GEN_AI: Final = (
    "gen_ai.request.model",
    "gen_ai.response.model",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
)
_PLAIN: Final = ("headgate.model", "headgate.model_served", "headgate.prompt_tokens", "headgate.output_tokens")
WORDS: Final[Mapping[Names, Words]] = {
    Names.GEN_AI: Words("gen_ai.provider.name", *_GEN_AI),
    Names.GEN_AI_1_36: Words("gen_ai.system", *_GEN_AI),
    Names.PLAIN: Words("headgate.engine", *_PLAIN, conventional=False),
}
UNKNOWN_ENGINE: Final = "_OTHER"
"""Of a pool that is no longer configured."""
