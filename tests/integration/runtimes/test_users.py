"""Processes of an agent that is root: whose they are, before and after there were rules of users."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import msgspec

from farmd.agent.users import Users
from store.manifests import HealthCheck, Manifest
from store.reality import Reality
from tests.agents import Agents, kill, sha_of, shell

WAITS = "while :; do sleep 0.05; done"
RULES = Users(default="nobody")


def user(told: Reality) -> str:
    return pwd.getpwuid(Path(f"/proc/{told.pid}").stat().st_uid).pw_name


def forget_rules(folder: Path) -> None:
    """Make an instance's records those of an earlier version, which wrote no such fields."""
    for name, field in (("instance.json", "ruled"), ("process.json", "user")):
        found = msgspec.json.decode((folder / name).read_bytes())
        del found[field]
        (folder / name).write_bytes(msgspec.json.encode(found))


def pod(expected: str) -> Manifest:
    """A pod that is healthy if its checks run as this user."""
    command = ["/bin/sh", "-c", f"test $(id -un) = {expected}"]
    check = HealthCheck(type="command", command=command, interval=0.1, timeout=60)
    return shell(WAITS, working_directory="/", health=check)


async def test_a_pod_of_an_earlier_version_keeps_its_user_until_its_manifest_changes(rig: Agents) -> None:
    assert os.geteuid() == 0, "run as root: an agent that is not root has one user alone"
    first = await rig.agent(users=Users(share=True))
    await rig.want(pod("root"))
    before = await rig.until(lambda r: r.phase == "running")
    await first.close()
    forget_rules(first.state.directory("web"))
    await rig.agent(users=RULES)
    told = await rig.until(lambda r: r.old_user)
    assert (told.pid, told.old_user) == (before.pid, "root")
    kill(told)
    again = await rig.until(lambda r: r.pid not in (0, before.pid) and r.health.state == "passing")
    assert (user(again), again.old_user) == ("root", "root")
    changed = pod("nobody")
    await rig.want(changed)
    await rig.until_running(changed)
    after = await rig.until(lambda r: r.manifest == sha_of(changed) and r.health.state == "passing")
    assert (user(after), after.old_user) == ("nobody", "")


async def test_r11_an_older_farms_process_is_refused_and_not_tried_again(rig: Agents) -> None:
    """A farm that knows no needs of processes places one where none runs."""
    await rig.agent(users=Users(default="nobody", allow=()))
    index = await rig.want(shell(WAITS))
    told = await rig.until(lambda r: r.refused == index)
    assert "agent.allow: this node does not allow processes" in told.reason
    assert (told.restarts, told.exits, rig.identities()) == (0, [], [])
    presence = await rig.presence()
    assert presence is not None
    assert {"process", "runtime.process"}.isdisjoint(presence[0].features)
