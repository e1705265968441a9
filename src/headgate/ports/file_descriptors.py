"""Detects when file descriptors are running out.

The kernel assigns the lowest free number, so a number close to the limit means that almost all numbers below it are in
use.
"""

import os
import resource
from typing import Final

RESERVED_MAX: Final = 64
"""Descriptors reserved for operators, engine connections and files. Small limits reserve an eighth instead."""


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_scarce(descriptor: int) -> bool:
    """Returns whether a newly opened descriptor is one of the last ones available."""
    most = limit()
    return most != resource.RLIM_INFINITY and descriptor >= most - min(RESERVED_MAX, most // 8)


def are_scarce() -> bool:
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(descriptor)
    return is_scarce(descriptor)
