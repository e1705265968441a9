"""Span attribute names.

OpenTelemetry's semantic conventions for generative AI are not stable: names change between versions. The version is
therefore configurable, and Headgate's own set of names can be selected instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headgate.telemetry.traces.options import NamingConvention


@dataclass(frozen=True, slots=True)
class AttributeNames:
    engine: str
    model: str
    model_served: str
    prompt_tokens: str
    output_tokens: str
    semantic_conventions: bool = True
    """Whether operation names, error types and the names of attempt spans follow the conventions."""


_GEN_AI: Final = (
    "gen_ai.request.model",
    "gen_ai.response.model",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
)
_PLAIN: Final = ("headgate.model", "headgate.model_served", "headgate.prompt_tokens", "headgate.output_tokens")
ATTRIBUTE_NAMES: Final[Mapping[NamingConvention, AttributeNames]] = {
    NamingConvention.GEN_AI: AttributeNames("gen_ai.provider.name", *_GEN_AI),
    NamingConvention.GEN_AI_1_36: AttributeNames("gen_ai.system", *_GEN_AI),
    NamingConvention.PLAIN: AttributeNames("headgate.engine", *_PLAIN, semantic_conventions=False),
}
UNKNOWN_ENGINE: Final = "_OTHER"
"""Engine name for a pool that is no longer configured."""
