"""Settings of the C allocator for a process that holds large request bodies.

glibc moves large blocks into its heap after the first of them was freed. Bodies that grow there side by side fragment
the heap, and the process takes up to 50 % more memory than the size of its bodies. With a fixed threshold each large
block has its own mapping, which grows in place and is returned to the system when it is freed.
"""

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
MAPPED_BYTES_MIN: Final = 256 * 1024
"""Minimum size of a block with its own mapping."""


def map_large_blocks() -> bool:
    """Sets a fixed threshold. Returns False if the C library has no such setting."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) == 1
