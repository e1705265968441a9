"""How old is what this process knows of tenants and keys?"""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.page import Family, single


@dataclass(frozen=True, slots=True)
class DirectoryFigures:
    fresh: bool
    """Whether a key that is not known here does not exist."""
    age_s: float
    """Since the database last said that this is all; infinite as long as it never did."""
    tenants: int
    keys: int
    reconnects: int


def directory_metrics(directory: DirectoryFigures) -> Iterator[Family]:
    yield single("headgate_directory_fresh", directory.fresh)
    yield single("headgate_directory_age_seconds", directory.age_s)
    yield single("headgate_directory_tenants", directory.tenants)
    yield single("headgate_directory_keys", directory.keys)
    yield single("headgate_directory_reconnects_total", directory.reconnects)
