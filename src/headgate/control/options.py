"""Options for reloads and budget notifications, and the stamps of watched files."""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class ReloadTrigger(StrEnum):
    WATCH = "watch"
    """A changed file is reloaded automatically. SIGHUP works too."""
    SIGNAL = "signal"
    """Files are reloaded only on SIGHUP."""


FileStamp = tuple[int, int, int, int] | None
"""Device, inode, size and modification time of a file. None if the file does not exist."""


def stamp_of(status: os.stat_result) -> FileStamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def file_stamp(path: Path) -> FileStamp:
    try:
        return stamp_of(path.stat())
    except (OSError, ValueError):  # A path from the configuration may contain a zero byte.
        return None


@dataclass(frozen=True, slots=True)
class NotificationOptions:
    webhook: str = field(repr=False)
    """Complete URL. It may contain a secret, so it is never shown."""
    webhook_shown: str
    """The URL's host, for messages."""
