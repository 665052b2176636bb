"""The volumes of a compose service: named ones, folders of the machine, files in memory, and single files.

A relative path names a file of the person who deploys: as ``./file:/path:ro`` and small, it travels with the
service as a config. Any other relative source would lie on no machine and is refused.
"""

from __future__ import annotations

import hashlib

from farmd.compose import schema
from farmd.compose.errors import refuse
from farmd.compose.files import Surroundings
from farmd.compose.scalars import file_mode, size, words
from farmd.deploy.model import (
    BindOptions,
    FileMount,
    TmpfsOptions,
    VolumeDriver,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
from store.errors import InputInvalid

MAX_FILE_BYTES = 64 * 1024

Found = tuple[list[VolumeSpec], list[VolumeMount], dict[str, FileMount]]
"""Volumes, mounts, and the files that travel, by their path."""


def mounts_of(where: str, said: schema.Service, around: Surroundings) -> Found:
    """What a service mounts.

    Raises:
        InputInvalid: naming the entry that cannot be mounted.
    """
    volumes: dict[str, VolumeSpec] = {}
    mounts, files = [], {}
    entries = [*said.volumes, *(_tmpfs(where, text) for text in said.tmpfs)]
    for at, mount in enumerate(entries):
        field = f"{where}.volumes[{at}]" if at < len(said.volumes) else f"{where}.tmpfs"
        if mount.type == "bind" and mount.source.startswith((".", "~")):
            files[mount.source] = _travelling(field, mount, around)
            continue
        spec = _spec(field, mount, around)
        volumes[spec.name] = spec
        mounts.append(VolumeMount(volume=spec.name, path=mount.target, read_only=mount.read_only))
    return list(volumes.values()), mounts, files


def unnamed(kind: str, target: str) -> str:
    """The name that a mount without a named volume has within its service."""
    return f"{kind}-{hashlib.sha256(target.encode()).hexdigest()[:16]}"


def volume_name(project: str, key: str, volume: schema.Volume) -> str:
    """The name of a project's volume on the machines."""
    return volume.name or (key if volume.external else f"{project}_{key}")


def _spec(field: str, mount: schema.Mount, around: Surroundings) -> VolumeSpec:
    if mount.type == "bind":
        bind = BindOptions(
            host_path=mount.source,
            create_host_path=mount.bind.create_host_path,
            propagation=mount.bind.propagation,
        )
        return VolumeSpec(name=unnamed("bind", mount.target), type="bind", bind=bind)
    if mount.type == "tmpfs":
        memory = TmpfsOptions(size=mount.tmpfs.size, mode=mount.tmpfs.mode)
        return VolumeSpec(name=unnamed("tmpfs", mount.target), type="tmpfs", tmpfs=memory)
    if mount.type != "volume":
        refuse(field, mount.type, "a mount of type volume, bind or tmpfs")
    if not mount.source:
        refuse(field, mount.target, "a source: an unnamed volume belongs to nobody")
    declared = around.document.volumes.get(mount.source)
    if declared is None:
        known = ", ".join(sorted(around.document.volumes)) or "it has none"
        refuse(field, mount.source, f"a volume of the file ({known})")
    named = bool(declared.driver or declared.driver_opts) and not declared.external
    options = VolumeOptions(
        name=volume_name(around.project, mount.source, declared),
        driver=VolumeDriver(declared.driver, words(declared.driver_opts)) if named else None,
        labels={} if declared.external else words(declared.labels) | words(mount.volume.labels),
        no_copy=mount.volume.nocopy,
        subpath=mount.volume.subpath,
    )
    return VolumeSpec(name=options.name, volume=options)


def _tmpfs(where: str, text: str) -> schema.Mount:
    target, _, options = text.partition(":")
    found = dict(each.partition("=")[::2] for each in options.split(",") if each)
    memory = schema.TmpfsMount()
    try:
        memory = schema.TmpfsMount(size=size(found.get("size", "0")), mode=file_mode(found.get("mode", "0")))
    except InputInvalid as error:
        raise InputInvalid(f"{where}.tmpfs: {error.message}", field=f"{where}.tmpfs") from error
    return schema.Mount(type="tmpfs", target=target, tmpfs=memory)


def _travelling(field: str, mount: schema.Mount, around: Surroundings) -> FileMount:
    path = f"{around.folder}/{mount.source}"
    if mount.source.startswith("~") or not mount.read_only:
        refuse(
            field, mount.source,
            "an absolute path of the machines, a named volume, or a file mounted :ro, which travels along",
        )  # fmt: skip
    length = len(around.files.read(path).encode())
    if length > MAX_FILE_BYTES:
        refuse(field, f"{mount.source} of {length} bytes", f"at most {MAX_FILE_BYTES}; put it on a volume")
    return FileMount(name=mount.source, path=mount.target)
