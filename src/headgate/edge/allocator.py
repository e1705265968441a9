"""Settings of the C allocator for a process that holds large request bodies.

glibc moves large blocks into its heap after the first of them was freed. Bodies that grow there side by side leave gaps
behind, and the process takes up to half more memory than its bodies have bytes. With a fixed threshold each large block
has a mapping of its own, which grows in place and is returned to the system when it is freed.
"""

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
MAPPED_BYTES_MIN: Final = 256 * 1024
"""Blocks of this size or more are mapped on their own."""


def map_large_blocks() -> bool:
    """Fixes the threshold. False where the C library has no such setting."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) == 1
