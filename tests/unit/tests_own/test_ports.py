"""Test processes on one machine never ask for the same ports."""

from __future__ import annotations

import subprocess
import sys

from tests.farmctl import ROOT
from tests.ports import free_ports, pod_ports


def test_another_process_has_other_ports():
    first, last = pod_ports()
    mine = {*free_ports(3), *range(first, last + 1)}
    other = "from tests.ports import *; print(*free_ports(3), *pod_ports())"
    said = subprocess.run([sys.executable, "-c", other], cwd=ROOT, capture_output=True, text=True, check=True)
    assert mine.isdisjoint(map(int, said.stdout.split()))


def test_no_port_is_given_twice_in_a_row():
    assert set(free_ports(3)).isdisjoint(free_ports(3))
