"""Options for storing request records."""

from dataclasses import dataclass

from headgate.model.units import MINUTE, Duration

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordsOptions:
    directory: str
    retention_ns: Duration = Duration(24 * 60 * MINUTE)
    bytes_max: int = 1024 * MIB
