"""Which arguments do the parts of a gateway get from the settings?"""

from headgate.config.settings import Settings
from headgate.edge.connection import Bounds
from headgate.edge.door import DoorLimits
from headgate.model.policy import BatchRules
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND, ClassName, Duration, PoolName


def batch_rules(settings: Settings) -> dict[PoolName, BatchRules]:
    return {pool.name: pool.batching for pool in settings.pools if pool.batching is not None}


def first_token_ns(settings: Settings) -> dict[ClassName, Duration]:
    return {each.name: each.ttft_ns for each in settings.policy.classes if each.ttft_ns is not None}


def scaling_rules(settings: Settings) -> dict[PoolName, ScalingRules]:
    return {pool.name: pool.scaling for pool in settings.pools if pool.scaling is not None}


def metadata_names(settings: Settings) -> tuple[str, ...]:
    return () if settings.ledger is None else settings.ledger.metadata


def sample_ppm(settings: Settings) -> int | None:
    return None if settings.tracing is None else settings.tracing.sample_ppm


def door_limits(settings: Settings) -> DoorLimits:
    limits = settings.limits
    return DoorLimits(
        body_bytes_max=limits.body_bytes_max,
        bodies_bytes_max=limits.bodies_bytes_max,
        requests_open_max=limits.requests_open_max,
        receive_s_max=limits.receive_ns_max / SECOND,
    )


def bounds(settings: Settings) -> Bounds:
    limits = settings.limits
    return Bounds(
        head_bytes_max=limits.head_bytes_max,
        headers_max=limits.headers_max,
        body_bytes_max=limits.body_bytes_max,
        head_s_max=limits.head_ns_max / SECOND,
        receive_s_max=limits.receive_ns_max / SECOND,
        idle_s_max=limits.idle_ns_max / SECOND,
        stall_s_max=limits.client_stall_ns_max / SECOND,
        connections_open_max=limits.connections_open_max,
    )
