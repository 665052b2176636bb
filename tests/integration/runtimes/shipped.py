"""Workloads of an agent that the shipped unit runs as root; ``test_shipped.py`` runs this on its machine."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store.containers import Limits, Mount
from store.manifests import HealthCheck, Manifest, Restart, Stop
from tests.agents import FAST, Agents, agents_on
from tests.farmctl import Farmctl, Result
from tests.fleet import eventually

STATE = Path("/var/lib/farmd-agent")
TOKEN = "the-agents-own-token"
WAITS = "while :; do sleep 0.1; done"
RUNTIMES = ("process", "systemd")
HOUR = Restart(initial=3600, maximum=3600)


def systemctl(*words: str) -> None:
    subprocess.run(["systemctl", *words], check=True, timeout=120)


@pytest.fixture
async def rig(consul_dev: str) -> AsyncIterator[Agents]:
    async with agents_on(consul_dev, STATE.parent) as made:
        credentials = Path("/etc/credstore")
        credentials.mkdir(mode=0o700, exist_ok=True)
        for name in ("consul-token", "farmd-agent-token"):
            (credentials / name).write_text(TOKEN)
        settings = {
            "CONSUL_HTTP_ADDR": consul_dev,
            "FARMD_STORE__PREFIX": made.keys.prefix,
            "FARMD_AGENT__NODE": "n1",
            "FARMD_AGENT__SYSTEMD": "unix:path=/run/dbus/system_bus_socket",
            "FARMD_AGENT__ALLOW": "processes,/srv/shared",
            "FARMD_AGENT__EXEC": "true",
            "FARMD_WEB__READ": "open",
        }
        Path("/etc/default/farmd-agent").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        systemctl("restart", "farmd-agent")

        async def present() -> bool:
            found = await made.presence()
            return found is not None and "runtime.systemd" in found[0].features

        await eventually(present, what="the agent")
        yield made
        systemctl("stop", "farmd-agent")
    # The next one has another cluster.
    subprocess.run(["systemctl", "stop", "farmd..*"], check=False, timeout=120)
    for each in (STATE / "instances").iterdir():
        each.rename(Path("/tmp") / f"{each.name}-{made.keys.prefix.replace('/', '')}")
    (STATE / "agent.json").unlink()


def pod(script: str, /, **fields: Any) -> Manifest:
    given = {"id": "web", "command": ["/bin/sh", "-c", script], "restart": FAST, "stop": Stop(grace=0.2)}
    return Manifest(**(given | fields))


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def uid(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


async def logged(instance: str, text: str) -> str:
    """The log of an instance, once the text is in it."""
    path = STATE / "instances" / instance / "logs/current.log"

    async def found() -> str:
        return path.read_text() if path.exists() and text in path.read_text() else ""

    return str(await eventually(found, what=f"{text!r} in the log of {instance}"))


async def test_the_kernel_ends_workloads_first_and_shims_last(rig: Agents) -> None:
    for runtime in RUNTIMES:
        command = [
            "/bin/sh",
            "-c",
            f"cat /proc/self/oom_score_adj >/tmp/$$ && mv /tmp/$$ /tmp/check-{runtime}",
        ]
        check = HealthCheck(type="command", command=command, timeout=60)
        await rig.want(pod(WAITS, runtime=runtime, health=check), instance=runtime)
    for runtime in RUNTIMES:
        told = await rig.until(lambda r: r.health.state == "passing", instance=runtime)
        shim = next(each.shim for each in rig.identities() if each.instance == runtime)
        assert (score(told.pid), score(shim)) == (0, -500), runtime
        assert Path(f"/tmp/check-{runtime}").read_text() == "0\n"


async def test_a_workload_is_another_user_and_reads_nothing_of_the_agents(rig: Agents) -> None:
    script = (
        "for each in /run/credentials/farmd-agent.service/* /etc/credstore/* /var/lib/farmd-agent/agent.json"
        " /var/lib/farmd-agent/manifests/*; do cat $each && echo READ $each; done;"
        " grep NoNewPrivs /proc/self/status; env; echo DONE; "
    )
    for runtime in RUNTIMES:
        await rig.want(pod(script + WAITS, runtime=runtime), instance=runtime)
    for runtime in RUNTIMES:
        said = await logged(runtime, "DONE")
        told = await rig.until(lambda r: r.phase == "running", instance=runtime)
        descriptors = sorted(int(each.name) for each in Path(f"/proc/{told.pid}/fd").iterdir())
        assert uid(told.pid) == pwd.getpwnam("farmd-pods").pw_uid
        assert ("READ" in said, TOKEN in said, "NoNewPrivs:\t1" in said) == (False, False, True), said
        # 10 is where this shell has its own input.
        assert [each for each in descriptors if each != 10] == [0, 1, 2]
    agent = subprocess.check_output(["systemctl", "show", "--value", "-p", "MainPID", "farmd-agent"])
    assert uid(int(agent)) == 0


async def test_r42_a_persons_command_is_in_the_pod(rig: Agents, consul_dev: str) -> None:
    """It has the pod's user, privileges and environment, and its memory counts for the pod's limit."""
    farmctl = Farmctl(consul_dev, rig.keys.prefix)

    async def ran(runtime: str, *command: str) -> Result:
        return await asyncio.to_thread(farmctl, "pod", "exec", f"n1/{runtime}", "--", *command)

    script = 'id -un; echo "$COLOUR"; grep NoNewPrivs /proc/self/status; cat /proc/self/cgroup'
    limits = Limits(memory=48 * 2**20)
    for runtime in RUNTIMES:
        await rig.want(
            pod(WAITS, runtime=runtime, limits=limits, env={"COLOUR": "blue"}, restart=HOUR), instance=runtime
        )
    for runtime in RUNTIMES:
        told = await rig.until(lambda r: r.phase == "running", instance=runtime)
        done = await ran(runtime, "sh", "-c", script)
        assert done.code == 0, done
        user, colour, privileges, group = done.out.splitlines()
        theirs = Path(f"/proc/{told.pid}/cgroup").read_text().strip()
        inside = theirs.rpartition("/")[0] if runtime == "process" else theirs
        assert (user, colour, privileges) == ("farmd-pods", "blue", "NoNewPrivs:\t1")
        assert group.startswith(f"{inside}/"), (group, theirs)
        assert "/exec-" in group
        hog = await ran(runtime, "tail", "/dev/zero")
        assert hog.code == 128 + signal.SIGKILL, hog
        after = await rig.until(lambda r: True, instance=runtime)
        assert (after.pid, after.restarts) == (told.pid, 0)


async def test_who_owns_the_nodes_other_things_is_refused(rig: Agents) -> None:
    for runtime in RUNTIMES:
        for user in ("root", "messagebus"):
            await rig.want(pod(WAITS, runtime=runtime, user=user), instance=f"{runtime}-{user}")
    for runtime in RUNTIMES:
        for user in ("root", "messagebus"):
            told = await rig.until(lambda r: r.refused, instance=f"{runtime}-{user}")
            assert f"user: found {user!r}" in told.reason


async def test_a_check_is_not_root_whatever_the_workloads_variables_say(rig: Agents) -> None:
    """The PATH and a library that every program loads are in the workload's hands."""
    tools = Path("/srv/tools")
    tools.mkdir(exist_ok=True)
    for name in ("nsenter", "setpriv", "env", "choom", "python3"):
        (tools / name).write_text("#!/bin/sh\nid -u >>/tmp/found-on-path\n")
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin", "LD_PRELOAD": f"{tools}/mine.so", "PYTHONPATH": str(tools)}
    for runtime in RUNTIMES:
        # The loader complains of a library that is none: only to whom runs with the variable.
        command = [
            "/bin/sh",
            "-c",
            f"cd /tmp; id -u >{runtime}.uid && mv {runtime}.uid uid-{runtime};"
            " test $LD_PRELOAD && test -e /srv/tools/env",
        ]
        check = HealthCheck(type="command", command=command, interval=0.2, timeout=60)
        mounts = [Mount(source="data", target="/srv/data")] if runtime == "systemd" else []
        manifest = pod(WAITS, runtime=runtime, mounts=mounts, env=env, health=check)
        await rig.want(manifest, instance=runtime)
    for runtime in RUNTIMES:
        await rig.until(lambda r: r.health.state == "passing", instance=runtime)
        assert int(Path(f"/tmp/uid-{runtime}").read_text()) == pwd.getpwnam("farmd-pods").pw_uid
    assert not Path("/tmp/found-on-path").exists()


async def test_a_bind_that_a_workload_turned_into_a_link_is_refused_at_the_next_start(rig: Agents) -> None:
    shared, volume = Path("/srv/shared/own"), STATE / "volumes/data"
    shared.mkdir(parents=True)
    shared.parent.chmod(0o777)
    shared.chmod(0o777)
    await rig.want(pod("mkdir -p /v/sub; touch /v/ready; " + WAITS, **mounted(source="data", target="/v")))

    async def ready() -> bool:
        return (volume / "ready").exists()

    await eventually(ready, what="the volume")
    swap = "test -e /m/passwd && echo ESCAPED; rm -r {0}; ln -s /etc {0}; exit 1"
    bind = mounted(type="bind", source=str(shared), target="/m")
    # What a workload does in a bind of the folder above, this one does with the node's own path.
    await rig.want(pod(swap.format(shared), **bind), instance="bind")
    told = await rig.until(lambda r: "does not allow /etc" in r.reason, instance="bind")
    assert told.pid == 0
    (volume / "sub").rmdir()
    (volume / "sub").symlink_to("/etc")
    await rig.want(pod(WAITS, **mounted(source="data", subpath="sub", target="/m")), instance="volume")
    told = await rig.until(lambda r: "points outside its volume" in r.reason, instance="volume")
    assert "ESCAPED" not in (STATE / "instances/bind/logs/current.log").read_text()


GROUPS = Path("/sys/fs/cgroup/system.slice/farmd-pods")


def group_of(instance: str) -> Path:
    """The control group of a process of this node."""
    return next(iter(GROUPS.glob(f"farmd..n1..{instance}..*")), GROUPS / "none")


def main_pid() -> str:
    words = ["systemctl", "show", "--value", "-p", "MainPID", "farmd-agent"]
    return subprocess.check_output(words, text=True).strip()


async def no_group() -> bool:
    return not group_of("web").exists()


async def test_memory_of_a_process_is_limited_and_its_end_says_so(rig: Agents) -> None:
    found = await rig.presence()
    assert found is not None
    assert "runtime.limits" in found[0].features
    await rig.want(pod("echo up; tail /dev/zero", limits=Limits(memory=48 * 2**20), restart=HOUR))
    told = await rig.until(lambda r: r.exits)
    assert (told.exits[-1].cause, told.reason) == ("oom", "out of memory: its limit is 48 MiB")
    await eventually(no_group, what="the end of the group")
    assert (await rig.presence()) is not None


async def test_tasks_and_cpu_of_a_process_are_limited(rig: Agents) -> None:
    script = "(i=0; while [ $i -lt 40 ]; do sleep 9 & i=$((i+1)); done) 2>&1; while :; do :; done"
    await rig.want(pod(script, limits=Limits(pids=20, cpu=0.2), restart=HOUR), instance="tasks")
    assert "fork" in await logged("tasks", "fork")
    busy = pod("while :; do :; done", limits=Limits(cpu=0.2))
    await rig.want(busy, instance="busy")
    await rig.until(lambda r: r.phase == "running", instance="busy")

    async def throttled() -> bool:
        return "nr_throttled 0\n" not in (group_of("busy") / "cpu.stat").read_text()

    await eventually(throttled, what="a period in which the pod was held back")


async def test_r27_groups_outlive_their_agent_and_end_with_all_that_is_in_them(rig: Agents) -> None:
    leaves = "setsid sh -c 'exec setsid sleep 1000' & echo left; "
    manifest = pod(leaves + WAITS, limits=Limits(memory=64 * 2**20, pids=9))
    await rig.want(manifest)
    before = await rig.until(lambda r: r.phase == "running")
    await logged("web", "left")
    group = group_of("web")
    for words in (["restart"], ["kill", "--signal=KILL", "--kill-whom=main"], ["restart"]):
        systemctl("daemon-reload")
        agent = main_pid()
        systemctl(*words, "farmd-agent")

        async def again(former: str = agent) -> bool:
            done = subprocess.run(["systemctl", "is-active", "-q", "farmd-agent"], check=False)
            return done.returncode == 0 and main_pid() not in {former, "0"}

        await eventually(again, what="the next agent")
        told = await rig.until(lambda r: r.phase == "running")
        assert (told.pid, told.restarts) == (before.pid, 0)
        assert (group / "memory.max").read_text() == f"{64 * 2**20}\n"
    inside = [int(line) for line in (group / "cgroup.procs").read_text().split()]
    assert len(inside) >= 2
    assert all(each.shim not in inside for each in rig.identities())
    await rig.unwant()
    await rig.until_gone()
    await eventually(no_group, what="the end of the group")
    assert [each for each in inside if Path(f"/proc/{each}").exists()] == []


async def test_the_agent_tells_what_processes_and_units_use(rig: Agents) -> None:
    # The shell has as much memory as its variable, and is held back.
    script = "x=$(head -c 20000000 /dev/zero | tr '\\0' x); echo up; while :; do :; done"
    for runtime in RUNTIMES:
        limits = Limits(memory=200 * 2**20, cpu=0.2, pids=9)
        await rig.want(pod(script, runtime=runtime, limits=limits), instance=runtime)
    found = await rig.presence()
    assert found is not None
    for runtime in RUNTIMES:
        await logged(runtime, "up")
        # The machine has no name in any network.
        url = f"http://127.0.0.1:{found[0].address.rpartition(':')[2]}/v1/pods/{runtime}/usage"

        async def used(url: str = url) -> dict[str, Any]:
            answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read())
            told = json.loads(answer)["usage"] or {}
            return told if told.get("throttled_seconds") and told["cores"] else {}

        told = await eventually(used, what=f"the usage of {runtime}")
        assert 20e6 < told["memory"] <= told["memory_peak"] <= told["memory_limit"] == 200 * 2**20
        assert (0 < told["cores"] < 0.5, told["oom_kills"]) == (True, 0)
        assert 1 <= told["pids"] <= told["pids_limit"]


async def test_what_outlives_a_lost_shim_ends_before_the_next_start(rig: Agents) -> None:
    await rig.want(pod(f"setsid sleep 1000 & echo left; {WAITS}", limits=Limits(pids=9)))
    before = await rig.until(lambda r: r.phase == "running")
    await logged("web", "left")
    inside = (group_of("web") / "cgroup.procs").read_text().split()
    os.kill(rig.identities()[0].shim, signal.SIGKILL)
    told = await rig.until(lambda r: r.phase == "running" and r.pid != before.pid)
    assert told.exits[-1].cause == "lost"
    assert [each for each in inside if Path(f"/proc/{each}").exists()] == []


def mounted(**mount: Any) -> dict[str, Any]:
    return {"runtime": "systemd", "mounts": [Mount(**mount)]}
