"""R22 on a real Consul, with a real agent: a pod that does not stay up is never counted on."""

from __future__ import annotations

from pathlib import Path

from store import manifests
from store.manifests import Manifest
from tests.agents import agents_on, sha_of, shell
from tests.fleet import eventually, farm_on

GOOD = shell("exec sleep 1000")
BAD = shell("sleep 0.3; exit 1")


async def test_r22_an_update_to_what_does_not_stay_up_stops_at_the_floor(
    consul_dev: str, tmp_path: Path
) -> None:
    """Its agent starts it again so fast that a farm may never see it down: only its starts differ."""
    async with agents_on(consul_dev, tmp_path) as rig:
        await rig.agent("n1")
        async with farm_on(rig.client, keys=rig.keys):
            rc = await rig.create_rc("web", 4, manifest=GOOD, replicas_per_node=4, min_healthy_time=5.0)

            async def states(manifest: Manifest) -> list[int]:
                """The restarts of all pods that run a manifest."""
                found = (await rig.realities("n1")).values()
                return [one.restarts for one in found if one.manifest == sha_of(manifest)]

            async def converged() -> bool:
                return (await rig.status(rc)).state == "converged"

            await eventually(converged, what="four pods that stay up")
            assert len(await states(GOOD)) == 4
            await rig.client.put(rig.keys.manifest(sha_of(BAD)), manifests.canonical(BAD))
            await rig.change_rc(rc, manifest=sha_of(BAD))

            async def failed_often() -> bool:
                return max(await states(BAD), default=0) >= 10

            await eventually(failed_often, what="ten ends of the pod that was replaced")
            assert (len(await states(GOOD)), len(await states(BAD))) == (3, 1)
            assert (await rig.status(rc)).state == "progressing"
