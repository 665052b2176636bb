"""Two engines of one machine have networks of one name, as two test runs at once have."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from tests.engine import IMAGE, PodmanEngine
from tests.engine_traces import system
from tests.ports import free_ports
from tests.projects import script

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.slow]

ASKS = script("until nslookup db | grep -q Name:; do sleep 0.1; done", "nslookup db")


def test_containers_find_names_in_the_network_of_their_own_engine(shared_engine: PodmanEngine) -> None:
    with PodmanEngine() as other:
        for engine in (shared_engine, other):
            engine.run("network", "create", "shop")
            engine.run("run", "--detach", "--network", "shop", "--name", "db", IMAGE, "sleep", "1d")
            answer = engine.run("run", "--rm", "--network", "shop", IMAGE, "sh", "-c", ASKS)
            address = engine.run("inspect", "--format", "{{.NetworkSettings.Networks.shop.IPAddress}}", "db")
            assert address in answer
        shared_engine.run("network", "rm", "--force", "--time", "0", "shop")


def test_a_port_that_an_engine_had_published_when_it_lost_its_power_leads_to_this_machine_again() -> None:
    (port,) = free_ports(1)
    with PodmanEngine() as engine:
        engine.run("run", "--detach", "--publish", f"{port}:{port}", IMAGE, "sleep", "1d")
        engine.lose_power()
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), timeout=30):
        pass


KILLED = f"""
import os, signal
from tests.engine import PodmanEngine
engine = PodmanEngine().__enter__()
print(engine.run("run", "--detach", "--publish", "PORT:PORT", "{IMAGE}", "sleep", "1d"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_an_engine_left_whose_process_was_killed_is_removed_by_the_next_one() -> None:
    (port,) = free_ports(1)
    words = [sys.executable, "-c", KILLED.replace("PORT", str(port))]
    killed = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
    assert (killed.returncode, len(container := killed.stdout.strip())) == (-signal.SIGKILL, 64)
    assert container in system("iptables-save", "-t", "nat")
    with PodmanEngine():
        assert container not in system("iptables-save", "-t", "nat")
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), timeout=30):
        pass
