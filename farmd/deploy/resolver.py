"""A spec with everything decided that people may leave open (uncloud ``ServiceSpecResolver``).

Resolving what is resolved changes nothing; uncloud's added an address each time, and recreated all pods.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from farmd.deploy import port_spec
from farmd.deploy.manifest import manifest_of, mount_name
from farmd.deploy.model import FileMount, LogDriver, ServiceSpec
from farmd.deploy.names import generate_service_name
from farmd.deploy.plan import volume_defaults
from farmd.deploy.validation import validate
from scheduler.constraints import check_placement
from scheduler.errors import PlacementInvalid
from store import manifest_check, variables
from store.errors import InputInvalid
from store.ports import Rng


@dataclass(frozen=True, slots=True)
class ServiceSpecResolver:
    """Resolves specs; ``rng`` draws the names of services without one."""

    rng: Rng

    def resolve(self, spec: ServiceSpec) -> ServiceSpec:
        """The same service, valid, named and with defaults.

        Raises:
            InputInvalid: naming the first field that cannot be.
        """
        validate(spec)
        return resolved(
            replace(spec, name=spec.name or generate_service_name(spec.container.image, self.rng))
        )


def check(spec: ServiceSpec) -> None:
    """Check a service that has a name as resolving it does.

    Raises:
        InputInvalid: naming the first field that cannot be.
    """
    validate(spec)
    resolved(spec)


def resolved(spec: ServiceSpec) -> ServiceSpec:
    """A valid, named spec with the defaults of what it leaves open.

    Raises:
        InputInvalid: naming what agents or the scheduler would refuse.
    """
    found = _by_content(spec)
    full = replace(
        found,
        replicas=spec.replicas if spec.mode == "replicated" else 1,
        ports=sorted(spec.ports, key=port_spec.text),
        container=replace(found.container, log=found.container.log or LogDriver()),
    )
    _check_manifest(full)
    return full


def _check_manifest(spec: ServiceSpec) -> None:
    """Refuse what agents or the scheduler would refuse of its pods."""
    manifest, where = manifest_of(spec), f"services.{spec.name}"
    manifest_check.check(manifest, where)
    variables.check(manifest, f"{where}: ")
    try:
        check_placement(manifest.placement, f"{where}: placement")
    except PlacementInvalid as error:
        raise InputInvalid(error.message, **error.fields) from error


def _by_content(spec: ServiceSpec) -> ServiceSpec:
    """The same service with its volumes and configs named after what they are, in the order of these names.

    What people call them within a file is no part of a pod, so another name there changes no pod.
    """
    known = {each.name: volume_defaults(each) for each in spec.volumes}
    contents = {each.name: each for each in spec.configs}
    volumes, mounts = {}, []
    for mount in sorted(spec.container.mounts, key=lambda each: each.path):
        volume = known[mount.volume]
        subpath = volume.volume.subpath if volume.volume is not None else ""
        name = mount_name(volume.type, volume.volume_name, mount.path, subpath)
        volumes[name] = replace(volume, name=name)
        mounts.append(replace(mount, volume=name))
    configs = [_placed(each, f"/{each.name}") for each in spec.container.configs]
    secrets = [_placed(each, f"/run/secrets/{each.name}") for each in spec.container.secrets]
    files = {each.path: contents[each.name] for each in configs}
    return replace(
        spec,
        volumes=[volumes[name] for name in sorted(volumes)],
        configs=[replace(files[path], name=path) for path in sorted(files)],
        container=replace(
            spec.container,
            mounts=mounts,
            configs=sorted((replace(each, name=each.path) for each in configs), key=_path),
            secrets=sorted(secrets, key=_path),
        ),
    )


def _placed(file: FileMount, path: str) -> FileMount:
    uid, gid = (str(int(number)) if int(number or 0) else "" for number in (file.uid, file.gid))
    return replace(file, path=file.path or path, uid=uid, gid=gid)


def _path(file: FileMount) -> str:
    return file.path
