"""No key that is accepted is dropped: some value of each changes the project, or is warned of.

The keys are those of the table of verdicts, which has all of the specification. Each is set, in documents in
which it can count, to every value of a pool. A new key without a use is found here without a test of its own.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from farmd.compose.project import Project, read
from farmd.compose.verdicts import TABLE, KeyRule
from store.errors import InputInvalid
from tests.unit.compose.disk import Disk

VALUES: list[Any] = [
    "a", "b", "r", "HUP", "1", "2", "64m", "5s", "/a", "host", "other", "raw", "always", "on-failure",
    "stop-first", "pause", "global", "never", "service_healthy", "wait", "udp", "tmpfs", "shared",
    "linux/arm64", "127.0.0.1", "0400", "max.yaml", "node.labels.a == b", "node.labels.a", True, False,
    1, 2, 8, 2**30, "journald",
    ["a"], ["other"], ["/dev/null"], ["8080"], ["1.1.1.1"], ["node.labels.a == b"], ["CMD", "x"],
    [{"key": "a"}], {"a": "b"}, {"a.b": "c"}, {"max-size": "1m"}, {"max-file": "2"}, {"nofile": 1},
    {"other": None}, {"data": None},
]  # fmt: skip
BARE = {"services": {"name": {"image": "a"}, "other": {"image": "a"}}, "networks": {"other": {}}}
RICH: dict[str, Any] = {
    "services": {
        "name": {
            "image": "a",
            "configs": [{"source": "name"}],
            "secrets": [{"source": "name"}],
            "env_file": [{"path": "a"}],
            "healthcheck": {"test": "a"},
            "depends_on": {"name2": {}},
            "networks": {"name": {}},
            "ports": [{"target": 80, "published": 80}],
            "devices": [{"source": "/dev/a"}],
            "gpus": [{}],
            "ulimits": {"name": {"soft": 1, "hard": 2}},
            "x-pre_deploy": {"command": "a"},
            "deploy": {
                "resources": {"reservations": {"devices": [{"capabilities": ["a"]}]}},
                "placement": {"preferences": [{"spread": "node.labels.x"}]},
                "restart_policy": {"condition": "any"},
            },
            "volumes": [{"type": "volume", "source": "name", "target": "/x"}],
        },
        "name2": {"image": "a"},
    },
    "volumes": {"name": {}, "a": {}, "b": {}},
    "networks": {"name": {}},
    "configs": {"name": {"content": "x"}, "a": {"content": "y"}},
    "secrets": {"name": {"external": True}, "a": {"external": True}},
}
BASES = [
    RICH,
    BARE,
    *(
        {**BARE, "services": {"name": {"image": "a", "volumes": [mount]}}}
        for mount in (
            {"type": "bind", "source": "/s", "target": "/x"},
            {"type": "tmpfs", "target": "/x"},
        )
    ),
    {**RICH, "configs": {"name": {}}},
    {**RICH, "secrets": {"name": {}}},
    {**BARE, "services": {"name": {"image": "a", "depends_on": {"gone": {}}}}},
    {**BARE, "services": {"name": {"image": "a", "env_file": [{"path": "gone"}]}}},
    {
        **BARE,
        "services": {
            "name": {"extends": {"service": "other"}}, "other": {"image": "a"}, "b": {"image": "b"},
        },
    },
]  # fmt: skip
FILES = {"shop/a": "A='$b'", "shop/max.yaml": "services: {other: {image: c}}"}
SAME = {
    "services.*.ports.[].mode": "host and ingress both publish on each machine that runs a pod",
}
"""Keys whose values all mean the same here."""


def leaves(node: KeyRule, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The keys that are accepted, and hold values instead of other keys."""
    for part, inner in node.within.items():
        if inner.kind in ("supported", "changed"):
            if inner.within.keys() - {"name"} or (inner.within and part != "external"):
                yield from leaves(inner, (*path, part))
            else:
                yield ".".join((*path, part))


LEAVES = sorted({*leaves(TABLE)} - {"services.*", *SAME})


def changed(base: dict[str, Any], key: str, value: Any) -> dict[str, Any] | None:
    """A document with a key set; None where it has no place for the key."""
    document = copy.deepcopy(base)
    node: Any = document
    *parents, last = key.split(".")
    for part in parents:
        if part == "[]":
            if not isinstance(node, list) or not node:
                return None
            node = node[0]
        elif isinstance(node, dict):
            node = node.setdefault(next(iter(node), "name") if part == "*" else part, {})
        else:
            return None
    if isinstance(node, list):
        node[:] = [value]
    elif isinstance(node, dict):
        node[next(iter(node), "name") if last == "*" else last] = value
    return document


def outcome(document: dict[str, Any]) -> Project | None:
    with contextlib.suppress(InputInvalid):
        disk = Disk({"shop/compose.json": json.dumps(document), **FILES})
        return read(["shop/compose.json"], disk, {"a": "1", "b": "2"}, with_files=True)
    return None


WITHOUT = [outcome(base) for base in BASES]


@pytest.mark.parametrize("key", LEAVES)
def test_a_value_of_each_accepted_key_changes_the_project_or_is_warned_of(key: str) -> None:
    for base, without in zip(BASES, WITHOUT, strict=True):
        for value in VALUES:
            document = changed(base, key, value)
            found = outcome(document) if document is not None else None
            if found is not None and found != without:
                return
    pytest.fail(f"{key}: no value of it changes the project; no value in the pool, or it is dropped")
