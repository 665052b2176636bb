"""The daemon, the node agent and the command line."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package that imports its modules at their first use.

    ``lambda: cli.apply.diff`` then refers to a command that mypy checks, and imports nothing before the call.
    """

    def find(name: str) -> ModuleType:
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name) from None

    return find
