"""farmd's version in the header ``User-Agent``, which operators of Consul see in their logs."""

from __future__ import annotations

from importlib import metadata

try:
    VERSION = metadata.version("farmd")
except metadata.PackageNotFoundError:  # run from a source tree
    VERSION = "0+checkout"

USER_AGENT = f"farmd/{VERSION}"
