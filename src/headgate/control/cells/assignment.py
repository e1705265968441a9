"""Assigns tenants to cells by shuffle sharding.

Each pair of a tenant and a cell has a pseudorandom score (weighted rendezvous hashing). The cells with the highest
scores are the tenant's cells, in order of preference. The score does not depend on the other cells, so a tenant moves
only if one of its own cells is removed or a new cell has a higher score than one of them.

Only the first component of a tenant's path counts: `acme/search` has the cells of `acme`, because the limits of `acme`
apply to both.
"""

import math
from collections.abc import Iterable
from hashlib import blake2b

from headgate.control.cells.options import CellFleet, FleetCell, FleetCellState

_SCORE_BYTES = 8


def account_of(tenant: str) -> str:
    """Returns the first component of a tenant's path, which determines the cells."""
    return tenant.partition("/")[0]


def cells_of(tenant: str, fleet: CellFleet) -> tuple[str, ...]:
    """Returns the names of a tenant's cells in order of preference."""
    account = account_of(tenant)
    active = {each.name: each for each in fleet.cells if each.state is FleetCellState.ACTIVE}
    pinned = tuple(name for name in fleet.pins.get(account, ()) if name in active)
    return pinned or ranked(account, active.values())[: fleet.cells_per_tenant]


def ranked(account: str, cells: Iterable[FleetCell]) -> tuple[str, ...]:
    """Returns the names of all cells, sorted by descending score."""
    scores = sorted((-_score(account, each), each.name) for each in cells)
    return tuple(name for _, name in scores)


def _score(account: str, cell: FleetCell) -> float:
    digest = blake2b(f"{account}\0{cell.name}".encode(), digest_size=_SCORE_BYTES).digest()
    # Uniform in (0, 1). Its logarithm gives each cell the highest score with a probability proportional to its weight.
    drawn = (int.from_bytes(digest) + 0.5) / 2 ** (8 * _SCORE_BYTES)
    return -cell.weight / math.log(min(drawn, 1 - 2**-53))
