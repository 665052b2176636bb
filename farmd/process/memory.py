"""Settings of glibc's allocator and Python's collector for a long-lived process.

A farm reads trees of many megabytes now and then and keeps only a fraction of each. By default glibc raises
its threshold for separately mapped blocks with every such block that is freed, until whole answers are in the
heap, and memory that is freed below newer blocks never returns to the system.

The farm keeps hundreds of thousands of records and thousands of waiting tasks, which are no garbage. By
default Python's collector scans all of them again and again while a fleet is read: that took a sixth of a
cold start, and blocked the event loop meanwhile.
"""

from __future__ import annotations

import ctypes
import gc

M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 128 * 1024
COLLECT_AFTER = (10_000, 5, 100)


def return_large_blocks() -> bool:
    """Map every large block separately, so that freeing it returns it to the system at once.

    Returns whether the C library accepted the setting; only glibc has it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES) == 1


def collect_rarely() -> None:
    """Collect garbage cycles only after many new objects, not after every few hundred."""
    gc.set_threshold(*COLLECT_AFTER)
