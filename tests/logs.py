"""The logs of farms and agents in a test's own process.

By default structlog draws each traceback with rich, with all locals: a quarter of a second for one crash.
"""

from __future__ import annotations

from typing import Any

import structlog

PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


def configure(**more: Any) -> None:
    """Log as structlog does by default, but for tracebacks; ``more`` are other settings."""
    structlog.reset_defaults()
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN], **more)
