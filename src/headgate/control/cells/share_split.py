"""Divides a tenant's limits among its cells in proportion to demand.

Every cell gets at least the floor. The rest is divided in proportion to demand, so a cell gets more than it asks for
only if every other cell gets at least what it asks for, apart from the floors.
"""

from collections.abc import Mapping
from typing import Final

MILLION: Final = 1_000_000


def split_by_demand(demand: Mapping[str, int], floor_ppm: int, total_ppm: int = MILLION) -> dict[str, int]:
    """Returns each cell's share in parts per million. The sum is at most the total, unless the floors exceed it.

    Without any demand, all shares are equal.
    """
    if not demand:
        return {}
    wanted = dict(demand) if any(demand.values()) else dict.fromkeys(demand, 1)
    shares = dict.fromkeys(demand, floor_ppm)
    left = total_ppm
    # A cell whose proportional share is below the floor gets the floor. That leaves less for the others.
    while wanted:
        whole = sum(wanted.values())
        below = [name for name, each in wanted.items() if left * each < floor_ppm * max(1, whole)]
        if not below:
            shares.update({name: left * each // whole for name, each in wanted.items()})
            break
        for name in below:
            del wanted[name]
        left -= floor_ppm * len(below)
    return shares
