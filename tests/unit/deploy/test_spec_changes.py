"""What a pod needs to fit another spec: uncloud's vectors (``TestEvalContainerSpecChange_*``).

Where they differ: absent and empty lists are one value here (uncloud compares reservations strictly), and
``privileged`` and ``pid`` have no third state.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.deploy.spec import (
    BindOptions,
    ConfigSpec,
    ContainerSpec,
    Device,
    DeviceReservation,
    FileMount,
    Hook,
    LogDriver,
    Placement,
    PortSpec,
    Resources,
    ServiceSpec,
    TmpfsOptions,
    Ulimit,
    UpdateConfig,
    VolumeDriver,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
from farmd.deploy.spec_diff import eval_container_spec_change
from store.manifests import HealthCheck, Stop

U, N, X = "up-to-date", "needs-update", "needs-recreate"
MIB = 1024 * 1024


def box(**fields: Any) -> ServiceSpec:
    return ServiceSpec(name="web", container=ContainerSpec(image="nginx:latest", **fields))


def limits(**amounts: Any) -> ServiceSpec:
    return box(resources=Resources(**amounts))


def service(**fields: Any) -> ServiceSpec:
    return ServiceSpec(name="web", container=ContainerSpec(image="nginx:latest"), **fields)


def log(name: str, **options: str) -> ServiceSpec:
    return box(log=LogDriver(name, options))


def volumes(*found: VolumeSpec) -> ServiceSpec:
    return service(volumes=list(found))


def named(name: str = "data", /, **options: Any) -> VolumeSpec:
    return VolumeSpec(name=name, volume=VolumeOptions(**options) if options else None)


def mounts(
    *pairs: tuple[str, str], read_only: bool = False, defined: dict[str, VolumeSpec] | None = None
) -> Any:
    container = ContainerSpec(
        image="a", mounts=[VolumeMount(volume=name, path=path, read_only=read_only) for name, path in pairs]
    )
    found = defined or {name: named(name) for name, _ in pairs}
    return ServiceSpec(name="web", container=container, volumes=list(found.values()))


def reserved(*found: DeviceReservation) -> ServiceSpec:
    return limits(device_reservations=list(found))


R = DeviceReservation
GPU = R(driver="nvidia", count=1, capabilities=[["gpu"]])
BIND = VolumeSpec(name="data", type="bind", bind=BindOptions(host_path="/srv"))

CHANGES: dict[str, tuple[ServiceSpec, ServiceSpec, str]] = {
    "cap_add": (box(), box(cap_add=["NET_ADMIN"]), X),
    "cap_drop": (box(), box(cap_drop=["ALL"]), X),
    "pid": (box(), box(pid="host"), X),
    "privileged": (box(), box(privileged=True), X),
    "sysctls": (box(), box(sysctls={"net.ipv4.ip_forward": "1"}), X),
    "init unset and false": (box(), box(init=False), X),
    "image same": (box(), box(), U),
    "image": (box(), ServiceSpec(name="web", container=ContainerSpec(image="nginx:1.19")), X),
    "command order": (box(command=["a", "b"]), box(command=["b", "a"]), X),
    "env order": (box(env={"A": "1", "B": "2"}), box(env={"B": "2", "A": "1"}), U),
    "env": (box(env={"A": "1"}), box(env={"A": "2"}), X),
    "health": (box(), box(health=HealthCheck(type="command", command=["true"])), X),
    "grace": (box(), box(stop=Stop(grace=30)), X),
    "name": (service(), ServiceSpec(name="other", container=ContainerSpec(image="nginx:latest")), X),
    "mode": (service(), service(mode="global"), X),
    "cpu none": (limits(), limits(), U),
    "cpu set": (limits(), limits(cpu=1.0), N),
    "cpu": (limits(cpu=1.0), limits(cpu=2.0), N),
    "cpu unset": (limits(cpu=1.0), limits(), N),
    "memory same": (limits(memory=100 * MIB), limits(memory=100 * MIB), U),
    "memory set": (limits(), limits(memory=100 * MIB), N),
    "memory reserved": (limits(), limits(memory_reservation=50 * MIB), N),
    "memory reserved more": (limits(memory_reservation=50 * MIB), limits(memory_reservation=100 * MIB), N),
    "memory one of two": (limits(memory=100, memory_reservation=50), limits(memory_reservation=50), N),
    "shared memory": (limits(), limits(shared_memory=64 * MIB), N),
    "pids": (limits(), limits(pids=100), N),
    "log unset is local": (box(), box(log=LogDriver()), U),
    "log set": (box(), log("json-file"), X),
    "log name": (log("json-file"), log("syslog"), X),
    "log empty options": (log("json-file"), box(log=LogDriver("json-file")), U),
    "log option set": (log("json-file"), log("json-file", max_size="10m"), X),
    "log option": (log("json-file", max_size="10m"), log("json-file", max_size="20m"), X),
    "log unset": (log("json-file", max_size="10m"), box(), X),
    "pull to always": (box(), box(pull="always"), X),
    "pull always again": (box(pull="always"), box(pull="always"), X),
    "pull from always": (box(pull="always"), box(pull="missing"), U),
    "pull never": (box(), box(pull="never"), U),
    "placement empty": (service(), service(placement=Placement(machines=[])), U),
    "placement set": (service(), service(placement=Placement(machines=["m1"])), X),
    "placement unset": (service(placement=Placement(machines=["m1"])), service(), X),
    "placement order": (
        service(placement=Placement(machines=["a", "b"])),
        service(placement=Placement(machines=["b", "a"])),
        X,
    ),
    "ports order": (
        service(ports=[PortSpec(container=80), PortSpec(container=81)]),
        service(ports=[PortSpec(container=81), PortSpec(container=80)]),
        U,
    ),
    "ports": (service(ports=[PortSpec(container=80)]), service(), X),
    "ports that cannot be": (
        service(ports=[PortSpec(container=0)]),
        service(ports=[PortSpec(container=0)]),
        X,
    ),
    "volumes same": (volumes(named()), volumes(named()), U),
    "volumes order": (volumes(named("a"), named("b")), volumes(named("b"), named("a")), U),
    "volume added": (volumes(named("a")), volumes(named("a"), named("b")), X),
    "volume first": (volumes(), volumes(named()), X),
    "volume last": (volumes(named()), volumes(), X),
    "volume becomes bind": (volumes(named()), volumes(BIND), X),
    "volume no_copy": (volumes(named(name="data")), volumes(named(no_copy=True)), X),
    "volume its own name": (volumes(named()), volumes(named(name="data")), U),
    "volume driver local": (volumes(named()), volumes(named(driver=VolumeDriver("local"))), X),
    "volume driver unnamed": (
        volumes(named(driver=VolumeDriver())),
        volumes(named(driver=VolumeDriver("local"))),
        U,
    ),
    "volume driver": (volumes(named()), volumes(named(driver=VolumeDriver("custom"))), X),
    "volume name": (volumes(named()), volumes(named(name="data-new")), X),
    "bind create": (
        volumes(BIND),
        volumes(
            VolumeSpec(name="data", type="bind", bind=BindOptions(host_path="/srv", create_host_path=True))
        ),
        X,
    ),
    "bind propagation": (
        volumes(BIND),
        volumes(
            VolumeSpec(name="data", type="bind", bind=BindOptions(host_path="/srv", propagation="rprivate"))
        ),
        X,
    ),
    "tmpfs size": (
        volumes(VolumeSpec(name="t", type="tmpfs", tmpfs=TmpfsOptions(size=MIB))),
        volumes(VolumeSpec(name="t", type="tmpfs", tmpfs=TmpfsOptions(size=2 * MIB))),
        X,
    ),
    "mounts order": (mounts(("a", "/a"), ("b", "/b")), mounts(("b", "/b"), ("a", "/a")), U),
    "mount added": (mounts(("a", "/a")), mounts(("a", "/a"), ("a", "/b")), X),
    "mount removed": (mounts(("a", "/a"), ("a", "/b")), mounts(("a", "/a")), X),
    "mount path": (mounts(("a", "/a")), mounts(("a", "/b")), X),
    "mount read only": (mounts(("a", "/a")), mounts(("a", "/a"), read_only=True), X),
    "mount alias": (
        mounts(("a", "/a"), defined={"a": named("a", name="v")}),
        mounts(("b", "/a"), defined={"b": named("b", name="v")}),
        X,
    ),
    "config content": (
        service(configs=[ConfigSpec(name="c", content="1")]),
        service(configs=[ConfigSpec(name="c", content="2")]),
        X,
    ),
    "config order": (
        service(configs=[ConfigSpec(name="c"), ConfigSpec(name="d")]),
        service(configs=[ConfigSpec(name="d"), ConfigSpec(name="c")]),
        U,
    ),
    "config mount": (box(), box(configs=[FileMount(name="c")]), X),
    "devices same": (limits(devices=[Device(host="/dev/a")]), limits(devices=[Device(host="/dev/a")]), U),
    "device": (limits(), limits(devices=[Device(host="/dev/a")]), X),
    "device path": (
        limits(devices=[Device(host="/dev/a", container="/dev/b")]),
        limits(devices=[Device(host="/dev/a", container="/dev/c")]),
        X,
    ),
    "ulimits": (limits(), limits(ulimits={"nofile": Ulimit(1, 2)}), X),
    "gpu same": (reserved(GPU), reserved(GPU), U),
    "gpu set": (reserved(), reserved(GPU), X),
    "gpu unset": (reserved(GPU), reserved(), X),
    "gpu count": (reserved(GPU), reserved(R(driver="nvidia", count=2, capabilities=[["gpu"]])), X),
    "gpu capabilities": (
        reserved(GPU),
        reserved(R(driver="nvidia", count=1, capabilities=[["gpu", "compute"]])),
        X,
    ),
    "gpu options": (
        reserved(GPU),
        reserved(R(driver="nvidia", count=1, capabilities=[["gpu"]], options={"a": "b"})),
        X,
    ),
    "gpu order": (reserved(GPU, R(driver="x")), reserved(R(driver="x"), GPU), X),
    "mixed limits": (limits(memory=100), limits(cpu=1.0, memory=200, memory_reservation=50), N),
    "mixed limit and user": (limits(cpu=1.0), box(user="root"), X),
    "mixed limit and gpu": (limits(memory=100), limits(memory=200, device_reservations=[GPU]), X),
    "replicas": (service(replicas=1), service(replicas=3), U),
    "update": (service(), service(update=UpdateConfig(order="stop-first", monitor=0.0)), U),
    "labels": (service(), service(labels={"a": "b"}), U),
    "hook": (service(), service(pre_deploy=Hook(command=["migrate"])), U),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_pod_needs_to_fit_another_spec(name: str) -> None:
    before, after, expected = CHANGES[name]
    assert eval_container_spec_change(before, after) == expected


@pytest.mark.parametrize("name", [name for name in CHANGES if not name.startswith("pull")])
def test_the_way_back_needs_the_same(name: str) -> None:
    before, after, expected = CHANGES[name]
    assert eval_container_spec_change(after, before) == expected


@given(st.sampled_from(sorted(CHANGES)), st.sampled_from(sorted(CHANGES)))
def test_a_spec_that_is_not_pulled_always_fits_itself(one: str, other: str) -> None:
    del other
    for spec in CHANGES[one][:2]:
        if spec.container.pull != "always" and one != "ports that cannot be":
            assert eval_container_spec_change(spec, spec) == U
