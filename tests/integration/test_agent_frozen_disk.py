"""R26: a disk that neither takes nor refuses a write closes its node, and takes it away from nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farmd.agent import lease
from store.presence import start_ticks
from tests.agents import AgentProcess, Agents, alive, shell
from tests.fleet import eventually
from tests.frozen_disk import FrozenDisk

pytestmark = [pytest.mark.xdist_group("disks"), pytest.mark.slow]

TTL = 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with FrozenDisk(folder, megabytes=32) as made:
        yield made


async def closed(rig: Agents, why: str) -> str:
    """The session of the node, once its presence says so."""

    async def said() -> str:
        found = await rig.presence()
        return found[1] if found is not None and found[0].closed == why else ""

    return str(await eventually(said, what=f"presence that is closed by {why!r}"))


async def test_r26_a_frozen_disk_closes_its_node_whose_session_and_leases_go_on(
    rig: Agents, disk: FrozenDisk
) -> None:
    bound = shell("exec sleep 1000", stop_after=10.0)
    state = {"FARMD_AGENT__STATE_DIR": str(disk.path / "n1"), "FARMD_AGENT__TTL": str(TTL)}
    async with AgentProcess(rig, **state):
        await rig.want(bound)
        await rig.want(shell("exec sleep 1000"), instance="other")
        before = await rig.until(lambda r: r.phase == "running")
        other = await rig.until(lambda r: r.phase == "running", instance="other")
        session = await closed(rig, "")
        shim = int(Path(f"/proc/{before.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        began = lease.overdue_of(shim)
        assert began is not None
        disk.freeze()
        try:
            assert await closed(rig, "the disk does not answer") == session
            await rig.unwant(instance="other")

            async def stopped() -> bool:
                return start_ticks(other.pid) is None

            await eventually(stopped, what="the end of a pod while the disk is frozen")

            async def outlived() -> bool:
                return (lease.overdue_of(shim) or 0.0) > began + 3 * TTL

            await eventually(outlived, what="renewals for longer than the session and the lease")
            assert await closed(rig, "the disk does not answer") == session
            assert alive(before)
        finally:
            disk.thaw()
        assert await closed(rig, "") == session
        await rig.until_gone(instance="other")
        await rig.want(shell("exec sleep 999"), instance="late")
        await rig.until(lambda r: r.phase == "running", instance="late")
        assert (await rig.realities())["web"].pid == before.pid
        await rig.unwant()
        await rig.unwant(instance="late")
        await rig.until_gone()
        await rig.until_gone(instance="late")
