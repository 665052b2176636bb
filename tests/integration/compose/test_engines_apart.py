"""Two engines of one machine have networks of one name, as two test runs at once have."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import pytest

from tests.engine import IMAGE, PodmanEngine
from tests.engine_traces import BLOCKS, PREFIX, Traces, system
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


COUNTED = """\
#!/bin/sh
echo $PPID >> {log}
exec /usr/sbin/iptables "$@"
"""


def test_engines_change_the_rules_of_the_machine_one_after_the_other(
    shared_engine: PodmanEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, iptables = tmp_path / "log", tmp_path / "iptables"
    iptables.write_text(COUNTED.format(log=log))
    iptables.chmod(0o755)
    with PodmanEngine() as other, ThreadPoolExecutor() as at_once:
        for engine in (shared_engine, other):
            monkeypatch.setitem(engine.environment, "PATH", f"{tmp_path}:{engine.environment['PATH']}")
        starts = [
            at_once.submit(each.run, "run", "--rm", IMAGE, "true") for each in (shared_engine, other) * 2
        ]
        assert [each.result() for each in starts] == [""] * 4
    changes = [process for process, _ in groupby(log.read_text().split())]
    assert len(changes) == len(set(changes)) >= 8


def test_no_two_engines_have_the_same_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    *taken, free = BLOCKS
    for block in taken:
        (tmp_path / f"{PREFIX}{block}").mkdir()
    last = Traces.begin()
    assert last.block == free
    last.remove()


def test_a_port_that_an_engine_had_published_when_it_lost_its_power_leads_to_this_machine_again() -> None:
    (port,) = free_ports(1)
    with PodmanEngine() as engine:
        engine.run("run", "--detach", "--publish", f"{port}:{port}", IMAGE, "sleep", "1d")
        engine.lose_power()
    with (
        socket.create_server(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port), timeout=180),
    ):
        pass


def test_a_port_that_leads_elsewhere_is_given_to_nobody() -> None:
    port, after = free_ports(2)
    rule = ["OUTPUT", "-t", "nat", "-p", "tcp", "-d", "127.0.0.1", "--dport", f"{port}:{after}"]
    system("iptables", "--wait", "-I", *rule, "-j", "DNAT", "--to-destination", "127.0.0.1:1")
    try:
        given = {each for _ in range(100) for each in free_ports(1)}
    finally:
        system("iptables", "--wait", "-D", *rule, "-j", "DNAT", "--to-destination", "127.0.0.1:1")
    assert {port, after}.isdisjoint(given)


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
    with (
        socket.create_server(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port), timeout=180),
    ):
        pass
