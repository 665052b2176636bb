"""Manifests of containers: what is refused and how it is named, and which nodes may run them."""

from __future__ import annotations

from typing import Any

import pytest

from store import codec, features, manifests
from store.containers import Container, File, Mount
from store.errors import InputInvalid
from store.manifests import Manifest, Port
from tests.people import parsed

PROGRAM = {"command": ["x"]}
UNIT = {"runtime": "systemd", "command": ["x"]}
IMAGE = {"runtime": "container", "container": {"image": "registry.example/web:1.4"}}


def having(**fields: Any) -> dict[str, Any]:
    """A container with these fields."""
    return {**IMAGE, "container": {"image": "web", **fields}}


def test_a_container_needs_an_image_alone() -> None:
    manifest = parsed({"id": "web", **IMAGE}, "pod.yaml")
    assert codec.decode(Manifest, manifests.canonical(manifest), "m") == manifest


def test_the_body_of_a_process_is_what_it_was() -> None:
    assert manifests.canonical(Manifest(id="web", command=["x"])) == b'{"id":"web","command":["x"]}'


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"runtime": "container"}, "container: found 'nothing', expected at least the container's image"),
        ({"command": ["x"], "container": {"image": "web"}}, "container: found 'a value', expected nothing"),
        (
            {"command": ["x"], "files": [{"path": "/etc/x"}]},
            "files[0].path: found '/etc/x', expected a file name",
        ),
        (
            {"command": ["x"], "files": [{"path": "x", "template": "{{ 1 }}", "content": "y"}]},
            "files[0].template: found 'content or encoding beside it'",
        ),
        (
            {"command": ["x"], "files": [{"path": "x", "content": "y", "splay": 3}]},
            "files[0].on_change or splay: found 'a value', expected neither beside content",
        ),
        (
            {"command": ["x"], "files": [{"path": "x", "template": "y", "on_change": {"do": "command"}}]},
            "files[0].on_change: found an empty list, expected a command with do: command",
        ),
        ({"command": ["x"], "ports": {"http": {"container": 80}}}, "ports.http.container: found 80"),
        ({"runtime": "container", "container": {}}, "container.image: missing"),
        (having(image="Web:1"), "container.image: found 'Web:1', expected an image"),
        (having(image="web@sha256:12"), "container.image"),
        (having(pull="often"), "container.pull: found 'often', expected one of always, missing, never"),
        (having(network="bridge"), "container.network"),
        (having(network="host", networks={"shop": []}), "container.networks"),
        (having(networks={"host": []}), "container.networks: found 'host'"),
        (having(sysctls={"x": "1"}), "container.sysctls: found 'x'"),
        (having(devices=[{"host": "/etc/shadow"}]), "container.devices[0].host"),
        (having(devices=[{"host": "/dev/sda", "permissions": "x"}]), "container.devices[0].permissions"),
        (having(cap_add=[""]), "container.cap_add"),
        (having(previleged=True), "did you mean 'privileged'"),
        (having(network="none") | {"ports": {"http": {}}}, "ports.http: found 'http', expected no ports"),
        (having(network="host") | {"ports": {"http": {"container": 80}}}, "ports.http.container"),
        (IMAGE | {"ports": {"http": {"container": 70000}}}, "ports.http.container"),
        (IMAGE | {"ports": {"http": {"protocol": "sctp"}}}, "ports.http.protocol"),
        (IMAGE | {"command": [""]}, "command"),
        (IMAGE | {"mounts": [{"source": "data", "target": "data"}]}, "mounts[0].target: found 'data'"),
        (IMAGE | {"mounts": [{"source": "da/ta", "target": "/data"}]}, "mounts[0].source: found 'da/ta'"),
        (IMAGE | {"mounts": [{"target": "/data"}]}, "mounts[0].source"),
        (IMAGE | {"mounts": [{"type": "bind", "source": "../x", "target": "/x"}]}, "mounts[0].source"),
        (IMAGE | {"mounts": [{"type": "tmpfs", "source": "a", "target": "/x"}]}, "mounts[0].source"),
        (IMAGE | {"volumes": {"-": {}}}, "volumes: found '-'"),
        (IMAGE | {"files": [{"path": "etc/x"}]}, "files[0].path: found 'etc/x'"),
        (
            IMAGE | {"files": [{"path": "/a"}, {"path": "/a"}]},
            "files: found '/a', expected a path of its own",
        ),
        (IMAGE | {"files": [{"path": "/a", "content": "x" * 131073}]}, "files: found '131073 bytes'"),
        (IMAGE | {"secrets": [{"name": "../shadow"}]}, "secrets[0].name: found '../shadow'"),
        (IMAGE | {"secrets": [{"name": "a", "mode": 0o4755}]}, "secrets[0].mode"),
        (IMAGE | {"limits": {"memory": 4096}}, "limits.memory: found 4096"),
        (IMAGE | {"limits": {"cpu": 0.001}}, "limits.cpu"),
        (IMAGE | {"limits": {"pids": -1}}, "limits.pids"),
        (IMAGE | {"limits": {"io_weight": 10001}}, "limits.io_weight: found 10001"),
        (PROGRAM | {"limits": {"memory": 2**61}}, "limits.memory: found 2305843009213693952"),
        (PROGRAM | {"limits": {"cpu": 1e6}}, "limits.cpu: found 1000000, expected"),
        (PROGRAM | {"limits": {"cpu": -1}}, "limits.cpu: found -1"),
        (PROGRAM | {"limits": {"pids": 2**23}}, "limits.pids: found 8388608"),
        (PROGRAM | {"limits": {"disk": 1}}, "limits.disk"),
        (IMAGE | {"restart": {"policy": "sometimes"}}, "restart.policy"),
        ({"runtime": "systemd"}, "command: found an empty list, expected at least the program to run"),
        (UNIT | {"container": {"image": "web"}}, "expected nothing: only the runtime 'container' has it"),
        (UNIT | {"ports": {"http": {"container": 80}}}, "ports.http.container: found 80"),
        (UNIT | {"volumes": {"a": {"driver": "nfs"}}}, "volumes.a: found 'a driver or options'"),
        (UNIT | {"mounts": [{"source": "a", "target": "/a", "no_copy": True}]}, "mounts[0].no_copy"),
        (UNIT | {"mounts": [{"source": "a", "target": "a"}]}, "mounts[0].target: found 'a'"),
        (UNIT | {"limits": {"pids": -1}}, "limits.pids"),
    ],
)
def test_what_cannot_work_is_named_in_one_line(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        parsed({"id": "web", **fields}, "pod.yaml")
    assert named in caught.value.message
    assert "\n" not in caught.value.message


def container(*binds: str, **fields: Any) -> Manifest:
    mounts = [Mount(type="bind", source=path, target=f"/m{at}") for at, path in enumerate(binds)]
    return Manifest(id="web", runtime="container", container=Container(image="web", **fields), mounts=mounts)


@pytest.mark.parametrize(
    ("manifest", "has", "lacks"),
    [
        (Manifest(id="web", command=["x"]), [], []),
        (container(), ["runtime.process"], ["runtime.container"]),
        (container(), ["runtime.container"], []),
        (container(privileged=True), ["runtime.container"], ["allow.privileged"]),
        (
            container(network="host", pid="host"),
            ["runtime.container", "allow.host-pid"],
            ["allow.host-network"],
        ),
        (container("/srv/data"), ["runtime.container"], ["allow./srv/data"]),
        (container("/srv/data", "/srv"), ["runtime.container", "allow./srv"], []),
        (container("/srv-other"), ["runtime.container", "allow./srv"], ["allow./srv-other"]),
        (container("/etc"), ["runtime.container", "allow./"], []),
    ],
)
def test_r11_what_a_pod_needs_of_its_node(manifest: Manifest, has: list[str], lacks: list[str]) -> None:
    assert features.lacking(features.needed(manifest), has) == lacks


def test_r17_a_fixed_port_is_a_resource_and_a_dynamic_one_is_not() -> None:
    ports = {"http": Port(8077, 80), "dns": Port(53, protocol="udp"), "any": Port(0, 81)}
    manifest = Manifest(id="web", command=["x"], ports=ports, resources={"cpu": 0.5, "gpu": 0.0})
    assert manifests.asked(manifest) == {"cpu": 0.5, "port/53/udp": 1.0, "port/8077/tcp": 1.0}


def test_files_are_content_of_the_manifest() -> None:
    one = Manifest(id="web", files=[File(path="/etc/web", content="a")])
    two = Manifest(id="web", files=[File(path="/etc/web", content="b")])
    assert manifests.digest(manifests.canonical(one)) != manifests.digest(manifests.canonical(two))
