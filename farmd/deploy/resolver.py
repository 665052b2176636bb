"""A spec that is checked and has everything decided that people may leave open."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from farmd.commands import documents
from farmd.deploy import spec
from farmd.deploy import spec as deploy_spec
from farmd.deploy.manifest import manifest_of, mount_name, resolved_log
from farmd.deploy.spec import (
    LOG_DRIVER,
    FileMount,
    PortSpec,
    ServiceSpec,
    VolumeOptions,
    VolumeSpec,
)
from farmd.deploy.spec_diff import volume_defaults
from farmd.services.document import names_pods
from scheduler.constraints import check_placement
from scheduler.errors import PlacementInvalid
from store import catalog, codec, images, manifest_check, variables
from store.errors import InputInvalid, refuse
from store.keys import valid_name
from store.mistakes import shown
from store.ports import Rng

# Names of services that nobody named: the last part of the image's name and four random characters.

_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_ROOM = 63 - 5


def generate_service_name(image: str, rng: Rng) -> str:
    """A name such as ``nginx-x7q2``; characters that no name can have become dashes (uncloud fails there).

    Raises:
        InputInvalid: no reference of an image.
    """
    last = images.parse(image).path.rpartition("/")[2]
    plain = "".join(character if character in _CHARACTERS else "-" for character in last)
    end = "".join(_CHARACTERS[int(rng.uniform(0, len(_CHARACTERS))) % len(_CHARACTERS)] for _ in range(4))
    return f"{plain[:_ROOM].strip('-')}-{end}"


# What a service's spec cannot say, although its types are right: one line, in the order of uncloud's
# checks.
#
# A port that is published without ``@host`` would be uncloud's ingress, which this house leaves to a proxy.

MAX_ID = 2**31 - 1
MAX_REPLICAS = 100_000

Mistake = tuple[str, object, str]
"""(field, found, expected)."""


def validate(spec: ServiceSpec) -> None:
    """Check one service.

    Raises:
        InputInvalid: the first field that cannot be, what was found and what was expected.
    """
    where = f"services.{spec.name}" if spec.name else "service"
    images.parse(spec.container.image, f"{where}: image")
    for field, found, expected in _mounts(spec):
        _refuse(where, field, found, expected)
    if spec.name:
        valid_name(spec.name, f"{where}: name")
    checks = (_count(spec), _log(spec), _ports(spec.ports), _volumes(spec), _files(spec), _hook(spec))
    for field, found, expected in (mistake for check in checks for mistake in check):
        _refuse(where, field, found, expected)
    if spec.catalog is not None and (wrong := catalog.mistake(spec.name, spec.catalog, bool(spec.ports))):
        raise InputInvalid(f"{where}: {wrong}", field="catalog")


def _refuse(where: str, field: str, found: object, expected: str) -> None:
    refuse(f"{where}: {field}", shown(found), expected, field=field)


def _log(spec: ServiceSpec) -> Iterator[Mistake]:
    """Refuse log drivers other than the agent's own, because the agent keeps the output."""
    if (log := spec.container.log) is None:
        return
    if log.name != LOG_DRIVER:
        yield "log.name", log.name, f"{LOG_DRIVER}: the agent keeps the output"
    for name, value in log.options.items():
        if name not in ("max-size", "max-file") or not (
            value.isascii() and value.isdigit() and int(value) > 0
        ):
            yield f"log.options.{name}", value, "max-size in bytes, and max-file, as numbers above 0"


def _count(spec: ServiceSpec) -> Iterator[Mistake]:
    if not 0 <= spec.replicas <= MAX_REPLICAS:
        yield "replicas", spec.replicas, f"0 to {MAX_REPLICAS}"
    if spec.placement.max_per_node < 0:
        yield "placement.max_per_node", spec.placement.max_per_node, "0 (no limit) or more"


def _mounts(spec: ServiceSpec) -> Iterator[Mistake]:
    for mount in spec.container.mounts:
        if not mount.volume:
            yield "mounts", mount.volume, "the name of a volume"
        if not _absolute(mount.path):
            yield "mounts", mount.path, "an absolute path without '..'"


def _ports(ports: Collection[PortSpec]) -> Iterator[Mistake]:
    for port in ports:
        try:
            spec.validate(port)
        except InputInvalid as error:
            yield "ports", spec.text(port), f"a port that can be ({error.message})"
        if port.protocol not in ("tcp", "udp") or port.hostname:
            yield "ports", spec.text(port), "tcp or udp: a proxy serves http and https under host names"
        if port.mode == "ingress" and port.published:
            yield "ports", spec.text(port), f"{port.published}:{port.container}@host, on each machine"
        if port.host_prefix:
            yield "ports", spec.text(port), "one address, such as 127.0.0.1: a network is not supported"
    for place, port in enumerate(ports := list(ports)):
        if spec.conflicting([port], ports[:place]):
            yield "ports", spec.text(port), "each published port once"


def _volumes(spec: ServiceSpec) -> Iterator[Mistake]:
    names: set[str] = set()
    known: dict[str, tuple[object, object]] = {}
    for volume in spec.volumes:
        yield from _volume(volume)
        if volume.name in names:
            yield "volumes", volume.name, "each name once"
        names.add(volume.name)
        options = volume.volume or VolumeOptions()
        described = options.driver, options.labels
        if volume.volume_name and known.setdefault(volume.volume_name, described) != described:
            yield f"volumes.{volume.name}", volume.volume_name, "one driver and the same labels for a volume"
    for mount in spec.container.mounts:
        if mount.volume not in names:
            yield (
                "mounts",
                mount.volume,
                f"one of the service's volumes ({', '.join(sorted(names)) or 'none'})",
            )


def _volume(volume: VolumeSpec) -> Iterator[Mistake]:
    if not volume.name:
        yield "volumes", volume.name, "a name"
    if volume.type == "volume":
        try:
            valid_name(volume.volume_name.replace("_", "-").replace(".", "-").lower())
        except InputInvalid:
            yield (
                "volumes",
                volume.volume_name,
                "1 to 63 of letters, digits, '_', '.' and '-', not at the ends",
            )
    if volume.type == "bind" and (volume.bind is None or not _absolute(volume.bind.host_path)):
        yield (
            f"volumes.{volume.name}",
            volume.bind and volume.bind.host_path,
            "an absolute path of the machine",
        )


def _files(spec: ServiceSpec) -> Iterator[Mistake]:
    names = [config.name for config in spec.configs]
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            yield "configs", name, "a name, each once"
    for mount in spec.container.configs:
        if mount.name not in names:
            yield "configs", mount.name, f"one of the service's configs ({', '.join(names) or 'none'})"
        yield from _owner("configs", mount)
    for mount in spec.container.secrets:
        if not (mount.name or mount.secret) or "/" in mount.name or mount.name.startswith("."):
            yield "secrets", mount.name, "the name of a file in the machine's folder of secrets"
        yield from _owner("secrets", mount)


def _owner(field: str, mount: FileMount) -> Iterator[Mistake]:
    if mount.path and not _absolute(mount.path):
        yield field, mount.path, "an absolute path without '..'"
    for number in (mount.uid, mount.gid):
        if number and not (number.isascii() and number.isdigit() and int(number[:20]) <= MAX_ID):
            yield field, number, "a user or group as a number"


def _hook(spec: ServiceSpec) -> Iterator[Mistake]:
    if spec.pre_deploy is not None and not spec.pre_deploy.command:
        yield "pre_deploy.command", spec.pre_deploy.command, "the program to run"


def _absolute(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/") and "\0" not in path


# A spec with everything decided that people may leave open (uncloud ``ServiceSpecResolver``).
#
# Resolving what is resolved changes nothing; uncloud's added an address each time, and recreated all pods.


@dataclass(frozen=True, slots=True)
class ServiceSpecResolver:
    """Resolves specs; ``rng`` draws the names of services without one.

    ``cluster_domain`` is the domain of Consul's DNS, which has the names of services in Consul's catalogue.
    """

    rng: Rng
    cluster_domain: str = "consul"

    def dns_name(self, spec: ServiceSpec) -> str:
        """The name by which programs find a service; empty if it is not in Consul's catalogue."""
        if spec.catalog is None:
            return ""
        return catalog.dns_name(spec.name, spec.catalog, self.cluster_domain)

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
    """Check a service that has a name as resolving it does, without what it refers to in the store.

    Raises:
        InputInvalid: naming the first field that cannot be.
    """
    validate(spec)
    known = spec.container.sealed
    there = [each for each in spec.container.secrets if not each.secret or each.secret in known]
    configs = [replace(each, kv="") for each in spec.configs]
    resolved(replace(spec, configs=configs, container=replace(spec.container, secrets=there)))


def resolved(spec: ServiceSpec) -> ServiceSpec:
    """A valid, named spec with the defaults of what it leaves open.

    Raises:
        InputInvalid: naming what agents or the scheduler would refuse.
    """
    for each in spec.configs:
        if each.kv:
            expected = "a content: only farmctl deploy and service edit read config keys for services"
            _refuse(f"services.{spec.name}", "configs.kv", each.kv, expected)
    found = _by_content(spec)
    full = replace(
        found,
        replicas=spec.replicas if spec.mode == "replicated" else 1,
        ports=sorted(spec.ports, key=deploy_spec.text),
        container=replace(found.container, log=resolved_log(found.container.log)),
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


# Files of the house that describe services: ``kind: service``, and the fields of ``ServiceSpec``.
#
# They say in the house's words what a compose file says in its own, and take part in the same plan.

KIND = "service"
# At the left edge of YAML, or anywhere in JSON: compose files have no such key there.
_MARK = re.compile(rf"(?:^kind|\"kind\")\s*:\s*['\"]?{KIND}\b", re.MULTILINE)


def services_of(files: Sequence[tuple[str, str]]) -> dict[str, ServiceSpec] | None:
    """The services of some files, (text, source), by name; None if they are no files of the house.

    Raises:
        InputInvalid: naming the file and the field; also where only some documents are of the house.
    """
    found: dict[str, ServiceSpec] = {}
    others = ""
    for text, source in files:
        if not _MARK.search(text):
            others = source
            continue
        for where, data in documents.parse(text, source):
            if not isinstance(data, dict) or data.get("kind") != KIND:
                kind = data.get("kind") if isinstance(data, dict) else data
                raise InputInvalid(f"{where}: kind: found {shown(kind)}, expected {KIND!r}", field="kind")
            if names_pods(data):
                wrong = f"{where}: pods: found, expected container: this document deploys nothing"
                raise InputInvalid(f"{wrong}; farmctl apply -f FILE takes it", field="pods")
            spec = service({key: value for key, value in data.items() if key != "kind"}, where)
            if spec.name in found:
                raise InputInvalid(f"{where}: name: found {spec.name!r} again, expected each name once")
            found[spec.name] = spec
    if found and others:
        raise InputInvalid(f"{others}: found no 'kind: {KIND}', expected one as in the other files")
    return found or None


def service(data: dict[str, Any], where: str) -> ServiceSpec:
    """The service of one document.

    Raises:
        InputInvalid: naming the place and the field.
    """
    fields = dict(data)
    if not fields.get("name"):
        raise InputInvalid(f"{where}: name: missing, expected the name of the service", field="name")
    if isinstance(fields.get("ports"), list):
        fields["ports"] = [_port(each, f"{where}: ports[{at}]") for at, each in enumerate(fields["ports"])]
    spec = codec.parse_input(ServiceSpec, fields, where)
    try:
        validate(spec)
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", **error.fields) from error
    return spec


def _port(entry: Any, where: str) -> Any:
    """A port, whose text is written out."""
    if isinstance(entry, bool) or not isinstance(entry, str | int):
        return entry
    try:
        return msgspec.to_builtins(spec.parse(str(entry)))
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", field="ports") from error
