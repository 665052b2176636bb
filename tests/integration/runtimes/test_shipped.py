"""What the shipped units give to workloads, and what they keep from them: on a whole machine of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.binaries import binary
from tests.farmctl import ROOT
from tests.uml import UserModeMachine

pytestmark = [pytest.mark.xdist_group("systemd"), pytest.mark.slow]

PROGRAM = f'#!/bin/sh\nexec {sys.executable} -m farmd "$@"\n'


def test_under_the_shipped_units(tmp_path: Path) -> None:
    machine = UserModeMachine(tmp_path, {"/opt/bin/consul": binary("consul").resolve()})
    words = ["make", "-s", "install-systemd", f"DESTDIR={machine.root}", "LIBDIR=/etc", "SYSTEMD=252"]
    subprocess.run(words, cwd=ROOT, check=True, timeout=180)
    machine.put("opt/farmd/bin/farmd", PROGRAM, 0o755)
    done = machine.suite(str(Path(__file__).with_name("shipped.py")))
    assert done.status == 0, done.output


def test_containers_with_control_groups_of_version_2(tmp_path: Path) -> None:
    machine = UserModeMachine(tmp_path, {"/opt/bin/consul": binary("consul").resolve()})
    machine.put("etc/containers/policy.json", '{"default": [{"type": "insecureAcceptAnything"}]}')
    done = machine.suite(str(Path(__file__).with_name("measured.py")))
    assert done.status == 0, done.output
