"""A pool's configured speed is reported if its endpoints are measured to be much slower or faster."""

import pytest

from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointState
from headgate.model.policy import Pool
from headgate.model.units import Duration, EndpointId, PoolName
from headgate.telemetry.speed_drift import SpeedDrift, speed_drifts


def an_endpoint(number: int, decode: int, prefill: int) -> EndpointSummary:
    return EndpointSummary(
        EndpointId(f"small/{number}"),
        PoolName("small"),
        EndpointState.READY,
        leaving=False,
        in_flight=0,
        in_flight_max=4,
        decode_percent=decode,
        prefill_percent=prefill,
    )


def a_pool(*, assumed: bool = False, hosted: bool = False) -> Pool:
    return Pool(PoolName("small"), Duration(0), speed_assumed=assumed, hosted=hosted)


@pytest.mark.parametrize(
    ("decode", "prefill", "drifts"),
    [(100, 100, False), (125, 80, False), (126, 100, True), (100, 79, True), (79, 130, True)],
)
def test_difference_above_a_quarter_is_reported_in_both_directions(decode: int, prefill: int, drifts: bool) -> None:
    found = speed_drifts([a_pool()], [an_endpoint(0, decode, prefill)])

    assert found == ([SpeedDrift(PoolName("small"), decode, prefill)] if drifts else [])


def test_one_slow_endpoint_does_not_make_the_pool_drift() -> None:
    assert (
        speed_drifts([a_pool()], [an_endpoint(number, 300 if number == 0 else 100, 100) for number in range(3)]) == []
    )


def test_pools_without_a_configured_speed_or_endpoints_do_not_drift() -> None:
    slow = [an_endpoint(0, 300, 300)]

    assert speed_drifts([a_pool(assumed=True)], slow) == []
    assert speed_drifts([a_pool(hosted=True)], slow) == []
    assert speed_drifts([a_pool()], []) == []
