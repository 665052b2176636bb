"""A service's spec as the manifest of its pods and what its owner holds beside it, and back.

What must never break: ``spec_of(compiled(spec)) == spec`` for a resolved spec. A preview compares a file with
what runs by this way back, so a field that got lost here would recreate all pods at each deploy.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from farmd.deploy.spec import (
    BindOptions,
    ConfigSpec,
    ContainerSpec,
    FileMount,
    LogDriver,
    Placement,
    PortSpec,
    Resources,
    ServiceSpec,
    TmpfsOptions,
    VolumeDriver,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
from scheduler.model import PlacementRequest
from scheduler.volumes import Volume as SchedulerVolume
from store import manifests, selectors
from store.containers import Container, File, Limits, Mount, Secret, Volume
from store.manifests import Constraint, Logs, Manifest, Port, Restart, canonical, digest
from store.services import Hook, Version

# What the pod of a service's hook runs.


def of_hook(manifest: Manifest, hook: Hook) -> Manifest:
    """What a hook's pod runs: the service's container with another command, no ports and no check."""
    container = manifest.container
    if container is not None and hook.privileged is not None:
        container = replace(container, privileged=hook.privileged)
    return replace(
        manifest,
        id=f"{manifest.id}-hook",
        command=hook.command,
        args=[],
        env=manifest.env | hook.env,
        user=hook.user or manifest.user,
        container=container,
        ports={},
        health=None,
        restart=Restart(policy="never"),
        resources={},
    )


NODE = "node"
VOLUME = "volume/"
_SAME = tuple(name for name in Container.__struct_fields__ if name in ContainerSpec.__struct_fields__)
_DEVICES = ("shared_memory", "devices", "device_reservations", "ulimits")


def compiled(spec: ServiceSpec) -> tuple[Manifest, Version]:
    """A resolved spec as it is kept: what its pods run, and what no pod knows of."""
    manifest = manifest_of(spec)
    hook = canonical(of_hook(manifest, spec.pre_deploy)) if spec.pre_deploy is not None else b""
    return manifest, Version(
        manifest=digest(canonical(manifest)),
        image=spec.container.image,
        mode=spec.mode,
        replicas=spec.replicas,
        labels=spec.labels,
        max_per_node=spec.placement.max_per_node,
        update=spec.update,
        pre_deploy=spec.pre_deploy,
        hook_manifest=digest(hook) if hook else "",
        on_lost=spec.on_lost or "replace",
        unhealthy_after=spec.unhealthy_after,
        catalog=spec.catalog,
    )


def manifest_of(spec: ServiceSpec, placement: manifests.Placement | None = None) -> Manifest:
    """The manifest of a service's pods; ``placement`` replaces the spec's own, which requires its volumes."""
    said, limits = spec.container, spec.container.resources
    return Manifest(
        id=spec.name,
        runtime="container",
        container=Container(
            **{name: getattr(said, name) for name in _SAME},
            **{name: getattr(limits, name) for name in _DEVICES},
        ),
        command=said.command,
        env=said.env,
        user=said.user,
        working_directory=said.working_directory,
        ports=_ports(spec.ports),
        health=said.health,
        restart=said.restart,
        stop=said.stop,
        logs=_logs(said.log),
        mounts=_mounts(spec),
        volumes=_volumes(spec),
        files=_files(spec),
        secrets=[
            Secret(
                name=each.name,
                path=each.path,
                uid=_id(each.uid),
                gid=_id(each.gid),
                mode=each.mode,
                secret=each.secret,
            )
            for each in said.secrets
        ],
        sealed=said.sealed,
        limits=Limits(memory=limits.memory, cpu=limits.cpu, pids=limits.pids),
        resources=_amounts(limits),
        placement=placement or _placement(spec),
    )


def spec_of(manifest: Manifest, kept: Version) -> ServiceSpec:
    """The resolved spec of a service that is kept."""
    container = manifest.container or Container(image="")
    amounts = manifest.resources
    return ServiceSpec(
        name=manifest.id,
        labels=kept.labels,
        mode=kept.mode,
        replicas=kept.replicas,
        container=ContainerSpec(
            **{name: getattr(container, name) for name in _SAME},
            command=manifest.command,
            env=manifest.env,
            user=manifest.user,
            working_directory=manifest.working_directory,
            log=_log_driver(manifest.logs),
            health=manifest.health,
            restart=manifest.restart,
            stop=manifest.stop,
            mounts=[
                VolumeMount(volume=_name(each), path=each.target, read_only=each.read_only)
                for each in manifest.mounts
            ],
            configs=[_file_mount(each, each.path) for each in manifest.files],
            secrets=[replace(_file_mount(each, each.name), secret=each.secret) for each in manifest.secrets],
            sealed=manifest.sealed,
            resources=Resources(
                cpu=manifest.limits.cpu,
                memory=manifest.limits.memory,
                pids=manifest.limits.pids,
                cpu_reservation=amounts.get("cpu", 0.0),
                memory_reservation=int(amounts.get("memory", 0)),
                **{name: getattr(container, name) for name in _DEVICES},
            ),
        ),
        placement=_said_placement(manifest, kept.max_per_node),
        ports=[
            PortSpec(
                container=each.container or each.port,
                published=each.port,
                protocol=each.protocol,
                mode="host" if each.port else "ingress",
                host_ip=each.host_ip,
            )
            for each in manifest.ports.values()
        ],
        volumes=sorted({_name(each): _volume(each, manifest) for each in manifest.mounts}.values(),
                       key=lambda each: each.name),
        configs=[
            ConfigSpec(name=each.path, content=each.content, encoding=each.encoding)
            for each in manifest.files
        ],
        update=kept.update,
        pre_deploy=kept.pre_deploy,
        on_lost=kept.on_lost,
        unhealthy_after=kept.unhealthy_after,
        catalog=kept.catalog,
    )  # fmt: skip


def placement_of(spec: ServiceSpec) -> manifests.Placement:
    """The rules for its machines, without those of its volumes; a named machine is a node's label."""
    said = spec.placement
    machines = [Constraint(NODE, "in", said.machines)] if said.machines else []
    return manifests.Placement(
        constraints=[*said.constraints, *machines],
        affinity=said.affinity,
        anti_affinity=said.anti_affinity,
        pod_affinity=said.pod_affinity,
        spread=said.spread,
        tolerations=said.tolerations,
    )


def mount_name(kind: str, source: str, target: str, subpath: str = "") -> str:
    """What a mount's volume is called in its service: a named volume's own name, else after its target."""
    return f"{source}{'/' * bool(subpath)}{subpath}" if kind == "volume" else f"{kind}:{target}"


def log_options(logs: Logs) -> dict[str, str]:
    """The options of the house's log driver."""
    return {"max-size": str(logs.max_bytes), "max-file": str(logs.keep + 1)}


def _placement(spec: ServiceSpec) -> manifests.Placement:
    """The rules, and that each of its named volumes lies on the machine."""
    found = placement_of(spec)
    names = sorted({each.volume_name for each in spec.mounted()})
    volumes = [Constraint(f"{VOLUME}{name}", "exists") for name in names]
    return replace(found, constraints=[*found.constraints, *volumes])


def _said_placement(manifest: Manifest, max_per_node: int) -> Placement:
    said = manifest.placement
    own = [rule for rule in said.constraints if not rule.label.startswith(VOLUME)]
    named = [rule for rule in own if rule.label == NODE and rule.operator == "in"]
    return Placement(
        machines=named[-1].values if named else [],
        max_per_node=max_per_node,
        constraints=[rule for rule in own if rule not in named],
        affinity=said.affinity,
        anti_affinity=said.anti_affinity,
        pod_affinity=said.pod_affinity,
        spread=said.spread,
        tolerations=said.tolerations,
    )


def _ports(ports: list[PortSpec]) -> dict[str, Port]:
    """Ports by name: ``tcp-80``, and ``tcp-80-at-8080`` for one of several under which it is published."""
    found: dict[str, Port] = {}
    for each in ports:
        name = f"{each.protocol}-{each.container}"
        name = f"{name}-at-{each.published}" if name in found else name
        protocol: Literal["tcp", "udp"] = "udp" if each.protocol == "udp" else "tcp"
        found[name] = Port(each.published, each.container, protocol, each.host_ip)
    return found


def _mounts(spec: ServiceSpec) -> list[Mount]:
    volumes = {each.name: each for each in spec.volumes}
    found = []
    for mount in spec.container.mounts:
        volume = volumes[mount.volume]
        options, bind, memory = volume.volume, volume.bind, volume.tmpfs
        found.append(
            Mount(
                type=volume.type,
                source=volume.volume_name or (bind.host_path if bind is not None else ""),
                target=mount.path,
                read_only=mount.read_only,
                create=bind is not None and bind.create_host_path,
                propagation=bind.propagation if bind is not None else "",
                no_copy=options is not None and options.no_copy,
                subpath=options.subpath if options is not None else "",
                size=memory.size if memory is not None else 0,
                mode=memory.mode if memory is not None else 0,
                options=memory.options if memory is not None else [],
            )
        )
    return found


def _volumes(spec: ServiceSpec) -> dict[str, Volume]:
    """How named volumes are made; one of which nothing is said has no entry."""
    found = {}
    for each in spec.mounted():
        options = each.volume
        if options is not None and (options.driver is not None or options.labels):
            driver = options.driver or VolumeDriver()
            found[each.volume_name] = Volume(
                driver=driver.name, options=driver.options, labels=options.labels
            )
    return found


def _volume(mount: Mount, manifest: Manifest) -> VolumeSpec:
    name = _name(mount)
    if mount.type == "bind":
        bind = BindOptions(
            host_path=mount.source, create_host_path=mount.create, propagation=mount.propagation
        )
        return VolumeSpec(name=name, type="bind", bind=bind)
    if mount.type == "tmpfs":
        memory = TmpfsOptions(size=mount.size, mode=mount.mode, options=mount.options)
        return VolumeSpec(name=name, type="tmpfs", tmpfs=memory)
    made = manifest.volumes.get(mount.source)
    named = made is not None and (made.driver or made.options)
    options = VolumeOptions(
        name=mount.source,
        driver=VolumeDriver(made.driver, made.options) if made is not None and named else None,
        labels=made.labels if made is not None else {},
        no_copy=mount.no_copy,
        subpath=mount.subpath,
    )
    return VolumeSpec(name=name, volume=options)


def _files(spec: ServiceSpec) -> list[File]:
    known = {each.name: each for each in spec.configs}
    return [
        File(
            path=each.path,
            content=known[each.name].content,
            uid=_id(each.uid),
            gid=_id(each.gid),
            mode=each.mode,
            encoding=known[each.name].encoding,
        )
        for each in spec.container.configs
    ]


def _file_mount(file: File | Secret, name: str) -> FileMount:
    uid, gid = (str(number) if number else "" for number in (file.uid, file.gid))
    return FileMount(name=name, path=file.path, uid=uid, gid=gid, mode=file.mode)


def _amounts(limits: Resources) -> dict[str, float]:
    amounts = {"cpu": limits.cpu_reservation, "memory": float(limits.memory_reservation)}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _logs(driver: LogDriver | None) -> Logs:
    options = driver.options if driver is not None else {}
    default = log_options(Logs())
    return Logs(
        max_bytes=int(options.get("max-size", default["max-size"])),
        keep=int(options.get("max-file", default["max-file"])) - 1,
        to=driver.to if driver is not None else [],
    )


def _log_driver(logs: Logs) -> LogDriver:
    sizes = log_options(logs)
    return LogDriver(options=sizes if sizes != log_options(Logs()) else {}, to=logs.to)


def resolved_log(driver: LogDriver | None) -> LogDriver:
    """A log driver as ``spec_of`` reads it back: both sizes, or none where both are the default."""
    return _log_driver(_logs(driver))


def _name(mount: Mount) -> str:
    return mount_name(mount.type, mount.source, mount.target, mount.subpath)


def _id(text: str) -> int:
    return int(text or 0)


# What the scheduler is asked for the pods of a service.

ALL = selectors.parse("")


def request_of(spec: ServiceSpec, owner: str, *, near: bool = True) -> PlacementRequest:
    """The request for one more pod of a service. It leaves out volumes, which the plan itself places, and
    without ``near`` also the pods with which it stays.
    """
    most = spec.placement.max_per_node or spec.replicas
    placement = placement_of(spec)
    return PlacementRequest(
        manifest=manifest_of(spec, placement if near else replace(placement, pod_affinity=[])),
        selector=ALL,
        owner=owner,
        numbered=True,
        replicas_per_node=max(1, most),
    )


def volumes_of(spec: ServiceSpec, external: frozenset[str] = frozenset()) -> list[SchedulerVolume]:
    """The named volumes that its pods mount, as the scheduler of volumes reads them."""
    found = []
    for each in spec.mounted():
        options, name = each.volume, each.volume_name
        driver = options.driver if options is not None else None
        found.append(
            SchedulerVolume(
                name=name,
                driver=None if driver is None else driver.name,
                options={} if driver is None else driver.options,
                labels={} if options is None else options.labels,
                no_copy=options is not None and options.no_copy,
                subpath="" if options is None else options.subpath,
                external=name in external,
            )
        )
    return found
