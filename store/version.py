"""The version of this build: for the package, presence records, ``--version``, metrics and ``User-Agent``."""

VERSION = "0.1.0"
USER_AGENT = f"farmd/{VERSION}"
