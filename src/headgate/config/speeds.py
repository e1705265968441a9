"""How fast are the engines of a pool?

By the name of a profile, by numbers of one's own, or by both: a number that the file leaves out is that of the profile
it names, else the usual one.
"""

from collections.abc import Mapping
from typing import Protocol

from headgate.config.problems import Place, Report
from headgate.config.schema import SpeedSection
from headgate.config.shape import suggestion
from headgate.model.speed import EngineSpeed

USUAL = EngineSpeed()


class SpeedFigures(Protocol):
    """What a profile of an engine says of its speed."""

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
    profiles: Mapping[str, SpeedFigures],
    place: Place,
    report: Report,
    *,
    otherwise: SpeedFigures = USUAL,
) -> EngineSpeed:
    base = otherwise
    if section.like is not None:
        known = f"; the profiles are {', '.join(profiles)}"
        if section.like not in profiles:
            hint = suggestion(section.like, profiles, quiet=known)
            report.problem((*place, "like"), f'profile "{section.like}" does not exist{hint}')
        base = profiles.get(section.like, otherwise)
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
