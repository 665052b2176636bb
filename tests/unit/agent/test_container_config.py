"""A manifest in the Docker API's words, credentials of registries, and what an unused engine costs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farmd.agent import model
from farmd.agent.errors import StartFailed
from farmd.agent.removal import Trash
from farmd.agent.runtimes import container_config, container_files
from farmd.agent.runtimes.container_listing import described
from farmd.agent.runtimes.runtime import Launch
from store.containers import Container, Device, File, Limits, Mount, Secret, Ulimit
from store.manifests import Init, Manifest, Port
from store.reality import Exit

SHA = "a" * 64
OWN = {"uid": os.geteuid(), "gid": os.getegid()}


def body(options: dict[str, Any] | None = None, binds: Any = (), **fields: Any) -> dict[str, Any]:
    manifest = Manifest(
        id="web", runtime="container", container=Container(image="web:1", **(options or {})), **fields
    )
    ports = {name: port.port or 20001 for name, port in manifest.ports.items()}
    launch = Launch(
        instance="web~1", sha=SHA, manifest=manifest, ports=ports, start="s1", started=5.5, restart=2
    )
    if manifest.init:
        return container_config.init_body("n1", launch, manifest.init[0], binds)
    return container_config.create_body("n1", launch, binds)


def test_a_container_of_an_image_alone_leaves_the_rest_to_the_image() -> None:
    made = body()
    assert made.keys() == {"Image", "Env", "Labels", "Healthcheck", "HostConfig"}
    assert made["Env"] == ["FARMD_NODE=n1", "FARMD_INSTANCE=web~1"]
    assert made["HostConfig"].keys() == {"LogConfig"}


def test_names_hold_node_and_instance_and_nothing_that_engines_refuse() -> None:
    assert model.name_of("n1", "web~0") == "farmd..n1..web..0"


def test_the_labels_tell_of_a_start_what_a_shims_record_tells() -> None:
    made = body(ports={"http": Port(80)})
    found = container_config.identity(made["Labels"], "c0ffee", 7)
    assert (found.instance, found.manifest, found.start, found.started) == ("web~1", SHA, "s1", 5.5)
    assert (found.restart, found.ports, found.handle, found.runtime) == (
        2,
        {"http": 80},
        "c0ffee",
        "container",
    )


def test_people_cannot_take_the_agents_labels() -> None:
    claimed = {"farmd.node": "other", "farmd.lease": "9 9 KILL", "farmd.init": "n1", "team": "web"}
    made = body({"labels": claimed})
    assert (made["Labels"]["farmd.node"], made["Labels"]["team"]) == ("n1", "web")
    assert (made["Labels"]["farmd.lease"], made["Labels"]["farmd.init"]) == ("", "")
    made = body({"labels": claimed}, init=[Init(command=["true"])])
    told = {"farmd.node": "", "farmd.lease": "", "farmd.init": "n1", "farmd.instance": "web~1"}
    assert made["Labels"] == told  # an engine adds those of the image that these do not replace


@pytest.mark.parametrize(
    ("port", "inner", "published"),
    [
        (Port(8077), 8077, {"8077/tcp": [{"HostPort": "8077"}]}),
        (Port(0, 80), 80, {"80/tcp": [{"HostPort": "20001"}]}),
        (Port(53, 5353, "udp"), 5353, {"5353/udp": [{"HostPort": "53"}]}),
    ],
)
def test_ports(port: Port, inner: int, published: dict[str, Any]) -> None:
    made = body(ports={"main": port})
    assert made["HostConfig"]["PortBindings"] == published
    assert made["ExposedPorts"].keys() == published.keys()
    assert f"FARMD_PORT_MAIN={inner}" in made["Env"]


def test_a_container_with_the_nodes_network_publishes_nothing() -> None:
    host = body({"network": "host"}, ports={"main": Port()})["HostConfig"]
    assert (host["NetworkMode"], "PortBindings" in host) == ("host", False)


def test_limits_and_options() -> None:
    options = {
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "hosts": {"db": "10.0.0.1"},
        "devices": [Device(host="/dev/fuse")],
        "ulimits": {"nproc": Ulimit(10, 20)},
        "networks": {"shop": ["web"]},
    }
    limits = Limits(memory=64 * 2**20, cpu=0.25, pids=9, io_weight=10_000)
    made = body(options, limits=limits, ulimits={"nofile": 64}, mounts=[Mount(source="data", target="/d")])
    host = made["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        2**26,
        2**26,
        250000000,
        9,
    )
    assert host["BlkioWeight"] == 1000
    assert (host["Init"], host["ReadonlyRootfs"], host["CapDrop"]) == (True, True, ["ALL"])
    assert host["ExtraHosts"] == ["db:10.0.0.1"]
    assert host["Devices"][0]["PathInContainer"] == "/dev/fuse"
    assert {each["Name"]: (each["Soft"], each["Hard"]) for each in host["Ulimits"]} == {
        "nofile": (64, 64),
        "nproc": (10, 20),
    }
    assert host["Mounts"] == [{"Type": "volume", "Target": "/d", "ReadOnly": False, "Source": "data"}]
    assert host["NetworkMode"] == "shop"
    assert made["NetworkingConfig"] == {"EndpointsConfig": {"shop": {"Aliases": ["web"]}}}


@pytest.mark.parametrize(
    ("key", "image", "user"),
    [
        ("registry.example", "registry.example/web:1", "ada"),
        ("https://registry.example/v1/", "registry.example/web:1", "ada"),
        ("https://index.docker.io/v1/", "web:1", "ada"),
        ("other.example", "registry.example/web:1", None),
    ],
)
def test_credentials_are_those_of_the_images_registry(key: str, image: str, user: str | None) -> None:
    auth = base64.b64encode(b"ada:s3:cret").decode()
    found = container_config.registry_auth(json.dumps({"auths": {key: {"auth": auth}}}), image)
    assert (found and (found["username"], found["password"])) == (user and (user, "s3:cret"))


def test_files_and_secrets_are_written_once_and_those_of_earlier_starts_go(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text("hush")
    folder = tmp_path / "instance" / "files"
    folder.parent.mkdir()

    def made(content: str) -> Manifest:
        files = [File(path="/etc/web", content=content, mode=0o400, **OWN)]
        return Manifest(id="web", files=files, secrets=[Secret(name="token", **OWN)])

    old = container_files.lay_out(folder, made("1"), tmp_path / "secrets")
    new = container_files.lay_out(folder, made("2"), tmp_path / "secrets")
    assert [there for _, there in new] == ["/etc/web", "/run/secrets/token"]
    assert [Path(here).read_text() for here, _ in old + new] == ["1", "hush", "2", "hush"]
    assert Path(new[0][0]).stat().st_mode & 0o777 == 0o400
    assert folder.stat().st_mode & 0o777 == 0o700
    container_files.keep_only(folder, new, Trash(tmp_path / "trash"))
    assert [Path(here).exists() for here, _ in old + new] == [False, False, True, True]
    (tmp_path / "secrets" / "token").unlink()
    with pytest.raises(StartFailed, match="secrets: token: No such file or directory"):
        container_files.lay_out(folder, made("3"), tmp_path / "secrets")


def test_an_owner_that_the_agent_cannot_give_is_named(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)  # as for every user but root
    manifest = Manifest(id="web", files=[File(path="/etc/web", uid=4711, gid=4711)])
    with pytest.raises(StartFailed, match=r"found owner 4711:4711, expected uid and gid of the agent's user"):
        container_files.lay_out(tmp_path / "files", manifest, tmp_path)


def inspected(**state: Any) -> dict[str, Any]:
    """An engine's description of a container of ours."""
    times = {"StartedAt": "2026-01-02T03:04:05.1Z", "FinishedAt": "2026-01-02T03:04:06.123456789Z", "Pid": 0}
    return {
        "Id": "c0ffee",
        "Config": {"Labels": body()["Labels"]},
        "HostConfig": {"Memory": 2**25},
        "State": times | state,
    }


@pytest.mark.parametrize(
    ("state", "code", "why"),
    [
        ({"Status": "running"}, None, ""),
        ({"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"}, None, ""),
        ({"Status": "exited", "ExitCode": 3}, 3, ""),
        ({"Status": "exited", "ExitCode": 137}, -9, ""),
        ({"Status": "exited", "ExitCode": 255}, 255, ""),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, -9, "out of memory: its limit is 32 MiB"),
        ({"Status": "created"}, -9, "the node was restarted while it ran"),
    ],
)
def test_an_engines_state_in_the_agents_words(state: dict[str, Any], code: int | None, why: str) -> None:
    seen = described(inspected(**state))
    assert ((seen.exit and seen.exit.code), seen.why) == (code, why)
    if code == 3:
        assert seen.exit == Exit(1767323046.123456, 3)


def test_an_agent_without_an_engine_imports_nothing_of_one() -> None:
    script = (
        "import sys, farmd.process.agent_service, farmd.agent.agent\n"
        "found = [name for name in sys.modules if 'aiodocker' in name or 'runtimes.container' in name]\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
