"""Manifests that an earlier version stored keep their digests where files say the same (R24)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import earlier
from tests.farmctl import Farmctl, in_cluster

POD: dict[str, Any] = {
    "id": "web",
    "command": ["sleep", "9"],
    "ports": {"http": {"port": 0}},
    "health": {"type": "http", "port": "http", "path": "/", "interval": 2.0, "timeout": 1},
    "restart": {"initial": "1s"},
    "stop": {"signal": "TERM", "grace": 10},
    "placement": {"affinity": [{"label": "rack", "values": ["a"], "weight": 50}]},
}
RC = {"name": "web", "replicas": 2, "min_healthy_time": 5, "pod": POD}
JOB = {
    "name": "sums",
    "types": [{"name": "w", "replicas": 1, "pod": {"id": "w", "command": ["true"], "stop": {}}}],
}
FILES: dict[str, dict[str, Any]] = {
    "rc": RC,
    "daemonset": {"name": "logs", "min_healthy_time": 5, "pod": {**POD, "id": "logs"}},
}


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    return in_cluster(address, "web1")


def digests(farmctl: Farmctl) -> dict[str, Any]:
    return {
        noun: [
            item.get("manifest") or item["types"]
            for item in farmctl.ok(noun, "list", "-o", "json").json["items"]
        ]
        for noun in ("rc", "daemonset", "job")
    }


def test_an_upgrade_and_all_files_again_change_no_digest(farmctl: Farmctl, tmp_path: Path) -> None:
    before = Farmctl(farmctl.address, farmctl.prefix, tree=earlier.tree(earlier.WITH_EVERY_KIND))
    bundle = tmp_path / "app.yaml"
    bundle.write_text(
        yaml.safe_dump_all(
            [{"apiVersion": "farmd/v1", "kind": "rc", **RC, "name": "api", "pod": {**POD, "id": "api"}}]
        )
    )
    for noun, document in FILES.items():
        before.ok(noun, "create", "-f", "-", stdin=yaml.safe_dump(document))
    before.ok("job", "run", "-f", "-", "--no-wait", stdin=yaml.safe_dump(JOB))
    before.ok(
        "rc", "create", "-f", "-", stdin=yaml.safe_dump({**RC, "name": "api", "pod": {**POD, "id": "api"}})
    )
    stored = digests(farmctl)
    assert stored

    for noun, document in FILES.items():
        for text, name in ((yaml.safe_dump(document), "f.yaml"), (json.dumps(document), "f.json")):
            path = tmp_path / name
            path.write_text(text)
            assert farmctl(noun, "diff", "-f", str(path)).out == "", noun
            assert "unchanged" in farmctl.ok(noun, "create", "-f", str(path)).out
            assert "unchanged" in farmctl.ok(noun, "update", "-f", str(path), "--now", "-y").out
        exported = farmctl.ok(noun, "get", document["name"], "--file").out
        assert "unchanged" in farmctl.ok(noun, "create", "-f", "-", stdin=exported).out
    assert "unchanged" in farmctl.ok("job", "run", "-f", "-", "--no-wait", stdin=yaml.safe_dump(JOB)).out
    planned = farmctl.ok("apply", "-f", str(bundle), "--app", "shop", "--adopt", "all", "--dry-run")
    assert "pod" not in planned.out, planned.out
    assert digests(farmctl) == stored
