"""The daemon, the node agent and the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package that imports its modules at their first use.

    ``lambda: cli.apply.diff`` then refers to a command that mypy checks, and imports nothing before the call.
    """

    def find(name: str) -> ModuleType:
        full = f"{package}.{name}"
        try:
            __import__(full)  # not importlib, whose imports -X importtime does not report
            return sys.modules[full]
        except ModuleNotFoundError as error:
            if error.name != full:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name) from None

    return find


if not TYPE_CHECKING:
    __getattr__ = submodules(__name__)
