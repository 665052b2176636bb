"""The volumes, folders, configs and secrets of a compose service."""

from __future__ import annotations

import pytest

from farmd.compose.mounts import unnamed
from farmd.deploy.model import (
    BindOptions,
    ConfigSpec,
    FileMount,
    TmpfsOptions,
    VolumeDriver,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
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
        configs: [inline, {source: file, target: /etc/f, uid: 1000, gid: "5", mode: 0440}, env]
        secrets: [key, {source: other, target: x.pem}]
        """,
        """
        configs:
          inline: {content: "a $B"}
          file: {file: ./f.conf}
          env: {environment: B}
        secrets:
          key: {external: true}
          other: {external: true, name: real}
        """,
        files={"f.conf": "f"},
        env={"B": "b"},
    )
    assert found.configs == [
        ConfigSpec(name="inline", content="a b"),
        ConfigSpec(name="file", content="f"),
        ConfigSpec(name="env", content="b"),
    ]
    assert found.container.configs == [
        FileMount(name="inline", path="/inline"),
        FileMount(name="file", path="/etc/f", uid="1000", gid="5", mode=0o440),
        FileMount(name="env", path="/env"),
    ]
    assert found.container.secrets == [
        FileMount(name="key", path="/run/secrets/key"),
        FileMount(name="real", path="/run/secrets/x.pem"),
    ]
