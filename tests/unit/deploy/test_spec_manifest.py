"""A spec becomes a manifest that agents take, and comes back as it was."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from farmd.deploy.manifest import compiled, manifest_of, spec_of
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import (
    BindOptions,
    ConfigSpec,
    ContainerSpec,
    FileMount,
    Hook,
    LogDriver,
    Placement,
    PortSpec,
    Resources,
    ServiceSpec,
    TmpfsOptions,
    UpdateConfig,
    VolumeDriver,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
from farmd.deploy.spec_diff import eval_container_spec_change
from store import codec, manifest_check
from store.containers import Device, DeviceReservation, Ulimit
from store.manifests import Constraint, HealthCheck, Manifest, Restart, Spread, Stop, Toleration
from store.services import Catalog

names = st.sampled_from(["a", "b", "data"])
paths = st.sampled_from(["/x", "/y", "/z", "/srv/d"])
texts = st.lists(st.sampled_from(["a", "b c", "$X"]), max_size=2)
pairs = st.dictionaries(names, st.sampled_from(["", "1", "x"]), max_size=2)
sizes = st.integers(0, 2**40)
ids = st.sampled_from(["", "0", "1000"])
files = st.builds(
    FileMount, name=names, path=st.just(""), uid=ids, gid=ids, mode=st.sampled_from([0o400, 0o444])
)
mounts = st.builds(VolumeMount, volume=names, path=paths, read_only=st.booleans())
drivers = st.none() | st.builds(VolumeDriver, st.sampled_from(["", "local", "custom"]), pairs)


def volume(name: str) -> st.SearchStrategy[VolumeSpec]:
    """What a name may stand for."""
    options = st.builds(
        VolumeOptions, name=st.sampled_from(["", "shop_x", "shop_y"]), driver=drivers, labels=pairs,
        no_copy=st.booleans(), subpath=st.sampled_from(["", "sub"]),
    )  # fmt: skip
    return st.one_of(
        st.builds(VolumeSpec, name=st.just(name), volume=st.none() | options),
        st.builds(
            VolumeSpec, name=st.just(name), type=st.just("bind"),
            bind=st.builds(BindOptions, host_path=paths, create_host_path=st.booleans()),
        ),
        st.builds(
            VolumeSpec, name=st.just(name), type=st.just("tmpfs"), tmpfs=st.builds(TmpfsOptions, size=sizes)
        ),
    )  # fmt: skip


def described_once(volumes: list[VolumeSpec]) -> bool:
    """Whether volumes of one name have one driver and the same labels, as a valid spec has."""
    options = [(each.volume_name, each.volume or VolumeOptions()) for each in volumes if each.volume_name]
    said = {name: (one.driver, one.labels) for name, one in options}
    return all(said[name] == (one.driver, one.labels) for name, one in options)


containers = st.builds(
    ContainerSpec,
    image=st.sampled_from(["nginx", "registry.example/team/web:1.4"]),
    command=texts,
    entrypoint=texts,
    env=pairs,
    user=st.sampled_from(["", "1000", "www:www"]),
    working_directory=st.sampled_from(["", "/srv"]),
    pull=st.sampled_from(["always", "missing", "never"]),
    init=st.sampled_from([None, True, False]),
    privileged=st.booleans(),
    networks=st.dictionaries(st.just("shop_default"), st.just(["web"])),
    labels=pairs,
    log=st.none()
    | st.just(LogDriver())
    | st.just(LogDriver(options={"max-size": "2048", "max-file": "2"}))
    | st.just(LogDriver(options={"max-size": "2048"}, to=["journald"])),
    health=st.none() | st.just(HealthCheck(type="command", command=["true"])),
    restart=st.sampled_from([Restart(), Restart(policy="never", initial=2.0)]),
    stop=st.sampled_from([Stop(), Stop(signal="QUIT", grace=60.0)]),
    mounts=st.lists(mounts, max_size=3, unique_by=lambda each: each.path),
    configs=st.lists(files, max_size=2, unique_by=lambda each: each.name),
    secrets=st.lists(files, max_size=2, unique_by=lambda each: each.name),
    resources=st.builds(
        Resources,
        cpu=st.sampled_from([0.0, 1.5]),
        memory=st.sampled_from([0, 2**30]),
        pids=st.integers(0, 9),
        shared_memory=sizes,
        cpu_reservation=st.sampled_from([0.0, 0.5]),
        memory_reservation=sizes,
        devices=st.lists(st.just(Device(host="/dev/a")), max_size=1),
        device_reservations=st.lists(
            st.just(DeviceReservation(count=-1, capabilities=[["gpu"]])), max_size=1
        ),
        ulimits=st.dictionaries(st.just("nofile"), st.just(Ulimit(1, 2))),
    ),
)
ports = st.builds(
    lambda container, published, protocol: PortSpec(
        container=container, published=published, protocol=protocol, mode="host" if published else "ingress"
    ),
    st.sampled_from([80, 443]),
    st.sampled_from([0, 80, 8080]),
    st.sampled_from(["tcp", "udp"]),
)
specs = st.builds(
    ServiceSpec,
    name=st.just("web"),
    labels=pairs,
    container=containers,
    mode=st.sampled_from(["replicated", "global"]),
    replicas=st.integers(0, 9),
    placement=st.builds(
        Placement,
        machines=st.lists(st.sampled_from(["m1", "m2"]), max_size=2),
        max_per_node=st.integers(0, 2),
        constraints=st.lists(st.just(Constraint("zone", "=", ["a"])), max_size=1),
        spread=st.lists(st.just(Spread("rack")), max_size=1),
        tolerations=st.lists(st.just(Toleration("gpu")), max_size=1),
    ),
    ports=st.lists(
        ports, max_size=3, unique_by=lambda each: (each.published or each.container, each.protocol)
    ),
    volumes=st.tuples(volume("a"), volume("b"), volume("data")).map(list).filter(described_once),
    configs=st.just([ConfigSpec(name=name, content=name) for name in ("a", "b", "data")]),
    update=st.sampled_from([UpdateConfig(), UpdateConfig(order="stop-first", parallelism=3)]),
    pre_deploy=st.none() | st.just(Hook(command=["migrate"])),
    on_lost=st.sampled_from(["replace", "wait"]),
    unhealthy_after=st.sampled_from([0.0, 300.0]),
    catalog=st.none() | st.just(Catalog(tags=["edge"])),
).filter(lambda spec: spec.catalog is None or bool(spec.ports))


def resolved(spec: ServiceSpec) -> ServiceSpec:
    return ServiceSpecResolver(random.Random(1)).resolve(spec)


@given(specs)
def test_a_resolved_spec_comes_back_from_its_manifest(spec: ServiceSpec) -> None:
    wanted = resolved(spec)
    manifest, version = compiled(wanted)
    again = codec.decode(Manifest, codec.encode(manifest), "x")
    assert again == manifest
    assert spec_of(manifest, version) == wanted


@given(specs)
def test_resolving_is_idempotent_and_changes_no_pod(spec: ServiceSpec) -> None:
    wanted = resolved(spec)
    assert resolved(wanted) == wanted
    if spec.container.pull != "always":
        assert eval_container_spec_change(spec_of(*compiled(wanted)), wanted) == "up-to-date"


def full() -> ServiceSpec:
    container: dict[str, Any] = {
        "image": "postgres:16",
        "mounts": [
            VolumeMount(volume="data", path="/var/lib/data"),
            VolumeMount(volume="etc", path="/etc/x"),
        ],
        "configs": [FileMount(name="conf", uid="5")],
        "secrets": [FileMount(name="key")],
    }
    return resolved(
        ServiceSpec(
            name="db",
            container=ContainerSpec(**container),
            ports=[
                PortSpec(container=80, published=8080, mode="host"),
                PortSpec(container=80, published=80, mode="host"),
                PortSpec(container=53, protocol="udp"),
            ],
            volumes=[
                VolumeSpec(
                    name="data", volume=VolumeOptions(name="shop_data", driver=VolumeDriver("", {"a": "b"}))
                ),
                VolumeSpec(name="etc", type="bind", bind=BindOptions(host_path="/etc/x")),
                VolumeSpec(name="unused"),
            ],
            configs=[ConfigSpec(name="conf", content="c"), ConfigSpec(name="other")],
            placement=Placement(machines=["m1"]),
        )
    )


def test_the_manifest_is_one_that_agents_take() -> None:
    manifest = manifest_of(full())
    manifest_check.check(manifest, "db")
    assert {name: (port.port, port.container, port.protocol) for name, port in manifest.ports.items()} == {
        "tcp-80": (8080, 80, "tcp"),
        "tcp-80-at-80": (80, 80, "tcp"),
        "udp-53": (0, 53, "udp"),
    }
    assert [(each.label, each.operator, each.values) for each in manifest.placement.constraints] == [
        ("node", "in", ["m1"]),
        ("volume/shop_data", "exists", []),
    ]
    assert [(each.path, each.content, each.uid) for each in manifest.files] == [("/conf", "c", 5)]
    assert [(each.name, each.path) for each in manifest.secrets] == [("key", "/run/secrets/key")]
    assert [(each.type, each.source) for each in manifest.mounts] == [
        ("bind", "/etc/x"), ("volume", "shop_data"),
    ]  # fmt: skip
    assert manifest.volumes["shop_data"].options == {"a": "b"}
