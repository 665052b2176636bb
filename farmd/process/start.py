"""What a process does first, so that its start takes less of the processor.

A start takes 0.4 s, nearly all of it for imports.
"""

from __future__ import annotations

import gc
import sys

COLLECT_AFTER = (10_000, 5, 100)
START_SECONDS = 60.0
"""How long a process collects no garbage: until even a farm of 100,000 controllers has looked at each."""


def begin() -> None:
    """Prepare for the imports of a farm or an agent; what is imported before must be little.

    A process that lives on calls ``collect_rarely`` after its start.
    """
    pause_collection()
    import_structlog()


def import_aiohttp() -> None:
    """Import aiohttp without the machine's certificate authorities; before any other import of it."""
    from store.consul import authorities  # noqa: F401


def pause_collection() -> None:
    """Collect no garbage cycles during a start, which makes many objects that stay, and hardly any cycle."""
    gc.disable()


def collect_rarely() -> None:
    """From now on collect garbage cycles after many new objects, and never among those of the start.

    A farm keeps hundreds of thousands of records and thousands of workers, which are no garbage. By
    default Python's collector scans all of them again and again, and blocks the event loop meanwhile.
    """
    gc.set_threshold(*COLLECT_AFTER)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def import_structlog() -> None:
    """Import structlog as where rich is not installed: it would import rich, to colour tracebacks only."""
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        try:
            import structlog  # noqa: F401
        finally:
            del sys.modules["rich"]
