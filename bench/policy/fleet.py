"""Simulated engines and their pool settings, with speed and memory taken from the engine profile."""

from headgate.model.engine_profile import EngineProfile
from headgate.model.policy import Pool
from headgate.model.speed import EngineSpeed
from headgate.model.units import EndpointId, PoolName
from headgate.simulation.options import EngineSpec

MAIN = PoolName("main")


def speed_of(profile: EngineProfile) -> EngineSpeed:
    return EngineSpeed(
        step_ps=profile.step_ps,
        prefill_token_ps=profile.prefill_token_ps,
        decode_sequence_ps=profile.decode_sequence_ps,
        kv_token_ps=profile.kv_token_ps,
        attention_ps=profile.attention_ps,
        chunk_tokens=profile.chunk_tokens,
    )


def pool(name: PoolName, profile: EngineProfile) -> Pool:
    return Pool(name, speed=speed_of(profile), kv_tokens=profile.kv_blocks * profile.block_tokens)


def engines(
    profile: EngineProfile, count: int, *, pool_name: PoolName = MAIN, in_flight_max: int | None = None
) -> tuple[EngineSpec, ...]:
    """`in_flight_max` defaults to the number of sequences the engine runs at the same time."""
    return tuple(
        EngineSpec(
            id=EndpointId(f"{pool_name}/{number}"),
            pool=pool_name,
            profile=profile,
            in_flight_max=profile.sequences_max if in_flight_max is None else in_flight_max,
        )
        for number in range(count)
    )
