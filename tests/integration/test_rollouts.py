"""Rollouts on a real Consul: to the end and back, with farms that die, lend, take and share.

After each run: the audit adds up to the pods that stand, counts equal pods, and one controller has the name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from farmd.commands.mutation import Call, Guard, Mutation, commit
from farmd.rollout import commands, creation
from farmd.runtime.clock import SystemIds
from store import codec, manifests, operations
from store.audit import Audit
from store.checkpoint import replay
from store.errors import Conflict, NotFound
from store.history import Ended, History
from store.manifests import Manifest
from store.named import NamedRecords, decode_named
from store.policies import Policy, Stage
from store.rcs import ReplicationController
from store.rollouts import KIND, RolloutStatus
from tests.fleet import CLOCK, Cluster, RunningFarm, cluster_on, eventually, farm_on, start_farm
from tests.mortal import bury, mortal_farm
from tests.obedient import Obedient, obedient

FIRST = Manifest(id="web", command=["first"])
SECOND = Manifest(id="web", command=["second"])
KINDS = ("rcs", "rollouts")
QUICK = Policy(stages=["100%"], progress_deadline=1.0, min_healthy_time=0.0)
STAGED = msgspec.structs.replace(QUICK, stages=[Stage(to=1), Stage(to="100%", approve=True)])
PATIENT = msgspec.structs.replace(QUICK, stages=[1, "100%"], progress_deadline=60.0)


def digest(manifest: Manifest) -> str:
    return manifests.digest(manifests.canonical(manifest))


class Rolling:
    """A controller with pods, its rollouts, and somebody who gives the word."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@test")
        self.rc: ReplicationController | None = None

    async def begin(self, replicas: int, policy: Policy = QUICK, **fields: Any) -> str:
        """A controller with its pods, and a rollout to the second manifest; the rollout's id."""
        names = {f"n{number}": {} for number in range(replicas + 1)}
        await self.cluster.add_nodes(names)
        self.rc = await self.cluster.create_rc(
            "web", replicas, manifest=FIRST, min_healthy_time=0.0, **fields
        )
        await self.placed(replicas)
        return await self.update(SECOND, policy)

    async def update(self, manifest: Manifest, policy: Policy = QUICK, **fields: Any) -> str:
        records = NamedRecords(self.call.client, self.call.keys, "rcs", ReplicationController, "rc")
        stored, _ = await records.named("web")
        assert stored is not None
        body = manifests.canonical(manifest)
        wanted = msgspec.structs.replace(stored.record, manifest=manifests.digest(body))
        held = Guard((operations.check_not_exists(self.call.keys.mutation_lock("rcs", stored.record.id)),))
        ensured = (manifests.ensure(self.call.keys, body),)
        mutation = await creation.begin(self.call, stored, wanted, held, ensured, policy=policy, **fields)
        await commit(self.call, mutation)
        return mutation.change.id

    async def say(self, mutation: Mutation) -> None:
        await commit(self.call, mutation)

    async def placed(self, count: int) -> None:
        assert self.rc is not None
        rc = self.rc

        async def enough() -> bool:
            return len(await self.cluster.pods(rc.id)) == count

        await eventually(enough, what=f"{count} pods")

    async def ended(self, ident: str) -> Ended:
        async def over() -> Ended | None:
            history = await History(self.call.client, self.call.keys).read("web")
            return next((each for each, _ in history if each.id == ident), None)

        return await eventually(over, what="the end of the rollout")  # type: ignore[no-any-return]

    async def status(self, ident: str, said: str) -> RolloutStatus:
        """Its status, once it speaks of that."""

        async def says() -> RolloutStatus | None:
            entry = await self.call.client.read(self.call.keys.status(KIND, ident))
            found = None if entry is None else codec.decode(RolloutStatus, entry.value, entry.key)
            return found if found is not None and said in f"{found.phase} {found.reason}" else None

        return await eventually(says, what=f"a status of {said!r}")  # type: ignore[no-any-return]

    async def controllers(self) -> dict[str, ReplicationController]:
        found = await self.cluster.entries(self.call.keys.tree("rcs"))
        stored = [decode_named(ReplicationController, self.call.keys, entry) for entry in found.values()]
        return {each.record.name: each.record for each in stored}

    async def whole(self, manifest: Manifest, replicas: int) -> None:
        """One controller is left, unmanaged, with exactly its pods on that manifest; the audit adds up."""
        sha = digest(manifest)

        async def so() -> bool:
            (rc,) = (await self.controllers()).values()
            pods = await self.cluster.pods(rc.id)
            return len(pods) == rc.replicas_desired == replicas

        await eventually(so, what="as many pods as the count says")
        (rc,) = (await self.controllers()).values()
        assert (rc.name, rc.manifest, rc.managed_by, rc.taken) == ("web", sha, "", False)
        intents = await self.cluster.intents()
        assert set(intents) == set(await self.cluster.pods(rc.id))
        assert {(each.owner, each.manifest) for each in intents.values()} == {(rc.id, sha)}
        entry = await self.call.client.read(self.call.keys.name("rcs", "web"))
        assert entry is not None
        assert codec.decode(str, entry.value, entry.key) == rc.id
        await self.replayed()
        for left in (KIND, f"names/{KIND}", f"work/{KIND}", f"locks/rcs/{rc.id}/mutation"):
            assert await self.cluster.entries(self.call.keys.tree(left)) == {}

    async def replayed(self) -> None:
        records: dict[int, list[Audit]] = {}
        for entry in (await self.cluster.entries(self.call.keys.tree("audit"))).values():
            records.setdefault(entry.create_index, []).append(codec.decode(Audit, entry.value, entry.key))
        page = await self.cluster.entries(self.call.keys.tree("pods"))
        standing = {self.call.keys.pod_parts(key) for key in page}
        assert {(pod.owner, pod.node, pod.instance) for pod in replay((), records)} == standing


@pytest.fixture
async def rolling(consul_dev: str) -> AsyncIterator[Rolling]:
    async with cluster_on(consul_dev) as cluster:
        yield Rolling(cluster, consul_dev)


@pytest.fixture
async def agents(rolling: Rolling) -> AsyncIterator[Obedient]:
    async with obedient(rolling.cluster) as acting:
        yield acting


@pytest.fixture
async def farm(rolling: Rolling) -> AsyncIterator[RunningFarm]:
    running = await start_farm(rolling.cluster.client, "farm-1", keys=rolling.cluster.keys, kinds=KINDS)
    yield running
    await running.close()


async def test_a_new_version_comes_in_place_and_takes_the_name(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    ident = await rolling.begin(4)
    ended = await rolling.ended(ident)
    assert (ended.outcome, ended.old.replicas_desired) == ("done", 0)
    await rolling.whole(SECOND, 4)
    moves = [audit for audit in await rolling.cluster.audits() if audit.action == "rollout.move"]
    assert [(len(audit.placed), len(audit.removed)) for audit in moves] == [(1, 1)] * 4


async def test_two_farms_share_what_belongs_together(rolling: Rolling, agents: Obedient) -> None:
    """One farm works on the rollout and another on the controllers: neither adds nor loses a pod (B2)."""
    one = farm_on(rolling.cluster.client, "farm-1", keys=rolling.cluster.keys, kinds=KINDS)
    two = farm_on(rolling.cluster.client, "farm-2", keys=rolling.cluster.keys, kinds=("rcs",))
    async with one, two:
        for manifest in (SECOND, FIRST, SECOND):
            ident = await (rolling.begin(4) if rolling.rc is None else rolling.update(manifest))
            await rolling.ended(ident)
            await rolling.whole(manifest, 4)
        audits = [audit for audit in await rolling.cluster.audits() if audit.action.startswith("pods.")]
        assert [audit.action for audit in audits] == ["pods.place"]  # the first placement, and no other


async def test_w10_a_farm_that_has_not_seen_the_new_intents_leaves_none_behind(
    rolling: Rolling, agents: Obedient
) -> None:
    """The farm that owns the controllers learns of others' intents late, and removes a pod at once."""
    keys, client = rolling.cluster.keys, rolling.cluster.client
    one = farm_on(client, "farm-1", keys=keys, kinds=("rollouts",))
    two = farm_on(client, "farm-2", keys=keys, kinds=("rcs",), own_trees_pause=3600.0)
    async with one, two:
        await rolling.ended(await rolling.begin(4))
        (rc,) = (await rolling.controllers()).values()
        await rolling.cluster.change_rc(rc, replicas_desired=3)
        await rolling.whole(SECOND, 3)


async def test_a_version_that_fails_goes_back_and_is_not_tried_again(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    agents.broken = {digest(SECOND)}
    ended = await rolling.ended(await rolling.begin(3))
    assert (ended.outcome, "1 of 1 pods do not stay available" in ended.reason) == ("reverted", True)
    agents.broken = set()
    await rolling.whole(FIRST, 3)
    assert "rollout_web" in [alert.incident_key for alert in farm.alerts.fired]
    with pytest.raises(Conflict, match="was reverted"):
        await rolling.update(SECOND)
    await rolling.ended(await rolling.update(SECOND, retry=True))
    await rolling.whole(SECOND, 3)
    assert "rollout_web" in farm.alerts.resolved


async def test_people_pause_resume_revert_and_abort(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    ident = await rolling.begin(3, STAGED)
    await rolling.status(ident, "waits for farmctl rollout approve web")
    lent = await rolling.controllers()
    assert [
        (rc.replicas_desired, rc.taken, rc.hands) for rc in sorted(lent.values(), key=lambda rc: rc.name)
    ] == [
        (2, False, 2),
        (1, False, 2),
    ]
    await rolling.say(await commands.pause(rolling.call, "web"))
    await rolling.say(await commands.approve(rolling.call, "web", everything=True))
    await rolling.status(ident, "paused")
    await rolling.say(await commands.resume(rolling.call, "web"))
    assert (await rolling.ended(ident)).outcome == "done"
    await rolling.whole(SECOND, 3)
    with pytest.raises(NotFound, match="done"):
        await commands.pause(rolling.call, "web")
    again = await commands.revert(rolling.call, "web")
    await rolling.say(again)
    assert (await rolling.ended(again.change.id)).outcome == "done"
    await rolling.whole(FIRST, 3)


async def test_what_is_deleted_by_hand_in_the_middle_aborts_it(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    ident = await rolling.begin(3, STAGED)
    await rolling.status(ident, "approve")
    found = await rolling.controllers()
    new = next(rc for name, rc in found.items() if name != "web")
    await rolling.call.client.delete(rolling.call.keys.record("rcs", new.id))
    assert (await rolling.ended(ident)).outcome == "aborted"
    assert (await rolling.controllers())["web"].managed_by == ""


STEPS = ["rollout.take", "rollout.move", "rollout.next", "rollout.done"]


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
@pytest.mark.parametrize("step", STEPS)
async def test_w13_a_farm_that_dies_after_any_step_changes_nothing_about_the_end(
    rolling: Rolling, agents: Obedient, step: str, answered: bool
) -> None:
    async with mortal_farm(rolling.cluster, rolling.address, step, answered=answered, kinds=KINDS) as mortal:
        ident = await rolling.begin(3, PATIENT)
        await asyncio.wait_for(mortal.stop.cut.wait(), 40)  # type: ignore[attr-defined]
        await bury(rolling.cluster, mortal)
    async with farm_on(rolling.cluster.client, "heir", keys=rolling.cluster.keys, kinds=KINDS):
        assert (await rolling.ended(ident)).outcome == "done"
        await rolling.whole(SECOND, 3)
