"""kube-apiserver and etcd: from envtest's folder, PATH or the user's cache, else built once."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests import binaries, debian, go_programs


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing on PATH, an empty cache; the folder of the cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "cache" / "farmd-tests"


def program(folder: Path, name: str) -> Path:
    """An executable file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_envtest_s_folder_goes_before_path_and_path_before_the_cache(monkeypatch, bare, tmp_path):
    kept = program(bare, go_programs.cached("etcd").name)
    assert binaries.binary("etcd") == kept
    on_path = program(tmp_path / "path", "etcd")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert binaries.binary("etcd") == on_path
    assets = program(tmp_path / "assets", "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets.parent))
    assert binaries.binary("etcd") == assets


def test_what_renders_is_of_one_version_whatever_is_on_path(monkeypatch, bare, tmp_path):
    on_path = program(tmp_path / "path", "helm")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert go_programs.here("helm") is None
    kept = program(bare, go_programs.cached("helm").name)
    assert binaries.binary("helm") == kept


def test_two_clones_that_build_at_once_share_one_build(monkeypatch, bare):
    builds = list[str]()

    def build(module: str) -> None:
        builds.append(module)
        both.wait(10)
        program(bare, go_programs.cached("kube-apiserver").name)

    both = threading.Barrier(2)
    monkeypatch.setattr(go_programs, "_build", build)
    first = threading.Thread(target=binaries.binary, args=["kube-apiserver"])
    second = threading.Thread(target=binaries.binary, args=["kube-apiserver"])
    first.start()
    second.start()
    both.wait(10)
    first.join()
    second.join()
    assert builds == ["apiserver"]


def test_a_program_that_cannot_be_had_is_one_line(monkeypatch, bare, capsys):
    def build(module: str) -> None:
        raise debian.CannotFetch("go list k8s.io/kubernetes: no route to host")

    monkeypatch.setattr(go_programs, "_build", build)
    assert binaries._main(["kube-apiserver"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("no kube-apiserver for the tests: put `kube-apiserver` on PATH or at ")
    assert "no route to host" in told


def test_a_build_without_room_is_refused_before_it_begins(monkeypatch, bare):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 1))
    with pytest.raises(binaries.NotToBeHad, match="GiB of free space"):
        binaries.binary("kube-apiserver")
