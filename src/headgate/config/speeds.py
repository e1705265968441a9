"""Engine speed for a pool.

The speed is set by a profile, by individual values, or by both. Omitted values come from the profile or have their
defaults.
"""

from typing import Protocol

from headgate.config.engine_profiles import ProfileFinder
from headgate.config.pool_schema import SpeedSection
from headgate.config.problems import SettingPath
from headgate.model.speed import EngineSpeed

DEFAULT_SPEED = EngineSpeed()


class SpeedFigures(Protocol):
    """Speed of an engine profile."""

    @property
    def step_ps(self) -> int: ...
    @property
    def prefill_token_ps(self) -> int: ...
    @property
    def decode_sequence_ps(self) -> int: ...
    @property
    def kv_token_ps(self) -> int: ...
    @property
    def attention_ps(self) -> int: ...
    @property
    def chunk_tokens(self) -> int: ...


def engine_speed(
    section: SpeedSection,
    profiles: ProfileFinder,
    place: SettingPath,
    *,
    default: SpeedFigures = DEFAULT_SPEED,
) -> EngineSpeed:
    base = default
    if section.profile is not None:
        base = profiles.find(section.profile, (*place, "profile")) or default
    return EngineSpeed(
        step_ps=_given(section.step, base.step_ps),
        prefill_token_ps=_given(section.prefill_token, base.prefill_token_ps),
        decode_sequence_ps=_given(section.decode_sequence, base.decode_sequence_ps),
        kv_token_ps=_given(section.kv_token, base.kv_token_ps),
        attention_ps=_given(section.attention, base.attention_ps),
        chunk_tokens=_given(section.chunk_tokens, base.chunk_tokens),
    )


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
