"""Settings of glibc's allocator for a long-lived process.

A farm reads trees of many megabytes now and then and keeps only a fraction of each. By default glibc raises
its threshold for separately mapped blocks with every such block that is freed, until whole answers are in the
heap, and memory that is freed below newer blocks never returns to the system.
"""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 128 * 1024


def return_large_blocks() -> bool:
    """Map every large block separately, so that freeing it returns it to the system at once.

    Returns whether the C library accepted the setting; only glibc has it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES) == 1
