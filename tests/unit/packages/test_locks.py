"""What is deployed and tested has one version each, whose files are known by their hashes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = [each for group in PROJECT["project"]["optional-dependencies"].values() for each in group]
DEPLOYED = PROJECT["project"]["dependencies"] + EXTRAS
TESTED = DEPLOYED + PROJECT["dependency-groups"]["test"] + PROJECT["dependency-groups"]["lint"]
DIGEST = "sha256:" + "5f" * 32


def locked(name: str) -> dict[str, Requirement]:
    """The packages of a lock file, each of which has hashes."""
    text = (ROOT / "locks" / name).read_text().replace("\\\n", " ")
    assert "://" not in text  # no index, and nothing from elsewhere
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin, *hashes = line.split("--hash=")
            assert hashes, line
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each.strip()) for each in hashes)
            requirement = Requirement(pin.strip())
            found[canonicalize_name(requirement.name)] = requirement
    return found


def version(requirement: Requirement) -> Version:
    [pin] = requirement.specifier
    assert pin.operator == "=="
    return Version(pin.version)


@pytest.mark.parametrize(("name", "asked"), [("deploy.txt", DEPLOYED), ("test.txt", TESTED)])
def test_all_that_the_project_asks_for_is_locked_in_a_version_that_it_asks_for(
    name: str, asked: list[str]
) -> None:
    pins = locked(name)
    for each in map(Requirement, asked):
        assert each.specifier.contains(version(pins[canonicalize_name(each.name)])), f"make lock: {each}"


def test_what_is_deployed_is_tested_in_the_same_versions() -> None:
    deployed, tested = locked("deploy.txt"), locked("test.txt")
    assert {name: version(pin) for name, pin in deployed.items()} == {
        name: version(tested[name]) for name in deployed
    }


def test_aiohttp_is_one_that_a_small_compressed_body_does_not_stall() -> None:
    [asked] = [each for each in map(Requirement, DEPLOYED) if each.name == "aiohttp"]
    assert not asked.specifier.contains("3.14.3")
    assert version(locked("deploy.txt")["aiohttp"]) >= Version("3.14.4")


def pinned(folder: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """``make pin-images`` in a copy, with a registry that gives this answer for each image."""
    program = folder / "bin" / "docker"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    (folder / ".ci").mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci/pin_images.py", folder / ".ci")
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    command = [sys.executable, str(folder / ".ci/pin_images.py")]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_images_are_pinned_beside_their_exact_tags_or_not_at_all(tmp_path: Path) -> None:
    files = ("docker-compose.yml", "Dockerfile")
    for name in files:
        shutil.copy(ROOT / name, tmp_path)
    before = [(tmp_path / name).read_text() for name in files]
    images = set(re.findall(r"^ +image: (.+)$", before[0], re.MULTILINE)) - {"farmd:local"}
    assert all(re.search(r":v?\d+\.\d+\.\d+\S*$", image) for image in images)
    refused = pinned(tmp_path, "echo no such host >&2; exit 1")
    assert (
        refused.returncode,
        refused.stderr.splitlines()[0].endswith("no such host; nothing was written"),
    ) == (
        1,
        True,
    )
    assert [(tmp_path / name).read_text() for name in files] == before
    for _ in range(2):  # and again
        assert pinned(tmp_path, f"echo {DIGEST}").returncode == 0
    compose, dockerfile = ((tmp_path / name).read_text() for name in files)
    assert f"image: hashicorp/consul:1.14.11@{DIGEST}\n" in compose
    assert "image: farmd:local\n" in compose
    assert re.search(rf"^ARG PYTHON=3\.12\.\d+-slim-bookworm@{DIGEST}$", dockerfile, re.MULTILINE)
    stripped = [text.replace(f"@{DIGEST}", "") for text in (compose, dockerfile)]
    assert stripped == before
