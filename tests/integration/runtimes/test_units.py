"""The units of this project under a real systemd: put in place by ``make install-systemd``, then upgraded.

A farm and an agent of an earlier version run a workload. Each of them is replaced by this version, one after
the other; then the farm is reloaded, killed, stalled, stopped and badly configured. The workload never ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from store import codec
from store.consul.client import ConsulClient
from store.entry import Entry
from store.farms import Member
from store.keys import Keys
from store.locks import Holder
from store.nodes import Agent
from store.reality import Reality
from tests import earlier
from tests.engine import EngineMissing, PodmanEngine
from tests.farmctl import ROOT, Farmctl
from tests.fleet import client_of
from tests.processes import Program, eventually
from tests.systemd import Machine

pytestmark = [pytest.mark.xdist_group("systemd"), pytest.mark.slow]

T = TypeVar("T")
KEYS = Keys(f"units-{os.getpid()}/")
CODE = "/opt/farmd/code"
# What a machine of a test lacks: the unit starts this as /opt/farmd/bin/farmd, of the version that is linked.
PROGRAM = """\
#!/bin/sh
export LD_LIBRARY_PATH=/opt/farmd/python/lib
PYTHONPATH=/opt/farmd/version:/opt/farmd/libraries exec /opt/farmd/python/bin/python3 -m farmd "$@"
"""
# A stalled farm is stopped by a signal here, so it does not hear systemd's first one.
QUICK = "[Service]\nTimeoutAbortSec=1\nRestartSec=1\nStandardOutput=append:/run/{0}.log\n"
HELLO = (
    "{name: hello, replicas: 1, min_healthy_time: 0,"
    " pod: {id: hello, command: [sleep, '1000'], stop: {grace: 1}}}"
)


def make(*words: str) -> None:
    """Run make in this checkout."""
    subprocess.run(["make", "-s", *words], cwd=ROOT, check=True, timeout=180)


def read(consul: str, what: Callable[[ConsulClient], Awaitable[T]]) -> T:
    """Ask the store."""

    async def ask() -> T:
        client = client_of(consul)
        try:
            return await what(client)
        finally:
            await client.close()

    return asyncio.run(ask())


class Host:
    """The machine with the units, the store that they use, and people at it."""

    def __init__(self, machine: Machine, consul: str, folder: Path) -> None:
        self.machine, self.consul, self._folder = machine, consul, folder
        self.farmctl = Farmctl(consul, KEYS.prefix, inside=True)

    def install(self) -> None:
        """What an administrator does, and the settings of the test."""
        make("install-systemd", f"DESTDIR={self._folder}", "LIBDIR=/etc")
        own = {
            "farmd": ["FARMD_FARM__NAME=unit", "FARMD_WEB__FARM_PORT=0"],
            "farmd-agent": ["FARMD_AGENT__NODE=n1", "FARMD_WEB__AGENT_PORT=0"],
        }
        for unit, more in own.items():
            lines = [f"CONSUL_HTTP_ADDR={self.consul}", f"FARMD_STORE__PREFIX={KEYS.prefix}", *more]
            with (self._folder / "etc/default" / unit).open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
            place = self._folder / f"etc/systemd/system/{unit}.service.d"
            place.mkdir(exist_ok=True)
            (place / "test.conf").write_text(QUICK.format(unit))
        program = self._folder / "opt/farmd/bin/farmd"
        program.parent.mkdir(parents=True)
        program.write_text(PROGRAM)
        program.chmod(0o755)
        self.machine.put(self._folder)
        for line in (
            "mount --make-rshared /",
            "systemd-sysusers",
            "systemd-tmpfiles --create /etc/tmpfiles.d/farmd.conf",
            "systemctl daemon-reload",
        ):
            self.run(*line.split())

    def run(self, *words: str) -> str:
        """Run a command on the machine; it must succeed."""
        done = self.machine.execute(*words, seconds=120.0)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{self.log('farmd')}\n{self.log('farmd-agent')}"
        return done.stdout.strip()

    def log(self, unit: str) -> str:
        """The end of what a unit said."""
        return self.machine.execute("tail", "-n", "30", f"/run/{unit}.log").stdout

    def link(self, version: str) -> None:
        """Put a version in place of the one that is there."""
        self.run("ln", "-sfn", version, "/opt/farmd/version")

    def told(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).split("\n")[-1]

    def record(self, key: str, kind: type[T]) -> T | None:
        """A record as it stands."""
        entry = read(self.consul, lambda client: client.read(key, mode="consistent"))
        return None if entry is None else codec.decode(kind, entry.value, key)

    def workload(self) -> tuple[int, float]:
        """The process of the pod, which must be one that runs."""
        found = self.record(KEYS.reality("n1", "hello"), Reality)
        assert found is not None
        assert found.phase == "running"
        return found.pid, found.started

    def owners(self) -> set[str]:
        """Who holds the locks of items."""
        page = read(self.consul, lambda client: client.list(KEYS.tree("locks"), mode="consistent"))
        entries = [Entry.of(raw) for raw in page.items]
        return {Holder.parse(each.value).id for each in entries if each.session}

    def again(self, unit: str, was: str) -> str:
        """The main process of a unit once it is another one and ready; systemd started it."""

        def other() -> str:
            found = self.told(unit, "MainPID")
            return found if found not in ("0", was) and self.told(unit, "SubState") == "running" else ""

        found: str = eventually(f"another process of {unit}", other)
        return found


@pytest.fixture
def host(shared_engine: PodmanEngine, consul_dev: str, tmp_path: Path) -> Iterator[Host]:
    libraries = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    mounts = {
        "/opt/farmd/python": sys.base_prefix,
        "/opt/farmd/libraries": str(libraries),
        CODE: str(ROOT),
        f"{CODE}-earlier": str(earlier.tree(earlier.BEFORE_DEPLOYMENTS)),
    }
    try:
        machine = Machine(shared_engine, mounts)
    except EngineMissing as error:
        pytest.fail(str(error), pytrace=False)
    with machine:
        yield Host(machine, consul_dev, tmp_path / "root")


def test_the_units_run_are_upgraded_in_place_and_leave_the_workload_alone(host: Host, tmp_path: Path) -> None:
    host.install()
    host.link(f"{CODE}-earlier")
    host.run("systemctl", "start", "farmd", "farmd-agent")  # returns once both are ready
    old = {_of(host, KEYS.farm("unit"), Member), _of(host, KEYS.agent("n1"), Agent)}
    assert len(old) == 1
    host.farmctl.ok("rc", "create", "-f", "-", "--wait", "--timeout", "150s", stdin=HELLO)
    workload = host.workload()

    _upgraded(host, old.pop(), workload)
    _reloaded(host)
    _killed_and_stalled(host)
    _handed_over(host, tmp_path)
    _not_started_again(host)
    assert host.workload() == workload
    assert host.run("cat", f"/proc/{workload[0]}/comm").endswith("sleep")


def _of(host: Host, key: str, kind: type[Any]) -> str:
    """The version that a process announced."""
    found = eventually(key, lambda: host.record(key, kind))
    return str(found.version)


def _upgraded(host: Host, old: str, workload: tuple[int, float]) -> None:
    """R27: the agent is upgraded first, and works with the old farm; then the farm."""
    host.link(CODE)
    host.run("systemctl", "restart", "farmd-agent")
    eventually("an agent of this version", lambda: _of(host, KEYS.agent("n1"), Agent) != old)
    assert _of(host, KEYS.farm("unit"), Member) == old
    host.farmctl.ok("rc", "set-replicas", "hello", "1", "-y", "--wait", "--timeout", "150s")
    assert host.workload() == workload
    host.run("systemctl", "restart", "farmd")
    eventually("a farm of this version", lambda: _of(host, KEYS.farm("unit"), Member) != old)
    assert host.workload() == workload


def _reloaded(host: Host) -> None:
    """A reload changes settings, and not the process."""
    before = host.told("farmd", "MainPID")
    host.run("sh", "-c", "printf '[log]\\nlevel = \"debug\"\\n' >/etc/farmd/farmd.toml")
    host.run("systemctl", "reload", "farmd")
    eventually("a reload", lambda: '"config.reloaded"' in host.run("cat", "/run/farmd.log"))
    assert host.told("farmd", "MainPID") == before


def _killed_and_stalled(host: Host) -> None:
    """A farm that is killed, or makes no progress, is started again."""
    killed, restarts = host.told("farmd", "MainPID"), int(host.told("farmd", "NRestarts"))
    host.run("kill", "-KILL", killed)
    stalled = host.again("farmd", killed)
    assert int(host.told("farmd", "NRestarts")) == restarts + 1
    host.run("kill", f"-{signal.Signals.SIGSTOP.name.removeprefix('SIG')}", stalled)
    host.again("farmd", stalled)
    assert int(host.told("farmd", "NRestarts")) == restarts + 2
    agent = host.told("farmd-agent", "MainPID")
    host.run("kill", "-KILL", agent)
    host.again("farmd-agent", agent)


def _handed_over(host: Host, folder: Path) -> None:
    """R4: once systemd calls a farm stopped its session is over, and nobody waits for the end of its TTL."""
    variables = {
        "CONSUL_HTTP_ADDR": host.consul,
        "FARMD_STORE__PREFIX": KEYS.prefix,
        "FARMD_FARM__NAME": "heir",
    }
    with Program("run", "--port", "0", folder=folder, **variables) as heir:
        heir.wait_for("process.ready")
        eventually("work of the unit's farm", lambda: "unit" in host.owners())
        host.run("systemctl", "stop", "farmd")
        assert host.record(KEYS.farm("unit"), Member) is None
        assert "unit" not in host.owners()
        eventually("the heir's locks", lambda: host.owners() == {"heir"})
        host.run("systemctl", "start", "farmd")


def _not_started_again(host: Host) -> None:
    """A bad configuration ends with 78, and systemd leaves it at that."""
    host.run("sh", "-c", "echo '[nonsense]' >/etc/farmd/farmd.toml")
    assert host.machine.execute("systemctl", "restart", "farmd").returncode != 0
    found = {name: host.told("farmd", name) for name in ("ActiveState", "ExecMainStatus", "NRestarts")}
    assert found == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
