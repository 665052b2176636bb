"""Variables, configs and secrets of a compose service: from files, and from the caller's variables.

No secret is read here: its file lies on the machines.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TypeVar

from farmd.compose import schema
from farmd.compose.env_file import read_into, read_raw_into
from farmd.compose.errors import refuse
from farmd.compose.interpolation import warnings
from farmd.compose.scalars import word
from farmd.compose.sources import Files
from farmd.deploy.model import ConfigSpec, FileMount
from store.errors import InputInvalid

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """What a service's keys refer to: the document, its project's name and folder, files and variables.

    ``awaited``: services that another one waits for until they have completed, with that one. ``warnings``:
    what people should know of the keys that were read.
    """

    document: schema.Project
    project: str
    folder: str
    files: Files
    env: Mapping[str, str]
    awaited: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def environment(where: str, said: schema.Service, context: ProjectContext) -> dict[str, str]:
    """Variables of the files, under those of the service; one without a value is taken from the caller's."""
    own = {
        key: context.env.get(key) if value is None else word(value) for key, value in said.environment.items()
    }
    given = {key: value for key, value in own.items() if value is not None} | dict(context.env)
    found: dict[str, str] = {}
    for at, file in enumerate(said.env_file):
        _read_env_file(f"{where}.env_file[{at}]", file, found, given, context)
    for key, value in own.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def _read_env_file(
    where: str, file: schema.EnvFile, found: dict[str, str], given: Mapping[str, str], context: ProjectContext
) -> None:
    if not file.required and not context.files.exists(_path(file.path, context)):
        return
    text, source = content_of(where, file.path, context), _path(file.path, context)
    if file.format == "raw":
        read_raw_into(found, text, source, given)
    elif file.format:
        refuse(f"{where}.format", file.format, "raw, or none")
    else:
        context.warnings.extend(warnings(read_into(found, text, source, given)))


def configs_of(
    where: str, said: schema.Service, context: ProjectContext
) -> tuple[list[ConfigSpec], list[FileMount]]:
    specs: dict[str, ConfigSpec] = {}
    mounts = []
    for file in said.configs:
        config = _declared(f"{where}.configs", file.source, context.document.configs, "config")
        if config.content is not None:
            content = config.content
        elif config.environment:
            if config.environment not in context.env:
                refuse(f"configs.{file.source}.environment", config.environment, "a variable that is set")
            content = context.env[config.environment]
        elif config.file:
            content = content_of(f"configs.{file.source}.file", config.file, context)
        else:
            refuse(f"configs.{file.source}", "none of them", "file, content or environment")
        specs[file.source] = ConfigSpec(name=file.source, content=content)
        mounts.append(_mount(file, file.target or f"/{file.source}"))
    return list(specs.values()), mounts


def secrets_of(where: str, said: schema.Service, context: ProjectContext) -> list[FileMount]:
    mounts = []
    for file in said.secrets:
        secret = _declared(f"{where}.secrets", file.source, context.document.secrets, "secret")
        if not secret.external:
            refuse(
                f"secrets.{file.source}", "none that is external",
                "external: true, and a file of that name on the machines under /etc/farmd/secrets",
            )  # fmt: skip
        target = file.target or file.source
        path = target if target.startswith("/") else f"/run/secrets/{target}"
        mounts.append(_mount(file, path, secret.name or file.source))
    return mounts


def _declared(where: str, source: str, declared: Mapping[str, T], noun: str) -> T:
    """What the file declares at its top under this name."""
    if source not in declared:
        known = ", ".join(sorted(declared)) or "it has none"
        refuse(where, source, f"a {noun} of the file ({known})")
    return declared[source]


def _mount(file: schema.File, path: str, name: str = "") -> FileMount:
    return FileMount(
        name=name or file.source, path=path, uid=word(file.uid), gid=word(file.gid), mode=file.mode
    )


def content_of(where: str, path: str, context: ProjectContext) -> str:
    """The text of a file that a key names.

    Raises:
        InputInvalid: naming the key.
    """
    try:
        return context.files.read(_path(path, context))
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", **error.fields) from error


def _path(path: str, context: ProjectContext) -> str:
    return os.path.normpath(PurePath(context.folder, path))
