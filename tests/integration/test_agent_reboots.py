"""R29: a node that reboots runs no pod again that has ended, and tells which ones it lost."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from farmd.agent import shim
from store import codec
from store.manifests import Port, Restart
from tests.agents import Agents, Running, shell
from tests.fleet import eventually

NEVER = Restart(policy="never")


async def reboot(rig: Agents, running: Running) -> None:
    """Nothing that ran lives on, and what was recorded of it is of another boot."""
    await running.crash()
    for identity in rig.identities():
        for pid in (identity.shim, identity.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        path = running.state.directory(identity.instance) / shim.IDENTITY
        path.write_bytes(codec.encode(msgspec.structs.replace(identity, boot="an earlier one")))


async def test_what_succeeded_stays_done_and_what_ran_is_lost(rig: Agents) -> None:
    first = await rig.agent()
    await rig.want(shell("echo run >> runs; echo best > $FARMD_RESULT", restart=NEVER), instance="good")
    await rig.want(shell("echo run >> runs; exec sleep 1000", restart=NEVER), instance="busy")
    done = await rig.until(lambda r: r.phase == "done", instance="good")
    await rig.until(lambda r: r.phase == "running", instance="busy")

    async def ran() -> bool:
        path = first.state.work("busy") / "runs"
        return path.exists() and path.read_text() == "run\n"

    await eventually(ran, what="what the program writes first")
    await reboot(rig, first)
    again = await rig.agent()
    lost = await rig.until(lambda r: r.phase == "done", instance="busy")
    assert [(end.code, end.cause) for end in lost.exits] == [(-9, "lost")]
    assert lost.reason == "the node was restarted while it ran"
    after = (await rig.realities())["good"]
    assert (after.phase, after.exits, after.exits[0].message) == ("done", done.exits, "best")
    for instance in ("good", "busy"):
        assert (again.state.work(instance) / "runs").read_text() == "run\n"


async def test_what_is_held_is_ready_again_with_the_ports_that_were_told(rig: Agents) -> None:
    first = await rig.agent()
    manifest = shell("echo run >> runs", restart=NEVER, ports={"job": Port()})
    index = await rig.want(manifest, hold=True)
    held = await rig.until(lambda r: r.phase == "held")
    await reboot(rig, first)
    again = await rig.agent()
    after = await rig.until(lambda r: r.phase == "held" and r.intent == index)
    assert after.ports == held.ports
    await rig.want(manifest)
    await rig.until(lambda r: r.phase == "done")
    assert (again.state.work("web") / "runs").read_text() == "run\n"


@pytest.mark.parametrize("lost", ["instances/web", ""])
async def test_an_agent_that_lost_its_records_runs_nothing_again_that_it_told_the_end_of(
    rig: Agents, tmp_path: Path, lost: str
) -> None:
    """The intent stands on until its owner removes it, for the log's sake."""
    runs = tmp_path / "runs"
    first = await rig.agent()
    index = await rig.want(shell(f"echo run >> {runs}; exit 3", restart=NEVER))
    done = await rig.until(lambda r: r.phase == "done")
    await first.crash()
    shutil.rmtree(rig.root / "n1" / lost)
    again = await rig.agent()
    await rig.want(shell("exec sleep 1000", id="other"), instance="other")
    await rig.until(lambda r: r.phase == "running", instance="other")
    after = (await rig.realities())["web"]
    assert (after.phase, after.intent, after.exits, after.started) == (
        "done",
        index,
        done.exits,
        done.started,
    )
    assert runs.read_text() == "run\n"
    index = await rig.want(shell(f"echo run >> {runs}; exit 3", restart=NEVER), restart=1)
    await rig.until(lambda r: r.restart == 1 and r.phase == "done")
    assert runs.read_text() == "run\nrun\n"
    assert again.state.load("web") is not None
