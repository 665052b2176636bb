"""The volumes of a compose service: named ones, folders of the machine, files in memory, and single files.

A relative path names a file of the person who deploys: as ``./file:/path:ro`` and small, it travels with the
service as a config. Larger files, those that are not mounted read-only, and whole folders travel where the
person said that this is meant. Else such a source would lie on no machine and is refused.
"""

from __future__ import annotations

import hashlib
import os.path
import posixpath

from farmd.compose import schema
from farmd.compose.errors import refuse
from farmd.compose.files import WITH_FILES, ProjectContext, copied, path_of
from farmd.compose.scalars import file_mode, size, words
from farmd.compose.sources import MAX_COPY_BYTES
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
from store.errors import InputInvalid

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
            refuse(place, f"{mount.source} with other options", "the same ones wherever it is mounted")
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
        context.warnings.append(f"{field}: {ignored} is ignored: the engine does not take it")
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
            "an absolute path of the machines, a named volume, a file mounted :ro, which travels along, or"
            f" {WITH_FILES}, which stores the present content in Consul",
        )  # fmt: skip
    if mount.bind.propagation:
        context.warnings.append(f"{field}.bind.propagation is ignored: the file travels along")
    if not mount.read_only:
        context.warnings.append(
            f"{field}: {mount.source} travels as it is now; the container cannot change it"
        )
    try:
        names = context.files.below(path) if context.with_files else [""]
    except InputInvalid as error:
        raise InputInvalid(f"{field}: {error.message}", field=field) from error
    if not names:
        refuse(field, f"{mount.source}, which is empty", "files; a folder for data is a named volume")
    found, left = [], MAX_COPY_BYTES if context.with_files else MAX_FILE_BYTES
    for name in names:
        target = posixpath.join(mount.target, name) if name else mount.target
        made = copied(field, target, os.path.join(path, name) if name else path, context)  # noqa: PTH118
        left -= len(made.content)
        if left < 0:
            most = MAX_COPY_BYTES if context.with_files else MAX_FILE_BYTES
            refuse(field, f"{mount.source} of more than {most} bytes", "less; put it on a volume")
        found.append((FileMount(name=target, path=target), made))
    return found
