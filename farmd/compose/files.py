"""Files of a compose service: its variables, configs, secrets and mounts."""

from __future__ import annotations

import base64
import hashlib
import os.path
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TypeVar

from msgspec.structs import replace

from farmd.compose import schema
from farmd.compose.interpolation import read_into, read_raw_into, warnings
from farmd.compose.load import MAX_COPY_BYTES, Files
from farmd.compose.scalars import file_mode, refuse, size, word, words
from farmd.deploy.spec import (
    BindOptions,
    ConfigSpec,
    FileMount,
    TmpfsOptions,
    VolumeDriver,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
from store import config as config_keys
from store import secrets
from store.errors import InputInvalid

# Variables, configs and secrets of a compose service: from files, and from the caller's variables.
#
# An external secret is not read here: its file lies on the machines, or its ciphertext in Consul, as does the
# value of an external config. Any other one travels with its service, as a config does, and lies in Consul;
# so it is read only where the person said that this is meant.

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
        if config.external:
            specs[file.source] = _key(f"configs.{file.source}", file.source, config)
            mounts.append(_mount(file, file.target or f"/{file.source}"))
            continue
        if config.name:
            context.warnings.append(
                f"configs.{file.source}.name is ignored: a config is a file of each service that lists it"
            )
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
            mounts.append(_external(file, path, secret.name or file.source))
            continue
        named = f"secrets.{file.source}"
        if not context.with_files:
            refuse(
                named, "none, because it is external",
                "external: true with name: secrets/NAME, which farmctl secret set NAME stores encrypted;"
                " without a name, a file on the machines under /etc/farmd/secrets; or"
                f" {WITH_FILES}, which stores it in Consul, where all readers of manifests can read it",
            )  # fmt: skip
        context.warnings.append(f"{named}: is stored in Consul; everybody who can read manifests can read it")
        made = _travels(named, f"secret-{file.source}", secret, context)
        travelling.append((_mount(file, path, made.name), made))
    return mounts, travelling


def _external(file: schema.File, path: str, name: str) -> FileMount:
    """A sealed secret if its name has a slash, as no file of the machines' folder of secrets has."""
    if "/" not in name:
        return _mount(file, path, name)
    secrets.parsed(name, f"secrets.{file.source}.name")
    return replace(_mount(file, path, posixpath.basename(path)), secret=name)


def _key(where: str, source: str, said: schema.Config) -> ConfigSpec:
    """A config key, whose value is read at the deployment."""
    if said.file or said.environment or said.content is not None:
        refuse(where, "external and a content", "one of them")
    kv = said.name or source
    config_keys.valid_path(kv, f"{where}.name", foreign=True)
    return ConfigSpec(name=source, kv=kv)


def _travels(
    where: str, name: str, said: schema.Config | schema.Secret, context: ProjectContext
) -> ConfigSpec:
    """The content of a file or a variable of the person who deploys."""
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
            where,
            f"{path} of more than {MAX_COPY_BYTES} bytes",
            "fewer bytes; put it on a volume or into the image",
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


# The volumes of a compose service: named ones, folders of the machine, files in memory, and single files.
#
# A relative path names a file of the person who deploys: as ``./file:/path:ro`` and small, it travels with
# the service as a config. Larger files, those that are not mounted read-only, and whole folders travel
# where the person said that this is meant. Else such a source would lie on no machine and is refused.

MAX_FILE_BYTES = 64 * 1024

Found = tuple[list[VolumeSpec], list[VolumeMount], list[tuple[FileMount, ConfigSpec]]]
"""Volumes, mounts, and the files that travel with their content."""
_DEFAULT_FLAGS = {"rw", "noexec", "nosuid", "nodev"}
_OPTIONS = {"exec", "uid", "gid", "nr_inodes", "noatime"}
_KNOWN_FLAGS = {"exec", "suid", "dev", "uid", "gid", "nr_blocks", "nr_inodes", "async", "sync", "atime",
                "noatime", "huge", "mpol"}  # fmt: skip


def mounts_of(where: str, said: schema.Service, context: ProjectContext) -> Found:
    """What a service mounts.

    Raises:
        InputInvalid: naming the entry that cannot be mounted.
    """
    volumes: dict[str, VolumeSpec] = {}
    mounts, files = [], []
    entries = [(f"{where}.volumes[{at}]", mount) for at, mount in enumerate(said.volumes)]
    entries += [
        (f"{where}.tmpfs[{at}]", _tmpfs(f"{where}.tmpfs[{at}]", text, context))
        for at, text in enumerate(said.tmpfs)
    ]
    for place, mount in entries:
        _check_options(place, mount, context)
        if mount.type == "bind" and mount.source.startswith((".", "~")):
            files += _travelling(place, mount, context)
            continue
        spec = _spec(place, mount, context)
        if volumes.setdefault(spec.name, spec) != spec:
            refuse(place, f"{mount.source} with other options", "the same options wherever it is mounted")
        mounts.append(VolumeMount(volume=spec.name, path=mount.target, read_only=mount.read_only))
    return list(volumes.values()), mounts, files


def _check_options(field: str, mount: schema.Mount, context: ProjectContext) -> None:
    """Warn of options that belong to another type of mount."""
    plain = schema.Mount(type=mount.type, target=mount.target)
    for kind in ("bind", "volume", "tmpfs"):
        if kind != mount.type and getattr(mount, kind) != getattr(plain, kind):
            context.warnings.append(f"{field}.{kind} is ignored: the mount is of type {mount.type}")
    if mount.type == "tmpfs" and mount.source:
        context.warnings.append(f"{field}.source is ignored: the mount is of type tmpfs")


def unnamed(kind: str, target: str) -> str:
    """The name that a mount without a named volume has within its service."""
    return f"{kind}-{hashlib.sha256(target.encode()).hexdigest()[:16]}"


def volume_name(project: str, key: str, volume: schema.Volume) -> str:
    """The name of a project's volume on the machines."""
    return volume.name or (key if volume.external else f"{project}_{key}")


def _spec(field: str, mount: schema.Mount, context: ProjectContext) -> VolumeSpec:
    if mount.type == "bind":
        bind = BindOptions(
            host_path=mount.source,
            create_host_path=mount.bind.create_host_path,
            propagation=mount.bind.propagation,
        )
        return VolumeSpec(name=unnamed("bind", mount.target), type="bind", bind=bind)
    if mount.type == "tmpfs":
        memory = TmpfsOptions(size=mount.tmpfs.size, mode=mount.tmpfs.mode, options=mount.tmpfs.options)
        return VolumeSpec(name=unnamed("tmpfs", mount.target), type="tmpfs", tmpfs=memory)
    if mount.type != "volume":
        refuse(field, mount.type, "a mount of type volume, bind or tmpfs")
    if not mount.source:
        refuse(field, mount.target, "a source: anonymous volumes are not supported")
    declared = context.document.volumes.get(mount.source)
    if declared is None:
        known = ", ".join(sorted(context.document.volumes)) or "it has none"
        refuse(field, mount.source, f"a volume of the file ({known})")
    if declared.external and (declared.driver or declared.driver_opts or declared.labels):
        refuse(f"volumes.{mount.source}", "options of a new volume", "none beside external")
    named = bool(declared.driver or declared.driver_opts) and not declared.external
    options = VolumeOptions(
        name=volume_name(context.project, mount.source, declared),
        driver=VolumeDriver(declared.driver, words(declared.driver_opts)) if named else None,
        labels=words(declared.labels) | words(mount.volume.labels),
        no_copy=mount.volume.nocopy,
        subpath=mount.volume.subpath,
    )
    subpath = f"/{options.subpath}" if options.subpath else ""
    return VolumeSpec(name=f"{options.name}{subpath}", volume=options)


def _tmpfs(field: str, text: str, context: ProjectContext) -> schema.Mount:
    target, _, flags = text.partition(":")
    found = dict(each.partition("=")[::2] for each in flags.split(",") if each)
    for name in found.keys() - _DEFAULT_FLAGS - {"size", "mode", "ro"}:
        if name not in _KNOWN_FLAGS:
            refuse(field, name, "size, mode, or ro behind the path")
    ignored = ", ".join(name for name in found if name in _KNOWN_FLAGS - _OPTIONS)
    if ignored:
        context.warnings.append(f"{field}: {ignored} is ignored: the engine does not support it")
    options = [f"{name}={value}" if value else name for name, value in found.items() if name in _OPTIONS]
    try:
        memory = schema.TmpfsMount(
            size=size(found.get("size", "0")), mode=file_mode(found.get("mode", "0")), options=options
        )
    except InputInvalid as error:
        raise InputInvalid(f"{field}: {error.message}", field=field) from error
    return schema.Mount(type="tmpfs", target=target, read_only="ro" in found, tmpfs=memory)


def _travelling(
    field: str, mount: schema.Mount, context: ProjectContext
) -> list[tuple[FileMount, ConfigSpec]]:
    """The files of a relative source, each under its own path."""
    path = path_of(mount.source, context)
    if mount.source.startswith("~") or not (context.with_files or mount.read_only):
        refuse(
            field, mount.source,
            "an absolute path of the machines, a named volume, a file mounted :ro, which is sent along, or"
            f" {WITH_FILES}, which stores the current content in Consul",
        )  # fmt: skip
    if mount.bind.propagation:
        context.warnings.append(f"{field}.bind.propagation is ignored: the file is sent along")
    if not mount.read_only:
        context.warnings.append(
            f"{field}: {mount.source} is sent as it is now; the container cannot change it"
        )
    try:
        names = context.files.below(path) if context.with_files else [""]
    except InputInvalid as error:
        raise InputInvalid(f"{field}: {error.message}", field=field) from error
    if not names:
        refuse(field, f"{mount.source}, which is empty", "files; use a named volume for a data folder")
    found, left = [], MAX_COPY_BYTES if context.with_files else MAX_FILE_BYTES
    for name in names:
        target = posixpath.join(mount.target, name) if name else mount.target
        made = copied(field, target, os.path.join(path, name) if name else path, context)  # noqa: PTH118
        left -= len(made.content)
        if left < 0:
            most = MAX_COPY_BYTES if context.with_files else MAX_FILE_BYTES
            refuse(field, f"{mount.source} of more than {most} bytes", "fewer bytes; put it on a volume")
        found.append((FileMount(name=target, path=target), made))
    return found
