"""Compares two engine profiles by the goodput per dollar of the same simulated scenario.

Both profiles serve the same arrivals of each seed, so the ratio of each pair varies less than either side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headgate.model.engine_profile import EngineProfile
from headgate.model.policy import Policy
from headgate.model.speed import EngineSpeed
from headgate.model.units import EndpointId, Instant, PoolName
from headgate.simulation.options import EngineSpec
from headgate.simulation.report.confidence import RatioInterval, interval_of

_SECONDS_PER_HOUR: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """Result of one run with one of the profiles."""

    good: int
    """Requests that met their objectives."""
    arrivals: int
    seconds: float
    """Duration of the traffic."""
    usd_per_hour: float
    """Price of all engines."""

    @property
    def usd(self) -> float:
        return self.usd_per_hour * self.seconds / _SECONDS_PER_HOUR

    @property
    def good_per_usd(self) -> float:
        return self.good / self.usd

    @property
    def attainment(self) -> float:
        return self.good / max(1, self.arrivals)


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    a: tuple[FleetResult, ...]
    b: tuple[FleetResult, ...]
    """Results by seed."""

    @property
    def interval(self) -> RatioInterval | None:
        """B's goodput per dollar relative to A's. None if a run has no good request, or all runs are equal."""
        if any(each.good == 0 for each in (*self.a, *self.b)):
            return None
        return interval_of([b.good_per_usd / a.good_per_usd for a, b in zip(self.a, self.b, strict=True)])

    def verdict(self) -> str:
        """One sentence."""
        interval = self.interval
        if interval is None:
            served = [name for name, runs in (("A", self.a), ("B", self.b)) if all(each.good for each in runs)]
            return (
                f"{served[0]} wins: the other profile has runs without any good request."
                if served
                else ("No verdict: both profiles have runs without any good request. Lower the scenario's load.")
            )
        interval_text = f"95 % confidence interval {interval.low - 1:+.1%} to {interval.high - 1:+.1%}"
        range_text = f"{interval.estimate - 1:+.1%} ({interval_text})"
        if interval.low > 1:
            return f"B wins: its goodput per dollar differs from A's by {range_text}."
        if interval.high < 1:
            return f"A wins: B's goodput per dollar differs from A's by {range_text}."
        return f"No difference shown: B's goodput per dollar differs from A's by {range_text}."


def with_profile(
    engines: Sequence[EngineSpec], policy: Policy, profile: EngineProfile, *, pool: str | None, count: int | None
) -> tuple[tuple[EngineSpec, ...], Policy]:
    """Replaces the engines of one pool, or of all pools. `count` is the number of engines per pool; None keeps it.

    The scheduler's view of the pools follows the new engines. An engine gets at most as many requests at once as it
    runs.
    """
    replaced = {each.pool for each in engines if pool in (None, each.pool)}
    found = [each for each in engines if each.pool not in replaced]
    for name in sorted(replaced):
        found += _engines(name, [each for each in engines if each.pool == name], profile, count)
    pools = tuple(
        replace(each, speed=_speed(profile), kv_tokens=profile.kv_blocks * profile.block_tokens)
        if each.name in replaced
        else each
        for each in policy.pools
    )
    return tuple(found), replace(policy, pools=pools)


def _engines(
    pool: PoolName, engines: Sequence[EngineSpec], profile: EngineProfile, count: int | None
) -> list[EngineSpec]:
    number = len(engines) if count is None else count
    return [
        replace(
            engines[each] if each < len(engines) else replace(engines[0], starts_at=Instant(0)),
            id=EndpointId(f"{pool}/{each}"),
            profile=profile,
            in_flight_max=min(engines[0].in_flight_max, profile.sequences_max),
        )
        for each in range(number)
    ]


def _speed(profile: EngineProfile) -> EngineSpeed:
    return EngineSpeed(
        step_ps=profile.step_ps,
        prefill_token_ps=profile.prefill_token_ps,
        decode_sequence_ps=profile.decode_sequence_ps,
        kv_token_ps=profile.kv_token_ps,
        attention_ps=profile.attention_ps,
        chunk_tokens=profile.chunk_tokens,
    )
