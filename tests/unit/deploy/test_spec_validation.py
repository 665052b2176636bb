"""Specs that cannot be, one line each; and specs with everything decided (uncloud ``validate``, ``resolve``).

Where they differ: uncloud refuses published ports that are not http(s), this house those that are: without an
ingress of its own it publishes on each machine, and ``@host`` says so.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from farmd.deploy import spec as deploy_spec
from farmd.deploy.resolver import ServiceSpecResolver, validate
from farmd.deploy.spec import (
    BindOptions,
    ConfigSpec,
    ContainerSpec,
    FileMount,
    Hook,
    LogDriver,
    ServiceSpec,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
from store.errors import InputInvalid
from store.services import Catalog


def spec(name: str = "web", image: str = "nginx", ports: str = "", **fields: Any) -> ServiceSpec:
    inside = {key: fields.pop(key) for key in ("mounts", "configs", "secrets") if key in fields}
    defined = fields.pop("defined", [])
    return ServiceSpec(
        name=name,
        container=ContainerSpec(image=image, **inside),
        ports=[deploy_spec.parse(text) for text in ports.split()],
        configs=defined,
        **fields,
    )


def named(name: str, **options: Any) -> VolumeSpec:
    """The volume ``data``, by another name in the file."""
    return VolumeSpec(name=name, volume=VolumeOptions(name="data", **options))


DATA = VolumeSpec(name="data")
CONFIG = [ConfigSpec(name="c")]

BROKEN: dict[str, tuple[ServiceSpec, str]] = {
    "image": (spec(image="A B"), "services.web: image: found 'A B', expected an image"),
    "mount without volume": (spec(mounts=[VolumeMount(volume="", path="/x")]), "mounts: found ''"),
    "mount path": (
        spec(mounts=[VolumeMount(volume="data", path="x")]),
        "mounts: found 'x', expected an absolute",
    ),
    "name": (spec(name="Web_1"), "name: found 'Web_1', expected 1 to 63"),
    "long name": (spec(name="w" * 64), "expected 1 to 63"),
    "http": (spec(ports="8080/http"), "ports: found '8080/http', expected tcp or udp"),
    "hostname": (spec(ports="app.example.com:8080"), "expected tcp or udp: a proxy"),
    "published without @host": (spec(ports="80:8080"), "expected 80:8080@host, on each machine"),
    "prefix": (spec(ports="10.0.0.0/8:80:8080@host"), "expected one address, such as 127.0.0.1"),
    "one port twice": (spec(ports="80:8080@host 80:8081@host"), "expected each published port once"),
    "volume twice": (spec(volumes=[DATA, DATA]), "volumes: found 'data', expected each name once"),
    "volume described twice": (
        spec(volumes=[named("a", labels={"x": "1"}), named("b")]),
        "volumes.b: found 'data', expected one driver and the same labels for a volume",
    ),
    "volume name": (spec(volumes=[VolumeSpec(name="a/b")]), "volumes: found 'a/b'"),
    "bind": (
        spec(volumes=[VolumeSpec(name="b", type="bind")]),
        "volumes.b: found nothing, expected an absolute",
    ),
    "relative bind": (
        spec(volumes=[VolumeSpec(name="b", type="bind", bind=BindOptions(host_path="../x"))]),
        "found '../x'",
    ),
    "unknown mount": (
        spec(volumes=[DATA], mounts=[VolumeMount(volume="date", path="/x")]),
        "mounts: found 'date', expected one of the service's volumes (data)",
    ),
    "config twice": (spec(defined=CONFIG * 2), "configs: found 'c', expected a name, each once"),
    "config unnamed": (spec(defined=[ConfigSpec(name="")]), "configs: found ''"),
    "unknown config": (
        spec(defined=CONFIG, configs=[FileMount(name="d")]),
        "configs: found 'd', expected one of",
    ),
    "config path": (spec(defined=CONFIG, configs=[FileMount(name="c", path="x")]), "configs: found 'x'"),
    "config uid": (spec(defined=CONFIG, configs=[FileMount(name="c", uid="root")]), "configs: found 'root'"),
    "config gid": (spec(defined=CONFIG, configs=[FileMount(name="c", gid="-1")]), "configs: found '-1'"),
    "huge uid": (spec(defined=CONFIG, configs=[FileMount(name="c", uid=str(2**64 - 1))]), "as a number"),
    "secret": (spec(secrets=[FileMount(name="../shadow")]), "secrets: found '../shadow'"),
    "hook": (spec(pre_deploy=Hook(command=[])), "pre_deploy.command: found an empty list"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_spec_that_cannot_be_is_refused_in_one_line(name: str) -> None:
    broken, expected = BROKEN[name]
    with pytest.raises(InputInvalid) as caught:
        validate(broken)
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


GOOD = [
    spec(),
    spec(name="", image="bitnami/nginx:1.27"),
    spec(ports="8080 53/udp 80:8080@host 81:8080@host 80:53/udp@host"),
    spec(volumes=[DATA, VolumeSpec(name="own", volume=VolumeOptions(name="Shop_data.1"))]),
    spec(mode="global", replicas=7),
    spec(
        defined=CONFIG, configs=[FileMount(name="c", uid="1000", gid="0")], secrets=[FileMount(name="db.key")]
    ),
    spec(pre_deploy=Hook(command=["migrate"])),
]


@pytest.mark.parametrize("good", GOOD)
def test_resolving_twice_is_resolving_once(good: ServiceSpec) -> None:
    resolver = ServiceSpecResolver(random.Random(3))
    resolved = resolver.resolve(good)
    assert resolver.resolve(resolved) == resolved
    assert resolved.name
    assert resolved.container.log == LogDriver()


@pytest.mark.parametrize(
    ("catalog", "name"),
    [(None, ""), (Catalog(), "web.service.corp"), (Catalog(name="pay"), "pay.service.corp")],
)
def test_a_service_has_a_name_in_the_domain_of_the_cluster(catalog: Catalog | None, name: str) -> None:
    resolver = ServiceSpecResolver(random.Random(3), cluster_domain="corp")
    resolved = resolver.resolve(spec(name="web", catalog=catalog, ports="80"))
    assert resolver.dns_name(resolved) == name


def test_a_global_service_has_no_count() -> None:
    assert ServiceSpecResolver(random.Random(3)).resolve(GOOD[4]).replicas == 1
