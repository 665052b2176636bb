"""The services that a person's files describe: compose files, or files of the house."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from farmd.cli.noun_edit import text_of
from store.errors import InputInvalid
from store.mistakes import nearest

if TYPE_CHECKING:
    from farmd.compose.project import Project


def project_of(
    services: tuple[str, ...],
    paths: tuple[str, ...],
    name: str,
    profiles: tuple[str, ...],
    *,
    with_files: bool = False,
) -> tuple[Project, Callable[[], frozenset[str]]]:
    """The project, and what tells the names of all services of its files, those of other profiles included.

    Raises:
        InputInvalid: naming the file and the field.
    """
    from farmd.compose.disk import Disk, found, variables
    from farmd.compose.load import valid_project
    from farmd.compose.project import Project, read
    from farmd.deploy.resolver import services_of

    files = found(paths, os.environ, Path())
    text = cache(text_of)  # stdin can be read once
    if (own := services_of([(text(path), path) for path in files])) is not None:
        if unknown := sorted(set(services) - own.keys()):
            raise InputInvalid(f"deploy: found no service {unknown[0]!r}{nearest(unknown[0], sorted(own))}")
        if name:
            valid_project(name, "project's name")
        chosen = {each: own[each] for each in services or own}
        return Project(name=name, services=chosen), lambda: frozenset(own)
    unset = list[str]()
    env = variables(os.environ, Path(files[0]).parent, text, unset.extend)
    active = profiles or tuple(filter(None, env.get("COMPOSE_PROFILES", "").split(",")))
    loaded = partial(read, files, Disk(text), env, name=name, with_files=with_files)
    project = loaded(profiles=active, services=services)
    if services:  # who deploys one of them moves it to no other machine
        whole = loaded(profiles=active)
        project = replace(project, together=project.together or whole.together)
    project = replace(project, warnings=(*unset, *project.warnings))
    return project, lambda: frozenset(loaded(profiles=("*",)).services)
