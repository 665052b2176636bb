"""Files that farmd brings besides its code: units and their settings, policies of Consul's ACLs.

A wheel has them beside this module (``hatch_build.py``), a checkout where people edit them.
"""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("systemd", "acl")
BESIDE = Path(__file__).with_name("files")
_SOURCES = Path(__file__).parents[2]


def text(name: str) -> str:
    """The content of a file such as ``acl/farm.hcl``."""
    packaged = BESIDE / name
    return (packaged if packaged.is_file() else _SOURCES / name).read_text(encoding="utf-8")
