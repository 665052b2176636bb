"""Two engines of one machine have networks of one name, as two test runs at once have."""

from __future__ import annotations

import socket

import pytest

from tests.engine import IMAGE, PodmanEngine
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
