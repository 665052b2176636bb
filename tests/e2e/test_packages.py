"""Packages: equal whoever builds them, whole in an empty environment, and as one file that runs anywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("packages")

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CONSUL_", "FARMD_"))
}


def run(*command: str | Path, **more: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=ENVIRONMENT | more, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def built(folder: Path, source: Path, *forms: str) -> dict[str, Path]:
    """The files that a build of these forms writes, by their endings."""
    tool = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check")
    run(*tool, *forms, "--outdir", folder, source)
    return {path.suffix: path for path in folder.iterdir() if path.suffix in {".gz", ".whl"}}


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> dict[str, Path]:
    """An sdist, and the wheel that is built from it."""
    return built(tmp_path_factory.mktemp("dist"), ROOT)


@pytest.fixture(scope="module")
def empty(dist, tmp_path_factory) -> Path:
    """An environment with the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "virtualenv", "--quiet", folder)
    run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", dist[".whl"])
    return folder


@pytest.mark.slow
def test_a_wheel_is_the_same_from_the_sources_and_from_the_sdist(dist, tmp_path):
    again = built(tmp_path, ROOT, "--wheel")
    assert again[".whl"].name == dist[".whl"].name
    assert sha256(again[".whl"].read_bytes()).digest() == sha256(dist[".whl"].read_bytes()).digest()


def test_an_sdist_is_the_same_each_time(dist, tmp_path):
    again = built(tmp_path, ROOT, "--sdist")
    assert sha256(again[".gz"].read_bytes()).digest() == sha256(dist[".gz"].read_bytes()).digest()


def test_a_wheel_names_its_extras(dist):
    with zipfile.ZipFile(dist[".whl"]) as wheel:
        [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = wheel.read(path).decode()
    assert {line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Provides-Extra")} >= {
        "containers",
        "systemd",
    }


def test_an_installed_wheel_runs_and_brings_its_manual_and_completions(empty, dist):
    version = dist[".whl"].name.split("-")[1]
    assert run(empty / "bin/farmctl", "--version") == f"farmctl {version}\n"
    assert run(empty / "bin/farmd", "--version") == f"farmd, version {version}\n"
    assert "[store]\n" in run(empty / "bin/farmd", "check-config", "--print")
    for path in ("man/man1/farmctl-rc.1", "bash-completion/completions/farmctl", "zsh/site-functions/_farmd"):
        assert (empty / "share" / path).read_text()


def test_an_installed_wheel_alone_sets_up_a_host_and_knows_the_policies(empty, tmp_path):
    run(empty / "bin/farmd", "init", "node", "-y", "--root", tmp_path)
    for name in ("systemd/system/farmd-agent.service", "sysusers.d/farmd.conf", "default/farmd-agent"):
        assert (tmp_path / "etc" / name).read_text()
    unit = (tmp_path / "etc/systemd/system/farmd-agent.service").read_text()
    assert f"\nExecStart={empty}/bin/farmd agent\n" in unit
    rules = run(empty / "bin/farmctl", "node", "token", "node-1", "--dry-run")
    assert 'key_prefix "farmd/intent/node-1/" { policy = "list" }' in rules


def test_an_installed_farm_has_the_runbooks_of_its_version(empty):
    code = "from farmd.web.services import find_runbook; print(find_runbook('FarmdNoFarm.md'))"
    expected = (ROOT / "docs/runbooks/FarmdNoFarm.md").read_text()
    assert run(empty / "bin/python", "-P", "-I", "-c", code) == expected + "\n"


def test_every_module_of_an_installed_wheel_can_be_imported(empty):
    """What a module needs is a dependency of the package; the extras are the only exceptions."""
    code = """
import importlib, pkgutil, sys
for name in ("farmd", "store", "scheduler", "alerting"):
    for module in pkgutil.walk_packages([importlib.import_module(name).__path__[0]], name + "."):
        try:
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(module.name, error.name)
"""
    missing = [line.split() for line in run(empty / "bin/python", "-P", "-c", code).splitlines()]
    assert {name for _, name in missing} <= {"aiodocker", "dbus_fast", "cryptography"}, missing


def test_one_file_holds_farmctl_and_all_that_it_needs(empty, tmp_path):
    [packages] = (empty / "lib").glob("python*/site-packages")
    archive = tmp_path / "farmctl"
    made = (sys.executable, "-m", "shiv", "--site-packages", packages, "--console-script", "farmctl")
    run(*made, "--output-file", archive)
    again = tmp_path / "again"
    said = run(sys.executable, "-I", archive, "--version", SHIV_ROOT=str(again))
    assert said == run(empty / "bin/farmctl", "--version")


def test_a_debian_package_is_the_same_each_time(dist, tmp_path):
    made = []
    git = tmp_path / "bin/git"  # as in a tree that was unpacked from an archive
    git.parent.mkdir()
    git.write_text("#!/bin/sh\nexit 128\n")
    git.chmod(0o755)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        wheel = shutil.copy(dist[".whl"], tmp_path / name)
        run(sys.executable, ROOT / ".ci/deb.py", wheel, PATH=f"{git.parent}:{os.environ['PATH']}")
        made += (tmp_path / name).glob("*.deb")
    assert len({sha256(path.read_bytes()).digest() for path in made}) == 1
    said = run("dpkg-deb", "--field", made[0], "Version", "Depends", "Maintainer")
    assert re.search(r"^Maintainer: The farmd authors <\S+@\S+\.\S+>$", said, re.MULTILINE)
    assert f"Version: {dist['.whl'].name.split('-')[1]}\n" in said
    held = run("dpkg-deb", "--contents", made[0])
    assert not re.search(r"__pycache__|direct_url|/opt/farmd", held)
    assert " ./usr/bin/farmctl -> ../lib/farmd/bin/farmctl\n" in held
    assert " ./usr/share/man/man1/farmctl-rc.1.gz\n" in held
    settings = run("dpkg-deb", "--info", made[0], "conffiles").splitlines()
    assert settings == ["/etc/default/farmd", "/etc/default/farmd-agent"]
