"""Compose files in memory."""

from __future__ import annotations

import os.path
import random
import textwrap
from collections.abc import Mapping
from typing import Any

from farmd.compose.project import Project, read
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import ServiceSpec
from store.errors import InputInvalid


class Disk:
    """Files by path."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = {os.path.normpath(path): text for path, text in files.items()}

    def read(self, path: str) -> str:
        path = os.path.normpath(path)
        if path not in self._files:
            raise InputInvalid(f"{path}: no such file")
        return self._files[path]

    def copy(self, path: str) -> bytes:
        return self.read(path).encode("utf-8", "surrogateescape")

    def below(self, path: str) -> list[str]:
        path = os.path.normpath(path)
        if path in self._files:
            return [""]
        found = sorted(each.removeprefix(f"{path}/") for each in self._files if each.startswith(f"{path}/"))
        if not found:
            raise InputInvalid(f"{path}: found nothing, expected a file or a folder")
        return found

    def exists(self, path: str) -> bool:
        return os.path.normpath(path) in self._files


def project(
    *texts: str, env: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None, **options: Any
) -> Project:
    """The project ``shop`` of these files, laid over one another."""
    names = [f"shop/{number}.yaml" for number, _ in enumerate(texts)]
    given = dict(zip(names, map(textwrap.dedent, texts), strict=True))
    disk = Disk({**given, **{f"shop/{path}": text for path, text in (files or {}).items()}})
    return read(names, disk, env or {}, **{"name": "shop", **options})


def resolved(found: Project) -> dict[str, ServiceSpec]:
    """Its services as they would be planned."""
    resolver = ServiceSpecResolver(random.Random(1))
    return {name: resolver.resolve(spec) for name, spec in found.services.items()}


def service(keys: str, more: str = "", **options: Any) -> ServiceSpec:
    """The one service ``web`` with these keys."""
    text = "services:\n  web:\n" + textwrap.indent(textwrap.dedent(keys).strip(), "    ") + "\n"
    if "image:" not in keys:
        text = text.replace("  web:\n", "  web:\n    image: nginx\n", 1)
    return project(text + textwrap.dedent(more), **options).services["web"]
