"""Memory of a long-lived process: what it must tell glibc's allocator and Python's collector.

A farm reads trees of many megabytes now and then and keeps only a fraction of each. By default glibc raises
the size from which it maps blocks on their own with every such block that is freed, until whole answers
live in the heap and what is freed below newer things stays with the process for ever.

What it keeps, hundreds of thousands of records and thousands of waiting tasks, is no garbage. By default
Python's collector looks through all of it again and again while a fleet is read in: that was a sixth of a
cold start, and the loop stands still meanwhile.
"""

from __future__ import annotations

import ctypes
import gc

M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 128 * 1024
COLLECT_AFTER = (10_000, 5, 100)


def return_large_blocks() -> bool:
    """Have every large block mapped on its own, so that freeing it gives it back at once.

    Returns whether the C library took it; other libraries than glibc have their own ways.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES) == 1


def collect_rarely() -> None:
    """Look for garbage cycles when many objects are new, not each few hundred of them."""
    gc.set_threshold(*COLLECT_AFTER)
