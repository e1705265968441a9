"""Options for the read log."""

from dataclasses import dataclass
from typing import Final

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AuditOptions:
    directory: str
    bytes_max: int = 64 * _MIB
