"""The version that presence records, ``--version`` and ``farmd_build_info`` show.

Read from the installed package, so that it is written in one place only (pyproject.toml); a checkout
that is run in place without installing says so instead of lying.
"""

from __future__ import annotations

import functools
from importlib import metadata


@functools.cache
def version() -> str:
    """The version of this build, or ``0+checkout``."""
    try:
        return metadata.version("farmd")
    except metadata.PackageNotFoundError:
        return "0+checkout"
