"""What people ask for: a change that is prepared, shown and then written; waiting for it; explaining it.

The command line and HTTP both call these. ``mutation`` is one change with its audit record, ``noun`` the
commands of all named records; ``placing``, ``bodies`` and ``remains`` are about owners of pods, ``specs`` and
``documents`` about files, ``difference`` about the fields of a change; ``waiting`` and ``explaining`` read
for people, ``failsafe`` acknowledges a freeze.
"""

# ruff: noqa: F401

from typing import TYPE_CHECKING

from farmd import submodules

# What is referred to as ``commands.parts`` is imported at its first use; mypy knows them by the list.
if TYPE_CHECKING:
    from farmd.commands import difference, finding, fleet, heads, parts, resolving, versions
else:
    __getattr__ = submodules(__name__)
