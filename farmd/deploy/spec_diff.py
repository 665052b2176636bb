"""Whether a running pod still fits its service's spec (uncloud ``EvalContainerSpecChange``): pure.

What must never break: equal specs are up to date in whatever order their files list things, and a spec whose
image is to be pulled always is never up to date, because only the registry knows what its tag means now.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from farmd.deploy import spec
from farmd.deploy.spec import (
    ContainerSpec,
    ContainerSpecStatus,
    LogDriver,
    Resources,
    ServiceSpec,
    VolumeDriver,
    VolumeOptions,
    VolumeSpec,
)
from store.services import UpdateConfig


def eval_container_spec_change(current: ServiceSpec, new: ServiceSpec) -> ContainerSpecStatus:
    """What a pod that was placed for ``current`` needs to fit ``new``.

    Replicas, the way of an update and the hook are no part of a pod.
    """
    if new.container.pull == "always" or not spec.equal(current.ports, new.ports):
        return ContainerSpecStatus.NEEDS_RECREATE
    if _fixed(current) != _fixed(new):
        return ContainerSpecStatus.NEEDS_RECREATE
    if current.container.resources != new.container.resources:
        return ContainerSpecStatus.NEEDS_UPDATE
    return ContainerSpecStatus.UP_TO_DATE


def volume_defaults(volume: VolumeSpec) -> VolumeSpec:
    """The same volume with everything named: a driver without a name is ``local``.

    A missing driver stays missing: such a volume is made with the default, and takes any that exists.
    """
    if volume.type != "volume":
        return volume
    options = volume.volume or VolumeOptions()
    driver = options.driver
    if driver is not None:
        driver = VolumeDriver(driver.name or "local", driver.options)
    return replace(volume, volume=replace(options, name=volume.volume_name, driver=driver))


def _fixed(spec: ServiceSpec) -> ServiceSpec:
    """What only a new container can change, in one order."""
    return replace(
        spec,
        replicas=1,
        labels={},
        container=_fixed_container(spec.container),
        ports=[],
        volumes=sorted(map(volume_defaults, spec.volumes), key=lambda each: each.name),
        configs=sorted(spec.configs, key=lambda each: each.name),
        update=UpdateConfig(),
        pre_deploy=None,
        on_lost="replace",
        unhealthy_after=0.0,
        catalog=None,
        placement=replace(spec.placement, max_per_node=0),
    )


def _fixed_container(container: ContainerSpec) -> ContainerSpec:
    return replace(
        container,
        pull="missing",
        log=container.log or LogDriver(),
        mounts=sorted(container.mounts, key=_key),
        configs=sorted(container.configs, key=_key),
        secrets=sorted(container.secrets, key=_key),
        resources=Resources(
            devices=container.resources.devices,
            device_reservations=container.resources.device_reservations,
            ulimits=container.resources.ulimits,
        ),
    )


def _key(mount: Any) -> tuple[str, ...]:
    return tuple(str(getattr(mount, name)) for name in mount.__struct_fields__)
