"""What does losing a zone take from a fleet, and how many endpoints survive it?

The endpoints of a pool are assigned to its zones in turn, so zones of a pool differ by at most one endpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.model.units import EndpointId, PoolName
from headgate.planning.cases import Endpoints

Zones = Mapping[PoolName, tuple[str, ...]]
"""Zones of each pool. A pool without zones is not affected by a loss."""


@dataclass(frozen=True, slots=True)
class ZoneLoss:
    zones: tuple[str, ...]
    """Zones whose loss takes the same number of endpoints from each pool."""
    lost: Endpoints
    left: Endpoints
    endpoints: tuple[EndpointId, ...]
    """Endpoints in the first of the zones."""


def zone_losses(endpoints: Endpoints, zones: Zones) -> list[ZoneLoss]:
    """Returns the loss of each zone. Zones with equal losses are combined."""
    found: dict[Endpoints, list[str]] = {}
    for zone in dict.fromkeys(each for names in zones.values() for each in names):
        found.setdefault(_lost(endpoints, zones, zone), []).append(zone)
    return [
        ZoneLoss(
            tuple(names),
            lost,
            tuple((pool, count - taken) for (pool, count), (_, taken) in zip(endpoints, lost, strict=True)),
            tuple(
                EndpointId(f"{pool}/{number}")
                for pool, count in endpoints
                for number in _numbers(count, zones.get(pool, ()), names[0])
            ),
        )
        for lost, names in found.items()
        if any(taken for _, taken in lost)
    ]


def enough_without_a_zone(needed: Endpoints, zones: Zones) -> Endpoints:
    """Returns the fewest endpoints of which the needed number remains, whichever zone is lost.

    A pool in a single zone cannot survive its loss, so its number stays.
    """
    return tuple((pool, _enough(count, len(zones.get(pool, ())))) for pool, count in needed)


def _enough(needed: int, zones: int) -> int:
    if zones < 2:
        return needed
    count = needed
    while count - -(-count // zones) < needed:
        count += 1
    return count


def _lost(endpoints: Endpoints, zones: Zones, zone: str) -> Endpoints:
    return tuple((pool, len(_numbers(count, zones.get(pool, ()), zone))) for pool, count in endpoints)


def _numbers(count: int, zones: tuple[str, ...], zone: str) -> range:
    """Returns the numbers of the pool's endpoints in the zone."""
    return range(zones.index(zone), count, len(zones)) if zone in zones else range(0)
