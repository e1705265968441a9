"""Builder for share assignments. Not in `testing/builders.py`, because processes of earlier versions import that."""

from headgate.core.events import SharesAssigned, TenantShare
from headgate.model.persistent_map import PersistentMap


def shares_assigned(floor_ppm: int, *shares: TenantShare) -> SharesAssigned:
    return SharesAssigned(floor_ppm, PersistentMap({each.account: each for each in shares}))
