"""The volumes, folders, configs and secrets of a compose service."""

from __future__ import annotations

import pytest

from farmd.compose.files import unnamed
from farmd.deploy.manifest import compiled, spec_of
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
from tests.unit.compose.disk import service

VOLUMES = """
volumes:
  data:
  named: {name: own}
  there: {external: true}
  old: {external: {name: elsewhere}}
  opts: {driver_opts: {type: nfs}}
  driver: {driver: custom, driver_opts: {a: 1}, labels: [x=y]}
"""


@pytest.mark.parametrize(
    ("entry", "volume"),
    [
        ("data:/x", VolumeOptions(name="shop_data")),
        ("named:/x", VolumeOptions(name="own")),
        ("there:/x", VolumeOptions(name="there")),
        ("old:/x", VolumeOptions(name="elsewhere")),
        ("opts:/x", VolumeOptions(name="shop_opts", driver=VolumeDriver("", {"type": "nfs"}))),
        (
            "driver:/x",
            VolumeOptions(name="shop_driver", driver=VolumeDriver("custom", {"a": "1"}), labels={"x": "y"}),
        ),
        ("data:/x:nocopy", VolumeOptions(name="shop_data", no_copy=True)),
    ],
)
def test_named_volumes(entry: str, volume: VolumeOptions) -> None:
    found = service(f"volumes: ['{entry}']", VOLUMES)
    assert found.volumes == [VolumeSpec(name=volume.name, volume=volume)]
    assert found.container.mounts == [VolumeMount(volume=volume.name, path="/x")]


def test_folders_memory_and_files_that_travel() -> None:
    found = service(
        """
        volumes:
          - /srv/data:/data:ro
          - {type: bind, source: /dev, target: /dev2, bind: {create_host_path: false, propagation: rshared}}
          - {type: tmpfs, target: /cache, tmpfs: {size: 64m, mode: 0o1777}}
          - ./nginx.conf:/etc/nginx.conf:ro
        tmpfs: /run:size=1m
        """,
        files={"nginx.conf": "server {}"},
    )
    assert found.volumes == [
        VolumeSpec(
            name=unnamed("bind", "/data"),
            type="bind",
            bind=BindOptions(host_path="/srv/data", create_host_path=True),
        ),
        VolumeSpec(
            name=unnamed("bind", "/dev2"),
            type="bind",
            bind=BindOptions(host_path="/dev", propagation="rshared"),
        ),
        VolumeSpec(
            name=unnamed("tmpfs", "/cache"), type="tmpfs", tmpfs=TmpfsOptions(size=64 * 1024**2, mode=0o1777)
        ),
        VolumeSpec(name=unnamed("tmpfs", "/run"), type="tmpfs", tmpfs=TmpfsOptions(size=1024**2)),
    ]
    assert [mount.read_only for mount in found.container.mounts] == [True, False, False, False]
    assert found.configs == [ConfigSpec(name="/etc/nginx.conf", content="server {}")]
    assert found.container.configs == [FileMount(name="/etc/nginx.conf", path="/etc/nginx.conf")]


def test_one_file_and_one_volume_are_seen_in_several_places() -> None:
    found = service(
        """
        volumes:
          - ./f:/a:ro
          - ./f:/b:ro
          - {type: volume, source: data, target: /x, volume: {subpath: x}}
          - {type: volume, source: data, target: /y, volume: {subpath: y}}
        tmpfs: ["/run:ro,noexec,mode=0700"]
        """,
        VOLUMES,
        files={"f": "text"},
    )
    assert [(each.name, each.content) for each in found.configs] == [("/a", "text"), ("/b", "text")]
    assert [each.path for each in found.container.configs] == ["/a", "/b"]
    assert {each.volume.subpath for each in found.volumes if each.volume} == {"x", "y"}
    assert [(mount.path, mount.read_only) for mount in found.container.mounts] == [
        ("/x", False),
        ("/y", False),
        ("/run", True),
    ]


def test_configs_and_secrets() -> None:
    found = service(
        """
        configs: [inline, {source: file, target: /etc/f, uid: 1000, gid: "5", mode: 0440}, env, kv]
        secrets: [key, {source: other, target: x.pem}, {source: sealed, target: /srv/db, mode: 0400}]
        """,
        """
        configs:
          inline: {content: "a $B"}
          file: {file: ./f.conf}
          env: {environment: B}
          kv: {external: true, name: config/shop/nginx.conf}
        secrets:
          key: {external: true}
          other: {external: true, name: real}
          sealed: {external: true, name: secrets/shop/db@3}
        """,
        files={"f.conf": "f"},
        env={"B": "b"},
    )
    assert found.configs == [
        ConfigSpec(name="inline", content="a b"),
        ConfigSpec(name="file", content="f"),
        ConfigSpec(name="env", content="b"),
        ConfigSpec(name="kv", kv="config/shop/nginx.conf"),
    ]
    assert found.container.configs == [
        FileMount(name="inline", path="/inline"),
        FileMount(name="file", path="/etc/f", uid="1000", gid="5", mode=0o440),
        FileMount(name="env", path="/env"),
        FileMount(name="kv", path="/kv"),
    ]
    assert found.container.secrets == [
        FileMount(name="key", path="/run/secrets/key"),
        FileMount(name="real", path="/run/secrets/x.pem"),
        FileMount(name="db", path="/srv/db", mode=0o400, secret="secrets/shop/db@3"),
    ]


COPIED = """
volumes: ["./conf:/etc/app", "./one.bin:/one"]
secrets: [file, {source: env, target: /t, mode: 0400}]
"""
SECRETS = "secrets: {file: {file: ./key}, env: {environment: TOKEN}}"
FILES = {"conf/a": "a", "conf/sub/b": "b", "one.bin": "\udc80", "key": "k"}


def test_files_and_secrets_of_the_person_travel_where_that_is_meant() -> None:
    found = service(COPIED, SECRETS, files=FILES, env={"TOKEN": "t"}, with_files=True)
    contents = {each.name: (each.content, each.encoding) for each in found.configs}
    placed = {each.path: (contents[each.name], each.mode) for each in found.container.configs}
    assert placed == {
        "/etc/app/a": (("a", ""), 0o444),
        "/etc/app/sub/b": (("b", ""), 0o444),
        "/one": (("gA==", "base64"), 0o444),
        "/run/secrets/file": (("k", ""), 0o444),
        "/t": (("t", ""), 0o400),
    }
    assert found.container.mounts == []


@pytest.mark.parametrize(
    ("keys", "more", "files"),
    [
        ("volumes: ['./conf:/etc/app']", "", FILES),
        ("secrets: [file]", SECRETS, FILES),
        ("secrets: [env]", SECRETS, {}),
    ],
)
def test_what_would_lie_in_consul_needs_consent(keys: str, more: str, files: dict[str, str]) -> None:
    with pytest.raises(InputInvalid, match="--with-files, which stores"):
        service(keys, more, files=files, env={"TOKEN": "t"})


def test_more_than_one_value_of_consul_holds_is_refused() -> None:
    files = {f"conf/{n}": "x" * 70_000 for n in range(3)}
    with pytest.raises(InputInvalid, match=r"found './conf of more than 196608 bytes', expected fewer bytes"):
        service("volumes: ['./conf:/etc/app']", files=files, with_files=True)


def test_options_of_memory_and_networks_without_a_way_out() -> None:
    found = service(
        "tmpfs: ['/run:exec,size=1m,suid']\nnetworks: [back, front]",
        "networks: {back: {internal: true}, front: }",
    )
    (memory,) = found.volumes
    assert memory.tmpfs == TmpfsOptions(size=2**20, options=["exec"])
    assert found.container.internal == ["shop_back"]
    assert spec_of(*compiled(found)).container.internal == ["shop_back"]
