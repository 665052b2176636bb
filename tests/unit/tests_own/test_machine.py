"""`make test-all` tells all that is missing before anything runs, and installs it where it may."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests import binaries, go_programs, machine


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A machine with these programs alone; nothing is built or fetched yet, and there is room."""
    here = {"apt-get", "git"}
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}" if name in here else None)
    monkeypatch.setattr(go_programs, "here", lambda name: None)
    monkeypatch.setattr(binaries, "here", lambda name: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 2**40))
    return here


def test_an_ordinary_user_is_told_everything_with_the_command(monkeypatch, bare, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine.main() == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "sudo apt-get install --yes --quiet --no-install-recommends podman runc" in lines[0]
    assert "chromium" in lines[0]
    assert " git" not in lines[0]
    assert "sudo make test-all" in lines[1]


def test_root_on_debian_gets_it_installed(monkeypatch, bare, capsys):
    ran = list[list[str]]()

    def install(command: list[str], **_: object) -> None:
        ran.append(command)
        bare.update(machine.PROGRAMS)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", install)
    assert machine.main() == 0
    assert [command[1] for command in ran] == ["update", "install"]
    assert "helm, consul-1.14: built once, in about 15 minutes" in capsys.readouterr().err


def test_elsewhere_the_programs_that_debian_would_give_are_named(monkeypatch, bare):
    bare.clear()
    bare.update(machine.PROGRAMS)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (trouble,) = machine.troubles()
    assert trouble.startswith("missing: consul nginx prometheus docker-registry")
