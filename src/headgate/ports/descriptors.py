"""Whether the file descriptors of this process are nearly used up.

The kernel gives out the lowest free number, so a number close to the limit means that nearly all below it are in use.
"""

import os
import resource
from typing import Final

RESERVE: Final = 64
"""Descriptors kept from callers, for operators, connections to engines and files. Small limits keep an eighth."""


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_scarce(descriptor: int) -> bool:
    """Whether this descriptor, just opened, is one of the last."""
    most = limit()
    return most != resource.RLIM_INFINITY and descriptor >= most - min(RESERVE, most // 8)


def are_scarce() -> bool:
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(descriptor)
    return is_scarce(descriptor)
