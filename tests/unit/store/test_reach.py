"""Every field of a workload and what it can reach of its node: which word of ``agent.allow`` it needs (R11).

A field that is new is unknown here, and fails until somebody has said what it reaches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from store import features
from store.containers import Container, Device, DeviceReservation, File, Mount, Secret, Ulimit, Volume
from store.manifests import Manifest

DOCS = Path(__file__).resolve().parents[3] / "docs" / "workloads.md"
OWN = "what is the workload's own: its program, its variables, its files, its network within the engine's"
BOUND = "how much of the node it may use, or how it is counted and placed"
FARM = "what farms and the agent do with it"
NODES = (
    "of the node only what is meant for workloads: volumes of farmd's, files of agent.secrets_dir, secrets"
)
JUDGED = "judged by the fields of the mount, device or volume itself"
THEIRS = "needs a word where no agent made what the engine has, which the agent tells (test_escapes.py)"
ENGINE = "the engine refuses it where the container has the node's"

REACH: dict[type, dict[str, str]] = {
    Manifest: {
        "runtime": "processes",
        "user": "root",
        "command": OWN,
        "args": OWN,
        "env": OWN,
        "init": OWN,
        "after_stop": OWN,
        "sidecars": OWN,
        "working_directory": OWN,
        "files": OWN,
        "id": FARM,
        "health": FARM,
        "restart": FARM,
        "stop": FARM,
        "stop_after": FARM,
        "placement": FARM,
        "system": FARM,
        "logs": BOUND,
        "ulimits": BOUND,
        "limits": BOUND,
        "resources": BOUND,
        "ports": BOUND,
        "container": JUDGED,
        "mounts": JUDGED,
        "volumes": JUDGED,
        "secrets": NODES,
        "sources": FARM,
        "sealed": NODES,
        "secret_env": OWN,
        "artifacts": "local-sources, or a folder, as the source says (test_artifacts.py)",
    },
    Container: {
        "privileged": "privileged",
        "network": "host-network",
        "pid": "host-pid",
        "devices": "devices",
        "device_reservations": "device-reservations",
        "cap_add": "capabilities",
        "security_options": "security-options",
        "sysctls": ENGINE,
        **dict.fromkeys(("image", "pull", "platform", "entrypoint", "init", "hostname", "groups"), OWN),
        **dict.fromkeys(("labels", "read_only", "dns", "dns_search", "dns_options"), OWN),
        **dict.fromkeys(("hosts", "cap_drop", "internal"), OWN),
        "networks": THEIRS,
        "shared_memory": BOUND,
        "ulimits": BOUND,
    },
    Mount: {
        "source": "/srv/x",
        "type": JUDGED,
        "create": JUDGED,
        "propagation": "without the capability to mount, nothing of it leaves the container",
        **dict.fromkeys(("target", "read_only", "no_copy", "subpath"), OWN),
        **dict.fromkeys(("size", "mode", "options"), BOUND),
    },
    Volume: {"driver": "volume-drivers", "options": "volume-drivers", "labels": OWN},
    Device: dict.fromkeys(("host", "container", "permissions"), "devices"),
    DeviceReservation: dict.fromkeys(
        ("driver", "count", "device_ids", "capabilities", "options"), "device-reservations"
    ),
    File: {
        **dict.fromkeys(("path", "content", "template", "uid", "gid", "mode", "encoding"), OWN),
        "on_change": "a signal to the pod's own processes, or a command as its user",
        "splay": BOUND,
    },
    Secret: {"name": NODES, "secret": OWN, **dict.fromkeys(("path", "uid", "gid", "mode"), OWN)},
    Ulimit: dict.fromkeys(("soft", "hard"), BOUND),
}

SAMPLES: dict[tuple[type, str], Any] = {
    (Manifest, "runtime"): "process",
    (Manifest, "user"): "root",
    (Container, "network"): "host",
    (Container, "pid"): "host",
    (Container, "pull"): "never",
    (Mount, "type"): "tmpfs",
    (Mount, "propagation"): "rshared",
    (Mount, "source"): "/srv/x",
}
BY_TYPE: dict[str, Any] = {
    "bool": True, "int": 7, "float": 7.0, "str": "x", "list[str]": ["x"], "dict[str, str]": {"a": "b"},
    "bool | None": True, "list[list[str]]": [["x"]], "dict[str, list[str]]": {"a": ["b"]},
    "list[Device]": [Device(host="/dev/x")], "list[DeviceReservation]": [DeviceReservation(count=1)],
    "dict[str, Ulimit]": {"nofile": Ulimit(1, 1)}, "Whole": 7,
}  # fmt: skip


def manifest(kind: type, name: str) -> Manifest:
    """A pod that says something of this field."""
    text = str(next(each for each in kind.__annotations__.items() if each[0] == name)[1])
    given = {name: SAMPLES.get((kind, name), BY_TYPE.get(text))}
    fields: dict[str, Any] = {"id": "web", "runtime": "container", "container": Container(image="web")}
    if kind is Manifest:
        return Manifest(**(fields | {"runtime": "process", "container": None} | given))
    if kind is Container:
        return Manifest(**(fields | {"container": Container(**({"image": "web"} | given))}))
    if kind is Mount:
        bind = {"type": "bind"} if name == "source" else {}
        return Manifest(**(fields | {"mounts": [Mount(**({"target": "/x"} | bind | given))]}))
    return Manifest(**(fields | {"volumes": {"v": Volume(**given)}}))


@pytest.mark.parametrize("kind", REACH, ids=lambda kind: kind.__name__)
def test_r11_of_every_field_it_is_known_what_it_reaches(kind: type) -> None:
    assert {each.name for each in msgspec.structs.fields(kind)} == set(REACH[kind])


GATED = [(kind, name) for kind in (Manifest, Container, Mount, Volume) for name, why in REACH[kind].items()
         if why in features.ALLOWABLE or why.startswith("/")]  # fmt: skip
FREE = [
    (kind, name) for kind in (Container, Mount, Volume) for name in REACH[kind] if (kind, name) not in GATED
]


@pytest.mark.parametrize(("kind", "name"), GATED, ids=lambda each: getattr(each, "__name__", each))
def test_r11_what_reaches_the_node_needs_its_word(kind: type, name: str) -> None:
    word = REACH[kind][name]
    needs = features.needed(manifest(kind, name))
    assert (features.PROCESS if word == "processes" else f"allow.{word}") in needs
    assert features.lacking(needs, ["runtime.container", "jobs.1"])


@pytest.mark.parametrize(("kind", "name"), FREE, ids=lambda each: getattr(each, "__name__", each))
def test_r11_what_is_the_workloads_own_needs_none(kind: type, name: str) -> None:
    needs = features.needed(manifest(kind, name))
    assert not any(need.startswith("allow.") for need in needs)
    assert set(needs) <= {"runtime.container", *features.CONTAINER_FEATURES}


def test_the_manual_has_every_word() -> None:
    text = DOCS.read_text()
    assert [word for word in features.ALLOWABLE if f"`{word}`" not in text] == []


def test_r11_a_volume_with_labels_alone_is_the_engines_own() -> None:
    labelled = Manifest(id="web", runtime="container", volumes={"v": Volume(driver="", labels={"a": "b"})})
    assert "allow.volume-drivers" not in features.needed(labelled)
