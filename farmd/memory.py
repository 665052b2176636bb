"""Giving memory back: what a long-lived process must tell glibc's allocator.

A farm reads trees of many megabytes now and then and keeps only a fraction of each. By default glibc raises
the size from which it maps blocks on their own with every such block that is freed, until whole answers
live in the heap and what is freed below newer things stays with the process for ever.
"""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 128 * 1024


def return_large_blocks() -> bool:
    """Have every large block mapped on its own, so that freeing it gives it back at once.

    Returns whether the C library took it; other libraries than glibc have their own ways.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES) == 1
