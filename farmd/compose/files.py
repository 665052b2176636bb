"""Variables, configs and secrets of a compose service: from files, and from the caller's variables.

An external secret is not read here: its file lies on the machines. Any other one travels with its service, as
a config does, and lies in Consul; so it is read only where the person said that this is meant.
"""

from __future__ import annotations

import base64
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
from farmd.compose.sources import MAX_COPY_BYTES, Files
from farmd.deploy.spec import ConfigSpec, FileMount
from store.errors import InputInvalid

WITH_FILES = "--with-files"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """What a service's keys refer to: the document, its project's name and folder, files and variables.

    ``awaited``: services that another one waits for until they have completed, with that one. ``with_files``:
    whether secrets and files of the person who deploys may be copied into Consul. ``warnings``: what people
    should know of the keys that were read.
    """

    document: schema.Project
    project: str
    folder: str
    files: Files
    env: Mapping[str, str]
    awaited: Mapping[str, str] = field(default_factory=dict)
    with_files: bool = False
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
    if not file.required and not context.files.exists(path_of(file.path, context)):
        return
    text, source = content_of(where, file.path, context), path_of(file.path, context)
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
            specs[file.source] = ConfigSpec(name=file.source, content=config.content)
        else:
            specs[file.source] = _travels(f"configs.{file.source}", file.source, config, context)
        mounts.append(_mount(file, file.target or f"/{file.source}"))
    return list(specs.values()), mounts


def secrets_of(
    where: str, said: schema.Service, context: ProjectContext
) -> tuple[list[FileMount], list[tuple[FileMount, ConfigSpec]]]:
    """The secrets that lie on the machines, and those that travel with the service.

    Raises:
        InputInvalid: a secret that is not declared, or that would travel without the person's consent.
    """
    mounts, travelling = [], []
    for file in said.secrets:
        secret = _declared(f"{where}.secrets", file.source, context.document.secrets, "secret")
        target = file.target or file.source
        path = target if target.startswith("/") else f"/run/secrets/{target}"
        if secret.external:
            mounts.append(_mount(file, path, secret.name or file.source))
            continue
        named = f"secrets.{file.source}"
        if not context.with_files:
            refuse(
                named, "none that is external",
                f"external: true, with a file of that name on the machines under /etc/farmd/secrets; or"
                f" {WITH_FILES}, which stores it in Consul, where all readers of manifests can read it",
            )  # fmt: skip
        context.warnings.append(f"{named}: is stored in Consul; all who may read manifests can read it")
        made = _travels(named, f"secret-{file.source}", secret, context)
        travelling.append((_mount(file, path, made.name), made))
    return mounts, travelling


def _travels(
    where: str, name: str, said: schema.Config | schema.Secret, context: ProjectContext
) -> ConfigSpec:
    """What a file or a variable of the person who deploys holds."""
    if said.environment:
        if said.environment not in context.env:
            refuse(f"{where}.environment", said.environment, "a variable that is set")
        return ConfigSpec(name=name, content=context.env[said.environment])
    if not said.file:
        refuse(where, "none of them", "file, content or environment")
    return copied(f"{where}.file", name, path_of(said.file, context), context)


def copied(where: str, name: str, path: str, context: ProjectContext) -> ConfigSpec:
    """A file as it travels with its service.

    Raises:
        InputInvalid: naming the key.
    """
    try:
        content = context.files.copy(path)
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", **error.fields) from error
    if len(content) > MAX_COPY_BYTES:
        refuse(
            where, f"{path} of more than {MAX_COPY_BYTES} bytes", "less; put it on a volume or into the image"
        )
    try:
        return ConfigSpec(name=name, content=content.decode())
    except UnicodeDecodeError:
        return ConfigSpec(name=name, content=base64.b64encode(content).decode(), encoding="base64")


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
        return context.files.read(path_of(path, context))
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", **error.fields) from error


def path_of(path: str, context: ProjectContext) -> str:
    """A path of the file as this machine knows it."""
    return os.path.normpath(PurePath(context.folder, path))
