"""What only units of systemd have: limits, mounts, files, other people's units, and a systemd that is away.

``test_systemd.py`` runs this where systemd is the first process.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farmd.agent import lease, shim
from farmd.agent.runtimes import systemd
from store.containers import Limits, Mount, Secret
from store.manifests import HealthCheck, Manifest, Restart, Sidecar, Stop
from store.presence import start_ticks
from tests.agents import FAST, Agents, alive, logged
from tests.fleet import eventually
from tests.integration.runtimes.test_contract import begun, processes, ran

WAITS = "while :; do sleep 0.05; done"
HOUR = Restart(initial=3600, maximum=3600)
UNIT = "farmd..n1..web.service"


def unit(script: str = WAITS, /, **fields: Any) -> Manifest:
    """A pod that runs a shell script in a unit."""
    given: dict[str, Any] = {
        "id": "web",
        "command": ["/bin/sh", "-c", script],
        "runtime": "systemd",
        "restart": FAST,
        "stop": Stop(grace=0.2),
    }
    return Manifest(**(given | fields))


def systemctl(*words: str) -> str:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def test_memory_is_limited(rig: Agents) -> None:
    await rig.agent()
    await rig.want(unit("echo up; tail /dev/zero", limits=Limits(memory=48 * 2**20), restart=HOUR))
    told = await rig.until(lambda r: r.exits)
    assert (told.exits[-1].code, told.reason) == (137, "out of memory: its limit is 48 MiB")


async def test_r43_a_sidecar_that_runs_out_of_memory_is_told_as_such(rig: Agents) -> None:
    await rig.agent()
    hog = Sidecar(name="hog", command=["tail", "/dev/zero"])
    await rig.want(unit("exec sleep 1000", limits=Limits(memory=48 * 2**20), restart=HOUR, sidecars=[hog]))
    told = await rig.until(lambda r: r.sidecars and r.sidecars["hog"].reason)
    assert told.sidecars["hog"].reason == "out of memory, ended by SIGKILL"
    assert (told.phase, told.restarts, told.exits) == ("running", 0, [])


async def test_tasks_are_limited(rig: Agents) -> None:
    running = await rig.agent()
    script = "(i=0; while [ $i -lt 40 ]; do sleep 9 & i=$((i+1)); done) 2>&1; "
    await rig.want(unit(script + WAITS, limits=Limits(pids=20), restart=HOUR))
    assert "fork" in await logged(running, "fork")


async def test_cpu_is_limited(rig: Agents) -> None:
    await rig.agent()
    await rig.want(unit("while :; do :; done", limits=Limits(cpu=0.2)))
    told = await rig.until(lambda r: r.phase == "running")
    groups = [line.split(":")[2] for line in Path(f"/proc/{told.pid}/cgroup").read_text().splitlines()]
    stats = [Path(f"/sys/fs/cgroup/{kind}/{group}/cpu.stat") for kind in (".", "cpu") for group in groups]

    async def throttled() -> bool:
        words = [line.split() for path in stats if path.exists() for line in path.read_text().splitlines()]
        return any(int(count) > 0 for name, count in words if name == "nr_throttled")

    await eventually(throttled, what="a period in which the pod was held back")


async def test_a_volume_and_a_check_are_the_users(rig: Agents) -> None:
    await rig.agent()
    inside = ["/bin/sh", "-c", "test -e /srv/data/up && test $(id -u) = 65534 && test $(pwd) = /srv/data"]
    check = HealthCheck(type="command", command=inside, interval=0.1, timeout=60)
    mounts = [Mount(source="of-nobody", target="/srv/data")]
    fields = {"user": "nobody", "working_directory": "/srv/data", "health": check, "mounts": mounts}
    await rig.want(unit(f"touch up; {WAITS}", **fields))
    assert (await rig.until(lambda r: r.health.state != "unknown")).health.state == "passing"


async def test_r42_a_persons_command_is_in_the_unit(rig: Agents) -> None:
    """It has the unit's user, environment and view of files, and ends with the unit."""
    running = await rig.agent()
    mounts = [Mount(type="tmpfs", target="/srv/own", mode=0o1777)]
    fields = {
        "user": "nobody",
        "working_directory": "/srv/own",
        "env": {"COLOUR": "blue"},
        "mounts": mounts,
        "limits": Limits(memory=48 * 2**20),
    }
    await rig.want(unit(f"echo mine > /srv/own/file; echo up; {WAITS}", restart=HOUR, **fields))
    await logged(running, "up")
    identity = rig.identities()[0]
    theirs = [Path(f"/proc/{identity.pid}/{name}").readlink() for name in ("ns/mnt", "ns/net", "ns/pid")]
    script = (
        "id -un; id -G; echo $COLOUR $HOME; cat /srv/own/file; readlink /proc/self/ns/mnt /proc/self/ns/net"
    )
    code, shown, problems = await ran(running, f"{script} /proc/self/ns/pid")
    assert (code, problems) == (0, "")
    user, groups, given, file, *spaces = shown.splitlines()[:7]
    assert (user, groups, file, spaces) == ("nobody", "65534", "mine", [str(each) for each in theirs])
    assert given.startswith("blue ")
    assert (await rig.until(lambda r: True)).restarts == 0
    execution = await begun(running, "trap '' HUP; setsid sleep 4712 & wait")
    await eventually(lambda: found("sleep 4712"), what="its process")
    os.kill(identity.shim, signal.SIGKILL)
    await eventually(lambda: found("sleep 4712", there=False), what="the end with the unit")
    await execution.end()


async def found(line: str, *, there: bool = True) -> bool:
    """Whether a process of this command line is there."""
    return bool(processes(line)) == there


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"mounts": [Mount(type="bind", source="/etc", target="/srv/x")]}, "agent.allow: this node does not"),
        ({"secrets": [Secret(name="absent")]}, "secrets: absent: No such file or directory in"),
        ({"mounts": [Mount(source="data", subpath="no", target="/srv/x")]}, "volumes/data/no does not exist"),
    ],
)  # fmt: skip
async def test_what_cannot_be_prepared_is_refused_and_the_former_one_stays(
    rig: Agents, fields: dict[str, Any], why: str
) -> None:
    await rig.agent()
    await rig.want(unit())
    before = await rig.until(lambda r: r.phase == "running")
    index = await rig.want(unit(**fields))
    told = await rig.until(lambda r: r.refused == index and why in r.reason)
    assert (told.pid, told.phase) == (before.pid, "running")


async def test_r26_what_leaves_the_workload_ends_with_its_unit(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(unit(f"setsid sh -c 'sleep 1000 & echo left $!; wait' & {WAITS}", restart=HOUR))
    left = int((await logged(running, "left")).split()[1])
    identity = rig.identities()[0]
    os.kill(identity.shim, signal.SIGKILL)
    told = await rig.until(lambda r: r.phase == "backoff")
    assert ([end.code for end in told.exits], start_ticks(identity.pid)) == ([-9], None)

    async def gone() -> bool:
        return start_ticks(left) is None

    await eventually(gone, what="the end of what left the workload")


async def test_who_stops_the_unit_asks_the_workload(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(
        unit(f"trap 'echo polite; exit 5' TERM; echo up; {WAITS}", restart=HOUR, stop=Stop(grace=60))
    )
    await logged(running, "up")
    systemctl("stop", UNIT)
    told = await rig.until(lambda r: r.phase == "backoff")
    assert [end.code for end in told.exits] == [5]
    await logged(running, "polite")


async def test_anothers_unit_of_that_name_is_refused_and_left_alone(rig: Agents) -> None:
    await rig.agent()
    subprocess.run(["systemd-run", "--quiet", f"--unit={UNIT}", "sleep", "1000"], check=True, timeout=180)
    try:
        await rig.want(unit())
        told = await rig.until(lambda r: r.phase == "failed")
        assert told.reason.startswith(f"systemd has another unit {UNIT}, which farmd did not start: ")
        assert told.reason.endswith("sleep 1000")
        assert systemctl("is-active", UNIT) == "active"
    finally:
        systemctl("stop", UNIT)
    await rig.until(lambda r: r.phase == "running")


async def test_an_installed_unit_of_that_name_is_refused(rig: Agents) -> None:
    installed = Path("/run/systemd/system") / UNIT
    installed.write_text("[Service]\nExecStart=/usr/bin/sleep 1000\n")
    await rig.agent()
    try:
        await rig.want(unit())
        told = await rig.until(lambda r: r.phase == "failed")
        assert told.reason.startswith(f"systemd has another unit {UNIT}, which farmd did not start: ")
    finally:
        installed.unlink()
        systemctl("daemon-reload")
    await rig.until(lambda r: r.phase == "running")


@pytest.mark.parametrize("again", ["daemon-reload", "daemon-reexec"])
async def test_r27_a_systemd_that_begins_again_takes_no_unit_with_it(rig: Agents, again: str) -> None:
    running = await rig.agent()
    await rig.want(unit(f"trap 'echo signal' USR1; echo up; {WAITS}"))
    before = await rig.until(lambda r: r.phase == "running")
    await logged(running, "up")
    systemctl(again)
    os.kill(before.pid, signal.SIGUSR1)
    assert await logged(running, "signal") == "up\nsignal\n"
    index = await rig.want(unit(env={"V": "2"}))
    after = await rig.until(lambda r: r.intent == index and r.phase == "running")
    assert (after.restarts, alive(before)) == (0, False)


@pytest.fixture
def bus_pid() -> Iterator[int]:
    pid = int(systemctl("show", "--property=MainPID", "--value", "dbus.service"))
    yield pid
    os.kill(pid, signal.SIGCONT)


async def test_r26_a_systemd_that_hangs_starts_and_ends_nothing(
    rig: Agents, bus_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await rig.agent()
    await rig.want(unit(restart=HOUR))
    before = await rig.until(lambda r: r.phase == "running")
    await first.close()
    monkeypatch.setattr("farmd.agent.runtimes.systemd.ANSWER_SECONDS", 0.5)
    os.kill(bus_pid, signal.SIGSTOP)
    second = await rig.agent()
    told = await rig.until(lambda r: "does not answer" in r.reason)
    assert (told.exits, alive(before)) == ([], True)
    os.kill(bus_pid, signal.SIGCONT)
    after = await rig.until(lambda r: r.phase == "running" and not r.reason)
    assert (after.pid, after.started, after.restarts) == (before.pid, before.started, 0)
    assert "runtime.systemd" in second.agent.runtimes.features()


async def test_r26_a_start_that_was_not_answered_never_begins(
    rig: Agents, bus_pid: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await rig.agent()
    usual = systemd.ANSWER_SECONDS
    monkeypatch.setattr("farmd.agent.runtimes.systemd.ANSWER_SECONDS", 0.5)
    os.kill(bus_pid, signal.SIGSTOP)
    began = tmp_path / "began"
    index = await rig.want(unit(f"echo $$ >> {began}; {WAITS}"))
    await rig.until(lambda r: "does not answer" in r.reason)
    await rig.unwant()
    await rig.until_gone()
    monkeypatch.setattr("farmd.agent.runtimes.systemd.ANSWER_SECONDS", usual)
    os.kill(bus_pid, signal.SIGCONT)
    await rig.want(unit(f"echo $$ >> {began}; {WAITS}", env={"V": "2"}))
    told = await rig.until(lambda r: r.phase == "running" and r.intent > index)

    async def written() -> bool:
        return began.exists()

    await eventually(written, what="the start")
    assert began.read_text().split() == [str(told.pid)]


async def test_r26_after_a_reboot_each_is_started_once(rig: Agents) -> None:
    first = await rig.agent()
    await rig.want(unit())
    before = await rig.until(lambda r: r.phase == "running")
    await first.crash()
    systemctl("kill", "--signal=KILL", UNIT)
    record = rig.root / "n1" / "instances" / "web" / shim.IDENTITY
    record.write_bytes(msgspec.json.encode(msgspec.json.decode(record.read_bytes()) | {"boot": "another"}))

    async def gone() -> bool:
        return not alive(before)

    await eventually(gone, what="the end")
    await rig.agent()
    after = await rig.until(lambda r: r.phase == "running" and r.restarts == 1)
    assert [end.code for end in after.exits] == [-9]
    assert (
        len([line for line in systemctl("list-units", "--plain", "farmd..*").splitlines() if UNIT in line])
        == 1
    )


async def test_r27_a_unit_whose_agent_is_gone_ends_within_stop_after(rig: Agents) -> None:
    agent = await rig.agent()
    manifest = unit(f"trap '' TERM; {WAITS}", stop_after=2.0, stop=Stop(grace=1000), limits=Limits(pids=3))
    await rig.want(manifest)
    before = await rig.until_running(manifest)
    assert any(lease.overdue_of(each.shim) for each in rig.identities())
    await agent.crash()

    async def ended() -> bool:
        return not alive(before) and "farmd..n1..web" not in systemctl("list-units", "--all", "farmd..*")

    await eventually(ended, what="the end of the unit")
    await rig.agent()
    await rig.until(lambda r: r.phase == "running" and r.pid != before.pid)
